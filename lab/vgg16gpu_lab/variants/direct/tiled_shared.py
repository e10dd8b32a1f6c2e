"""Direct convolution out of a tile in shared memory: the Python side of kernels/lab/direct/tiled_shared.cu."""

from vgg16gpu.program.launch import Dim3
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import MAX_STATIC_NBYTES, Launches, Parameters, Places, Variant
from vgg16gpu_lab.variants.direct.launches import bias_macro, cover, launch


def _launches(problem: Problem, parameters: Parameters, places: Places) -> Launches:
    side = parameters["tile"]
    grid, block = cover(problem, side, side), Dim3(side, side)
    pointers = (places.y, places.x, places.weight, places.bias)
    macros = {"STRIDE": problem.stride, "TILE": side} | bias_macro(problem)
    return launch("tiled_shared", problem, pointers, grid, block, problem.padding, **macros)


def refuses(problem: Problem, parameters: Parameters) -> str:
    """Return why its tile is too large; "" where it is not."""
    side = (parameters["tile"] - 1) * problem.stride + problem.kernel
    if 4 * side**2 <= MAX_STATIC_NBYTES:
        return ""
    return f"its tile of {side}x{side} floats takes more than {MAX_STATIC_NBYTES >> 10} KiB; take a smaller 'tile'"


VARIANTS = (
    Variant(
        name="tiled-shared",
        title="tile in shared memory",
        order=40,
        source="lab/tiled_shared.cu",
        teaches="A tile of the input is loaded once and read by all outputs of the block.",
        launches=_launches,
        seeds=("S1", "S3"),
        parameters={"tile": (16, 8, 32)},
        refuses=refuses,
        takes_bias=True,
    ),
)
