"""What variants share that write the windows of an image as a matrix first and multiply then: im2col.cu.

Every kernel that multiplies takes the same arguments.
"""

from __future__ import annotations

import math
from typing import Final

from vgg16gpu.compiler.op_kernels.base import ceil_div, scalars
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import Launches, Parameters, Places

SOURCE: Final = "lab/im2col.cu"
COPY_BLOCK: Final = Dim3(16, 16)  # of im2col_taps and im2col_rows


def pixels(problem: Problem) -> int:
    """Return the output pixels of an image."""
    return problem.out_height * problem.out_width


def matrix_nbytes(problem: Problem) -> int:
    """Return the bytes of the column matrices of all images, pixels x taps each."""
    return 4 * problem.batch * pixels(problem) * problem.taps


def workspace_nbytes(problem: Problem, parameters: Parameters) -> int:  # noqa: ARG001 - whatever the parameters
    """Return the bytes of the matrices, for `Variant.workspace_nbytes`."""
    return matrix_nbytes(problem)


def refuses(problem: Problem, parameters: Parameters) -> str:  # noqa: ARG001 - whatever the problem
    """Return why blocks are too small, for `Variant.refuses`; "" where they are not."""
    return "" if parameters["block"] >= 1 else f"block={parameters['block']}: a block has at least 1 thread"


def rows_of_taps(problem: Problem, places: Places) -> KernelLaunch:
    """Write the matrices as (N, taps, pixels)."""
    columns, rows = ceil_div(problem.out_width, COPY_BLOCK.x), ceil_div(problem.out_height, COPY_BLOCK.y)
    return _copy(problem, places, "im2col_taps", Dim3(columns, rows, problem.batch), COPY_BLOCK)


def rows_of_pixels(problem: Problem, places: Places) -> KernelLaunch:
    """Write the matrices as (N, pixels, taps), in 2-D blocks whose threadIdx.x walks rows of the output."""
    rows, columns = ceil_div(problem.out_height, COPY_BLOCK.x), ceil_div(problem.out_width, COPY_BLOCK.y)
    return _copy(problem, places, "im2col_rows", Dim3(rows, columns, problem.batch), COPY_BLOCK)


def product(problem: Problem, places: Places, kernel: Kernel, grid: Dim3, block: Dim3) -> KernelLaunch:
    """Multiply the weights with the matrices of all images."""
    sizes = (problem.outputs, problem.taps, pixels(problem))
    return KernelLaunch(
        kernel=kernel,
        grid=grid,
        block=block,
        arguments=(places.y, places.weight, places.workspace, *scalars(*sizes)),
        flop=problem.flop,
        nbytes=matrix_nbytes(problem) + 4 * (math.prod(problem.weight_shape) + math.prod(problem.y_shape)),
        label="gemm",
    )


def squares(problem: Problem, places: Places, kernel: Kernel, block: int, tile: int = 1) -> Launches:
    """Return a product in blocks of block x block threads that compute tile x tile outputs each: pixels along x."""
    edge = block * tile
    grid = Dim3(ceil_div(pixels(problem), edge), ceil_div(problem.outputs, edge), problem.batch)
    step = product(problem, places, kernel, grid, Dim3(block, block))
    return Launches(compute=(step,), convert=(rows_of_taps(problem, places),))


def _copy(problem: Problem, places: Places, name: str, grid: Dim3, block: Dim3) -> KernelLaunch:
    sizes = (problem.channels, problem.height, problem.width, problem.out_height, problem.out_width)
    window = (problem.kernel, problem.stride, problem.padding)
    return KernelLaunch(
        kernel=Kernel(SOURCE, name),
        grid=grid,
        block=block,
        arguments=(places.workspace, places.x, *scalars(*sizes, *window)),
        nbytes=4 * math.prod(problem.x_shape) + matrix_nbytes(problem),
        label="im2col",
    )
