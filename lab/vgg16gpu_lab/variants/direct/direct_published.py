"""Direct convolution with two published faults at once: the Python side of kernels/lab/direct/direct_published.cu."""

import math

from vgg16gpu.program.launch import Dim3
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import Launches, Parameters, Places, Variant
from vgg16gpu_lab.variants.direct.launches import cover, launch_at_run_time


def _launches(problem: Problem, parameters: Parameters, places: Places) -> Launches:
    side = parameters["block"]
    columns, rows, planes = cover(problem, side, side)
    pointers = (places.y, places.workspace, places.x, places.weight)
    return launch_at_run_time("direct_published", problem, pointers, Dim3(rows, columns, planes), Dim3(side, side))


def _workspace_nbytes(problem: Problem, _: Parameters) -> int:
    return 4 * problem.channels * math.prod(problem.y_shape)


VARIANTS = (
    Variant(
        name="direct-published",
        title="direct, as published",
        order=11,
        source="lab/direct_published.cu",
        teaches="Threads along rows and stored running sums at once: what each of them costs does not add up.",
        launches=_launches,
        seeds=("S1",),
        parameters={"block": (16, 8, 32)},
        workspace_nbytes=_workspace_nbytes,
    ),
)
