"""halo_shared with the loop over output channels outside: the Python side of kernels/lab/halo/halo_oc_outside.cu."""

from vgg16gpu.program.launch import Dim3
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import Launches, Parameters, Places, Variant
from vgg16gpu_lab.variants.direct.launches import cover, launch
from vgg16gpu_lab.variants.halo.launches import STEP_PARAMETERS, refuses


def _launches(problem: Problem, parameters: Parameters, places: Places) -> Launches:
    columns, rows = parameters["block_x"], parameters["block_y"]
    macros = {"STRIDE": problem.stride, "PADDING": problem.padding, "BLOCK_X": columns, "BLOCK_Y": rows}
    pointers = (places.y, places.x, places.weight)
    return launch(
        "halo_oc_outside", problem, pointers, cover(problem, columns, rows, planes=1), Dim3(columns, rows), **macros
    )


VARIANTS = (
    Variant(
        name="halo-oc-outside",
        title="even halo, output channels outside",
        order=63,
        source="lab/halo_oc_outside.cu",
        teaches="The order of two loops decides what stays in registers: one sum, or many and each tile used for all.",
        launches=_launches,
        seeds=("S4",),
        parameters=STEP_PARAMETERS,
        refuses=refuses(tiles=1),
    ),
)
