"""im2col, then a product with a thread for each column of the result: kernels/lab/gemm/gemm_by_column.cu."""

from __future__ import annotations

from vgg16gpu.compiler.op_kernels.base import ceil_div
from vgg16gpu.program.launch import Dim3, Kernel
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import Launches, Parameters, Places, Variant
from vgg16gpu_lab.variants.gemm import im2col

SOURCE = "lab/gemm_by_column.cu"


def _launches(problem: Problem, parameters: Parameters, places: Places) -> Launches:
    block = parameters["block"]
    grid = Dim3(ceil_div(im2col.pixels(problem), block), 1, problem.batch)
    step = im2col.product(problem, places, Kernel(SOURCE, "gemm_by_column"), grid, Dim3(block))
    return Launches(compute=(step,), convert=(im2col.rows_of_taps(problem, places),))


VARIANTS = (
    Variant(
        name="gemm-by-column",
        title="im2col + GEMM, by column",
        order=122,
        source=SOURCE,
        teaches="A column of the result is a pixel: there are many, and neighbours read side by side.",
        launches=_launches,
        seeds=("S2",),
        parameters={"block": (16, 32, 64)},
        refuses=im2col.refuses,
        workspace_nbytes=im2col.workspace_nbytes,
    ),
)
