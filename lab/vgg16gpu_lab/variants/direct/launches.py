"""What the direct convolutions of the lab share: their kernels' arguments, and the grid that covers an output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vgg16gpu.compiler.op_kernels.base import ceil_div, scalars
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch
from vgg16gpu.program.types import Pointer
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import Launches

BLOCK = Dim3(16, 16)  # where it is not what the variant is about


def launch(
    name: str,
    problem: Problem,
    pointers: Sequence[Pointer],
    grid: Dim3,
    block: Dim3,
    *last: int,
    **macros: int,
) -> Launches:
    """Return a launch of `<name>_f32` in kernels/lab/<name>.cu: pointers, C, H, W, OC, OH, OW, then the `last`.

    The macro KSIZE is always set.
    """
    return _launch(name, problem, pointers, grid, block, last, {"KSIZE": problem.kernel, **macros})


def launch_at_run_time(name: str, problem: Problem, pointers: Sequence[Pointer], grid: Dim3, block: Dim3) -> Launches:
    """Return a launch of a kernel that takes its window as numbers: stride, padding and its own edge come last."""
    return _launch(name, problem, pointers, grid, block, (problem.stride, problem.padding, problem.kernel), {})


def bias_macro(problem: Problem) -> dict[str, int]:
    """Return BIAS=1 for a problem that has one; nothing, the kernels' own 0, otherwise."""
    return {"BIAS": 1} if problem.bias else {}


def cover(problem: Problem, columns: int, rows: int, planes: int | None = None) -> Dim3:
    """Return blocks of `columns` x `rows` over the output; without `planes`, one layer for each output channel."""
    return Dim3(
        ceil_div(problem.out_width, columns),
        ceil_div(problem.out_height, rows),
        problem.batch * (problem.outputs if planes is None else planes),
    )


def _launch(
    name: str,
    problem: Problem,
    pointers: Sequence[Pointer],
    grid: Dim3,
    block: Dim3,
    last: Sequence[int],
    macros: Mapping[str, int],
) -> Launches:
    p = problem
    step = KernelLaunch(
        kernel=Kernel(f"lab/{name}.cu", f"{name}_f32", tuple(macros.items())),
        grid=grid,
        block=block,
        arguments=(
            *pointers,
            *scalars(p.channels, p.height, p.width, p.outputs, p.out_height, p.out_width, *last),
        ),
        flop=p.flop,
        nbytes=p.nbytes,
        label=name,
    )
    return Launches((step,))
