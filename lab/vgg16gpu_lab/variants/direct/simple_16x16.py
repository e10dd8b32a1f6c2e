"""The first kernel that one writes, in blocks of 16x16: the Python side of kernels/lab/direct/simple_16x16.cu."""

from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import Launches, Parameters, Places, Variant
from vgg16gpu_lab.variants.direct.launches import BLOCK, cover, launch


def _launches(problem: Problem, _: Parameters, places: Places) -> Launches:
    pointers, numbers = (places.y, places.x, places.weight), (problem.kernel, problem.stride, problem.padding)
    return launch("simple_16x16", problem, pointers, cover(problem, BLOCK.x, BLOCK.y), BLOCK, *numbers)


VARIANTS = (
    Variant(
        name="simple-16x16",
        title="simple, 16x16 blocks",
        order=60,
        source="lab/simple_16x16.cu",
        teaches="Beside each multiply-add run two loads, the test for the border, the index and the loop.",
        launches=_launches,
        seeds=("S4",),
    ),
)
