"""The published loop, every tile again for each output channel: the Python side of halo_published.cu."""

from typing import Final

from vgg16gpu.compiler.op_kernels.base import ceil_div
from vgg16gpu.program.launch import Dim3
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import MAX_STATIC_NBYTES, Launches, Parameters, Places, Variant
from vgg16gpu_lab.variants.direct.launches import launch

BLOCK: Final = Dim3(4, 8)  # columns x rows, as published


def _launches(problem: Problem, _: Parameters, places: Places) -> Launches:
    p = problem
    grid = Dim3(max(p.out_width // BLOCK.x, 1), max(p.out_height // BLOCK.y, 1), p.batch)  # the last ones are larger
    macros = {"STRIDE": p.stride, "PADDING": p.padding, "BLOCK_X": BLOCK.x, "BLOCK_Y": BLOCK.y}
    return launch("halo_published", p, (places.y, places.x, places.weight), grid, BLOCK, **macros)


def tile_nbytes(problem: Problem) -> int:
    """Return the bytes of the struct Tile in halo_published.cu."""
    rows, columns = ((2 * side - 2) * problem.stride + problem.kernel for side in (BLOCK.y, BLOCK.x))
    return 4 * (rows * ceil_div(columns, 4) * 4 + ceil_div(problem.kernel**2, 4) * 4)


def _refuses(problem: Problem, _: Parameters) -> str:
    need = tile_nbytes(problem)
    if need <= MAX_STATIC_NBYTES:
        return ""
    return f"its tile takes {need:,} bytes of shared memory, there are {MAX_STATIC_NBYTES:,}; take a smaller stride"


VARIANTS = (
    Variant(
        name="halo-published",
        title="halo, the published loop",
        order=66,
        source="lab/halo_published.cu",
        teaches="Refilled right after its use, one tile prefetches nothing; output channels outside fetch it for each.",
        launches=_launches,
        seeds=("S4",),
        refuses=_refuses,
    ),
)
