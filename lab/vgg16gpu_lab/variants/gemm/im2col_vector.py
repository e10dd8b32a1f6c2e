"""im2col with a row for each thread, then the product with the filter as a vector: im2col_vector.cu."""

from __future__ import annotations

from vgg16gpu.compiler.op_kernels.base import ceil_div
from vgg16gpu.program.launch import Dim3, Kernel
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import Launches, Parameters, Places, Variant
from vgg16gpu_lab.variants.gemm import im2col

SOURCE = "lab/im2col_vector.cu"


def _launches(problem: Problem, parameters: Parameters, places: Places) -> Launches:
    block = parameters["block"]
    grid = Dim3(ceil_div(im2col.pixels(problem), block), problem.outputs, problem.batch)
    step = im2col.product(problem, places, Kernel(SOURCE, "gemm_vector"), grid, Dim3(block))
    return Launches(compute=(step,), convert=(im2col.rows_of_pixels(problem, places),))


VARIANTS = (
    Variant(
        name="im2col-vector",
        title="im2col, filter as a vector",
        order=100,
        source=SOURCE,
        teaches="A row of the matrix for each thread is natural and slow: the threads of a warp read far apart.",
        launches=_launches,
        seeds=("S1",),
        parameters={"block": (256, 32, 64, 128, 512, 1024)},
        refuses=im2col.refuses,
        workspace_nbytes=im2col.workspace_nbytes,
    ),
)
