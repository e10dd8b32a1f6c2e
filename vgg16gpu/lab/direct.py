"""What the direct convolutions of the lab share: their kernels' arguments, and the grid that covers an output."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vgg16gpu.lab.problem import Problem
from vgg16gpu.lab.variant import Launches, Parameters, Places
from vgg16gpu.ops.base import ceil_div, scalars
from vgg16gpu.program import Dim3, Kernel, Pointer, Step

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
    """One launch of `<name>_f32` in kernels/lab/<name>.cu: the pointers, C, H, W, OC, OH, OW, then the `last` numbers.

    The macro KSIZE is always set.
    """
    p = problem
    step = Step(
        kernel=Kernel(f"lab/{name}.cu", f"{name}_f32", (("KSIZE", p.kernel), *macros.items())),
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


def bias_macro(problem: Problem) -> dict[str, int]:
    """BIAS=1 for a problem that has one; nothing, the kernels' own 0, otherwise."""
    return {"BIAS": 1} if problem.bias else {}


def cover(problem: Problem, columns: int, rows: int, planes: int | None = None) -> Dim3:
    """Blocks of so many columns and rows over the output; without `planes`, one layer for each output channel."""
    return Dim3(
        ceil_div(problem.out_width, columns),
        ceil_div(problem.out_height, rows),
        problem.batch * (problem.outputs if planes is None else planes),
    )


def one_each(name: str) -> Callable[[Problem, Parameters, Places], Launches]:
    """The launches of a kernel with one thread per output, in square blocks of `block` x `block` threads."""

    def launches(problem: Problem, parameters: Parameters, places: Places) -> Launches:
        side = parameters["block"]
        grid = cover(problem, side, side)
        pointers = (places.y, places.x, places.weight)
        return launch(name, problem, pointers, grid, Dim3(side, side), problem.stride, problem.padding)

    return launches
