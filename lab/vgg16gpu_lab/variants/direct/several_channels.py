"""Direct convolution, several output channels per thread: the Python side of kernels/lab/direct/several_channels.cu."""

from vgg16gpu.compiler.op_kernels.base import ceil_div
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import Launches, Parameters, Places, Variant
from vgg16gpu_lab.variants.direct.launches import BLOCK, cover, launch


def _launches(problem: Problem, parameters: Parameters, places: Places) -> Launches:
    count = parameters["per_thread"]
    grid = cover(problem, BLOCK.x, BLOCK.y, planes=ceil_div(problem.outputs, count))
    pointers = (places.y, places.x, places.weight)
    last = problem.stride, problem.padding
    return launch("several_channels", problem, pointers, grid, BLOCK, *last, PER_THREAD=count)


VARIANTS = (
    Variant(
        name="several-channels",
        title="several output channels",
        order=32,
        source="lab/several_channels.cu",
        teaches="All output channels of a pixel read the same window: one load serves several of them, coalesced.",
        launches=_launches,
        seeds=("S4",),
        parameters={"per_thread": (4, 2, 8)},
    ),
)
