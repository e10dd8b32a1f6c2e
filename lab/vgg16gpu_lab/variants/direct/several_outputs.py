"""Direct convolution, several outputs of a row per thread: the Python side of kernels/lab/direct/several_outputs.cu."""

from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import Launches, Parameters, Places, Variant
from vgg16gpu_lab.variants.direct.launches import BLOCK, cover, launch


def _launches(problem: Problem, parameters: Parameters, places: Places) -> Launches:
    count = parameters["per_thread"]
    grid = cover(problem, BLOCK.x * count, BLOCK.y)
    pointers = (places.y, places.x, places.weight)
    macros = {"STRIDE": problem.stride, "PER_THREAD": count}
    return launch("several_outputs", problem, pointers, grid, BLOCK, problem.padding, **macros)


VARIANTS = (
    Variant(
        name="several-outputs",
        title="several outputs of a row",
        order=30,
        source="lab/several_outputs.cu",
        teaches="A value in a register serves all outputs of the thread whose windows hold it.",
        launches=_launches,
        seeds=("S1",),
        parameters={"per_thread": (4, 2, 8)},
    ),
)
