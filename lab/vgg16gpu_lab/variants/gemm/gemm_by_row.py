"""im2col, then a product with a thread for each row of the result: kernels/lab/gemm/gemm_by_row.cu."""

from __future__ import annotations

from vgg16gpu.compiler.op_kernels.base import ceil_div
from vgg16gpu.program.launch import Dim3, Kernel
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import Launches, Parameters, Places, Variant
from vgg16gpu_lab.variants.gemm import im2col

SOURCE = "lab/gemm_by_row.cu"


def _launches(problem: Problem, parameters: Parameters, places: Places) -> Launches:
    block = parameters["block"]
    grid = Dim3(ceil_div(problem.outputs, block), 1, problem.batch)
    step = im2col.product(problem, places, Kernel(SOURCE, "gemm_by_row"), grid, Dim3(block))
    return Launches(compute=(step,), convert=(im2col.rows_of_taps(problem, places),))


VARIANTS = (
    Variant(
        name="gemm-by-row",
        title="im2col + GEMM, by row",
        order=120,
        source=SOURCE,
        teaches="A row of the result is an output channel: with one of them a single thread computes the image.",
        launches=_launches,
        seeds=("S2",),
        parameters={"block": (16, 32, 64)},
        refuses=im2col.refuses,
        workspace_nbytes=im2col.workspace_nbytes,
    ),
)
