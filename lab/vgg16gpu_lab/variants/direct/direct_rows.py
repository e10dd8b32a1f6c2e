"""Direct convolution whose neighbouring threads read far apart: the Python side of direct_rows.cu."""

from vgg16gpu.program.launch import Dim3
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import Launches, Parameters, Places, Variant
from vgg16gpu_lab.variants.direct.launches import cover, launch


def _launches(problem: Problem, parameters: Parameters, places: Places) -> Launches:
    side = parameters["block"]
    columns, rows, planes = cover(problem, side, side)
    pointers = (places.y, places.x, places.weight)
    grid = Dim3(rows, columns, planes)
    return launch("direct_rows", problem, pointers, grid, Dim3(side, side), problem.stride, problem.padding)


VARIANTS = (
    Variant(
        name="direct-rows",
        title="direct, threads along rows",
        order=12,
        source="lab/direct_rows.cu",
        teaches="threadIdx.x that walks rows makes every load and store uncoalesced.",
        launches=_launches,
        seeds=("S1",),
        parameters={"block": (16, 8, 32)},
    ),
)
