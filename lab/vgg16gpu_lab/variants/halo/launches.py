"""What the convolutions with a halo share (kernels/lab/halo.cuh): parameters, launches, the room of a tile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from vgg16gpu.compiler.op_kernels.base import ceil_div
from vgg16gpu.program.launch import Dim3
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import MAX_STATIC_NBYTES, Launches, Parameters, Places, Variant
from vgg16gpu_lab.variants.direct.launches import cover, launch

PARAMETERS: Final[Mapping[str, Sequence[int]]] = {
    "block_x": (8, 16, 32),
    "block_y": (4, 8),
    "outputs": (8, 4, 16),  # output channels of a thread, at most
}
STEP_PARAMETERS: Final[Mapping[str, Sequence[int]]] = {  # one output channel a thread
    "block_x": (4, 8, 16, 32),
    "block_y": (8, 4, 2, 1, 16),
}


def launches(name: str) -> Callable[[Problem, Parameters, Places], Launches]:
    """Return the function that makes launches of `<name>_f32` in kernels/lab/<name>.cu."""

    def of(problem: Problem, parameters: Parameters, places: Places) -> Launches:
        columns, rows, outputs = _sizes(problem, parameters)
        grid = cover(problem, columns, rows, planes=ceil_div(problem.outputs, outputs))
        macros = {"STRIDE": problem.stride, "PADDING": problem.padding, "BLOCK_X": columns, "BLOCK_Y": rows}
        if "outputs" in parameters:
            macros |= {"OUTPUTS": outputs}
        pointers = (places.y, places.x, places.weight)
        return launch(name, problem, pointers, grid, Dim3(columns, rows), **macros)

    return of


def step(name: str, order: int, title: str, teaches: str) -> Variant:
    """Return a step on the way to halo_shared.cu: one tile, one output channel a thread."""
    return Variant(
        name=name.replace("_", "-"),
        title=title,
        order=order,
        source=f"lab/{name}.cu",
        teaches=teaches,
        launches=launches(name),
        seeds=("S4",),
        parameters=STEP_PARAMETERS,
        refuses=refuses(tiles=1),
    )


def refuses(tiles: int) -> Callable[[Problem, Parameters], str]:
    """Return the function that says why a kernel with `tiles` tiles in shared memory cannot run."""

    def reason(problem: Problem, parameters: Parameters) -> str:
        if parameters["block_x"] % 4:
            return f"'block_x' is {parameters['block_x']}, tiles begin at a multiple of 4: take a multiple of 4"
        need = tiles * tile_nbytes(problem, parameters)
        if need <= MAX_STATIC_NBYTES:
            return ""
        return f"its tiles take {need:,} bytes of shared memory, there are {MAX_STATIC_NBYTES:,}; take a smaller block"

    return reason


def tile_nbytes(problem: Problem, parameters: Parameters) -> int:
    """Return the bytes of the struct Tile in halo.cuh."""
    columns, rows, outputs = _sizes(problem, parameters)
    skew = -problem.padding % 4
    pitch = 4 * ceil_div(skew + (columns - 1) * problem.stride + problem.kernel, 4)
    if columns < 32:
        pitch = (pitch + columns - 1) // (2 * columns) * (2 * columns) + columns
    x = ((rows - 1) * problem.stride + problem.kernel) * pitch
    return 4 * (x + ceil_div(problem.kernel**2 * outputs, 4) * 4)


def _sizes(problem: Problem, parameters: Parameters) -> tuple[int, int, int]:
    """Return BLOCK_X, BLOCK_Y, OUTPUTS."""
    return parameters["block_x"], parameters["block_y"], min(parameters.get("outputs", 1), problem.outputs)
