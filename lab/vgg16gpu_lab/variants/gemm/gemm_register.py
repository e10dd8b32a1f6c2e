"""im2col, then a product with a tile of sums in the registers of each thread: kernels/lab/gemm/gemm_register.cu."""

from __future__ import annotations

from typing import Final

from vgg16gpu.program.launch import Kernel
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import Launches, Parameters, Places, Variant
from vgg16gpu_lab.variants.gemm import im2col

SOURCE = "lab/gemm_register.cu"
REGISTERS: Final = 65536  # of a multiprocessor
REGISTERS_OF_THREAD: Final = 255
MAX_THREADS: Final = 1024  # of a block: larger ones are not refused for want of registers
OTHERS: Final = 24  # registers of a thread for addresses and counters


def _refuses(problem: Problem, parameters: Parameters) -> str:
    block, tile = parameters["block"], parameters["tile"]
    if reason := im2col.refuses(problem, parameters):
        return reason
    if tile < 1:
        return f"tile={tile}: a thread has at least 1 output"
    needed = tile * (tile + 2) + OTHERS
    there = min(REGISTERS_OF_THREAD, REGISTERS // min(block**2, MAX_THREADS))
    if needed > there:
        return f"a tile of {tile}x{tile} needs about {needed} registers, each of {block}x{block} threads gets {there}"
    return ""


def _launches(problem: Problem, parameters: Parameters, places: Places) -> Launches:
    block, tile = parameters["block"], parameters["tile"]
    kernel = Kernel(SOURCE, "gemm_register", (("BLOCK", block), ("TILE", tile)))
    return im2col.squares(problem, places, kernel, block, tile)


VARIANTS = (
    Variant(
        name="gemm-register",
        title="im2col + GEMM, register tile",
        order=116,
        source=SOURCE,
        teaches="A number that stays in a register and is used again takes the load off shared memory.",
        launches=_launches,
        seeds=("S2",),
        parameters={"block": (16, 8, 32), "tile": (4, 2, 8)},
        refuses=_refuses,
        workspace_nbytes=im2col.workspace_nbytes,
    ),
)
