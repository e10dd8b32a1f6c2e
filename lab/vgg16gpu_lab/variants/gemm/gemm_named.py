"""im2col, then a product with tiles in shared memory whose operands have names: kernels/lab/gemm/gemm_named.cu."""

from __future__ import annotations

from vgg16gpu.program.launch import Kernel
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import Launches, Parameters, Places, Variant
from vgg16gpu_lab.variants.gemm import im2col

SOURCE = "lab/gemm_named.cu"


def _launches(problem: Problem, parameters: Parameters, places: Places) -> Launches:
    block = parameters["block"]
    return im2col.squares(problem, places, Kernel(SOURCE, "gemm_named", (("BLOCK", block),)), block)


VARIANTS = (
    Variant(
        name="gemm-named",
        title="im2col + GEMM, named operands",
        order=114,
        source=SOURCE,
        teaches="Giving names to operands is not a use of registers: the machine code is that of gemm-shared.",
        launches=_launches,
        seeds=("S2",),
        parameters={"block": (16, 8, 32)},
        refuses=im2col.refuses,
        workspace_nbytes=im2col.workspace_nbytes,
    ),
)
