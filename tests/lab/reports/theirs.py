"""The printed kernels as variants of the lab: their argument order, our arrays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.lab.reports import reader
from tests.lab.reports.reader import Printed, runnable
from vgg16gpu.compiler.op_kernels.base import ceil_div, scalars
from vgg16gpu.program.launch import Argument, Dim3, Kernel, KernelLaunch
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import Launches, Layout, Parameters, Places, Variant
from vgg16gpu_lab.variants.gemm import im2col

EDGE = 16  # threads along each side of a block
THREADS = 64  # of a block with one side


def variant(name: str, folder: Path) -> Variant:
    """One that prints: S1's conv2 or im2col + gemm, a product of S2 behind its im2col, S4's serial code."""
    printed, launches = _LAUNCHES[name]
    source = folder / f"{name}.cu"
    source.write_text(runnable(*printed), encoding="utf-8")

    def made(problem: Problem, parameters: Parameters, places: Places) -> Launches:  # noqa: ARG001
        return launches(problem, places, str(source))

    layout: Layout = "CHW"
    return Variant(name, name, 0, str(source), "", made, workspace_nbytes=_workspace_nbytes, x_layout=layout)


def _workspace_nbytes(problem: Problem, parameters: Parameters) -> int:
    """The matrix of im2col, or conv2's planes of running sums."""
    planes = 4 * problem.channels * im2col.pixels(problem)
    return max(planes, im2col.workspace_nbytes(problem, parameters))


def _step(source: str, name: str, grid: Dim3, block: Dim3, *arguments: Argument, shared: int = 0) -> KernelLaunch:
    return KernelLaunch(Kernel(source, name), grid, block, arguments, shared)


def _s1_conv2(problem: Problem, places: Places, source: str) -> Launches:
    """Its answer is plane 0 of the running sums."""
    size, sizes = problem.out_height, (problem.height, problem.channels, problem.kernel)
    window = scalars(*sizes, problem.stride, problem.padding)
    grid = Dim3(ceil_div(size, EDGE), ceil_div(size, EDGE))
    arguments = (places.x, places.weight, *window, places.workspace, *scalars(size))
    return Launches((_step(source, "conv2", grid, Dim3(EDGE, EDGE), *arguments),))


def _s1_im2col(problem: Problem, places: Places, source: str) -> Launches:
    size, pixels = problem.out_height, im2col.pixels(problem)
    sizes = scalars(problem.height, problem.channels, problem.kernel, problem.stride, problem.padding)
    grid = Dim3(ceil_div(size, EDGE), ceil_div(size, EDGE))
    convert = _step(source, "im2col", grid, Dim3(EDGE, EDGE), places.x, *sizes, places.workspace, *scalars(size))
    matrix = (places.workspace, places.weight, places.y, *scalars(pixels, problem.taps))
    return Launches((_step(source, "gemm", Dim3(ceil_div(pixels, THREADS)), Dim3(THREADS), *matrix),), (convert,))


def _s2(name: str, across: int, down: int, shared: int = 0) -> Callable[[Problem, Places, str], Launches]:
    """A product in blocks of EDGE columns (or none) by EDGE rows; along one side alone it is THREADS."""

    def launches(problem: Problem, places: Places, source: str) -> Launches:
        pixels = im2col.pixels(problem)
        rows = problem.out_height, problem.out_width
        window = (problem.kernel, problem.kernel, problem.stride, problem.padding)
        sizes = scalars(problem.channels, problem.height, problem.width, *window, *rows)
        grid = Dim3(ceil_div(rows[1], EDGE), ceil_div(rows[0], EDGE))
        convert = _step(source, "im2col_kernel", grid, Dim3(EDGE, EDGE), places.x, *sizes, places.workspace)
        matrices = (places.weight, places.workspace, places.y, *scalars(problem.outputs, problem.taps, pixels))
        if across and down:
            grid, block = Dim3(ceil_div(pixels, across), ceil_div(problem.outputs, down)), Dim3(across, down)
        else:
            grid, block = Dim3(ceil_div(pixels if across else problem.outputs, THREADS)), Dim3(THREADS)
        return Launches((_step(source, name, grid, block, *matrices, shared=shared),), (convert,))

    return launches


def _s4_serial(problem: Problem, places: Places, source: str) -> Launches:
    sizes = scalars(
        problem.channels,
        problem.height,
        problem.width,
        problem.outputs,
        problem.out_height,
        problem.out_width,
        problem.kernel,
        problem.kernel,
    )
    arrays = (places.x, places.y, places.weight)
    return Launches((_step(source, "serial", Dim3(1), Dim3(1), *arrays, *sizes),))


_SHARED = 2 * 4 * EDGE**2  # bytes: two tiles
_LAUNCHES: dict[str, tuple[tuple[Printed, ...], Callable[[Problem, Places, str], Launches]]] = {
    "s1-conv2": ((reader.S1_CONV2,), _s1_conv2),
    "s1-im2col": ((reader.S1_IM2COL, reader.S1_GEMM), _s1_im2col),
    "s2-shared": ((reader.S2_IM2COL, reader.S2_SHARED), _s2("matrixMulShared", EDGE, EDGE)),
    "s2-reged": ((reader.S2_IM2COL, reader.S2_REGED), _s2("matrixMulReged", EDGE, EDGE, _SHARED)),
    "s2-basic": ((reader.S2_IM2COL, reader.S2_BASIC), _s2("matrixMulBasic", EDGE, EDGE)),
    "s2-block": ((reader.S2_IM2COL, reader.S2_BLOCK), _s2("matrixMulBlock", EDGE, EDGE)),
    "s2-row": ((reader.S2_IM2COL, reader.S2_ROW), _s2("matrixMulRow", 0, EDGE)),
    "s2-col": ((reader.S2_IM2COL, reader.S2_COL), _s2("matrixMulCol", EDGE, 0)),
    "s4-serial": ((reader.S4_SERIAL,), _s4_serial),
}
