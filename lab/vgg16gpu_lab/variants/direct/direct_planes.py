"""Direct convolution that stores its running sums: the Python side of kernels/lab/direct/direct_planes.cu."""

import math

from vgg16gpu.program.launch import Dim3
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import Launches, Parameters, Places, Variant
from vgg16gpu_lab.variants.direct.launches import cover, launch


def _launches(problem: Problem, parameters: Parameters, places: Places) -> Launches:
    side = parameters["block"]
    grid = cover(problem, side, side)
    pointers = (places.y, places.workspace, places.x, places.weight)
    return launch("direct_planes", problem, pointers, grid, Dim3(side, side), problem.stride, problem.padding)


def _workspace_nbytes(problem: Problem, _: Parameters) -> int:
    return 4 * (problem.channels - 1) * math.prod(problem.y_shape)


VARIANTS = (
    Variant(
        name="direct-planes",
        title="direct, sums stored",
        order=14,
        source="lab/direct_planes.cu",
        teaches="A running sum that is stored in the loop over channels costs a store per channel.",
        launches=_launches,
        seeds=("S1",),
        parameters={"block": (16, 8, 32)},
        workspace_nbytes=_workspace_nbytes,
    ),
)
