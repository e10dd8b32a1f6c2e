"""im2col, then a product that takes every operand from global memory: kernels/lab/gemm/gemm_basic.cu."""

from __future__ import annotations

from vgg16gpu.program.launch import Kernel
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import Launches, Parameters, Places, Variant
from vgg16gpu_lab.variants.gemm import im2col

SOURCE = "lab/gemm_basic.cu"


def _launches(problem: Problem, parameters: Parameters, places: Places) -> Launches:
    return im2col.squares(problem, places, Kernel(SOURCE, "gemm_basic"), parameters["block"])


VARIANTS = (
    Variant(
        name="gemm-basic",
        title="im2col + GEMM, global memory",
        order=110,
        source=SOURCE,
        teaches="Every operand comes from global memory, however often a neighbour has just read it.",
        launches=_launches,
        seeds=("S2",),
        parameters={"block": (16, 8, 32)},
        refuses=im2col.refuses,
        workspace_nbytes=im2col.workspace_nbytes,
    ),
)
