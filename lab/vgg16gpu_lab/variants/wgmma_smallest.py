"""The smallest TMA and wgmma convolution: the Python side of kernels/lab/wgmma_smallest.cu."""

from typing import Final

from vgg16gpu.compiler.op_kernels.base import ceil_div, scalars
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch, TmaDescriptor
from vgg16gpu.program.types import ALIGNMENT, DType, Pointer
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import Launches, Parameters, Places, Variant

_SOURCE: Final = "lab/wgmma_smallest.cu"
_SIDE: Final = 8  # outputs of a block in each direction
_CHANNELS: Final = 64  # of a box, and of a block's outputs
_HALF: Final = 2  # bytes
_THREADS: Final = 128
_PACKERS: Final = 256  # threads of a block


def _channels(problem: Problem) -> tuple[int, int]:
    """Return (CP, OCP): channels of input and output as they are stored."""
    stored, outputs = (_CHANNELS * ceil_div(count, _CHANNELS) for count in (problem.channels, problem.outputs))
    return stored, outputs


def _sizes(problem: Problem) -> tuple[int, int]:
    """Return the counts of float16 numbers of the pixels and of the filters."""
    stored, outputs = _channels(problem)
    return problem.batch * problem.height * problem.width * stored, problem.kernel**2 * outputs * stored


def _filters_at(problem: Problem) -> int:
    """Return the bytes from the pixels to the filters."""
    return ceil_div(_HALF * _sizes(problem)[0], ALIGNMENT) * ALIGNMENT


def _launches(problem: Problem, parameters: Parameters, places: Places) -> Launches:  # noqa: ARG001
    p, (stored, outputs) = problem, _channels(problem)
    macros = (("KSIZE", p.kernel),)
    pixels = places.workspace
    filters = Pointer(pixels.arena, pixels.offset + _filters_at(p))
    pack = KernelLaunch(
        kernel=Kernel(_SOURCE, "wgmma_smallest_pack", macros),
        grid=Dim3(ceil_div(sum(_sizes(p)), _PACKERS)),
        block=Dim3(_PACKERS),
        arguments=(
            *(pixels, filters, places.x, places.weight),
            *scalars(p.batch, p.channels, p.height, p.width, p.outputs, stored, outputs),
        ),
        label="wgmma pack",
    )
    row = _HALF * stored
    image = TmaDescriptor(
        pixels,
        DType.F16,
        (stored, p.width, p.height, p.batch),
        (row, row * p.width, row * p.width * p.height),
        (_CHANNELS, _SIDE, _SIDE, 1),
    )
    weights = TmaDescriptor(filters, DType.F16, (stored, p.kernel**2 * outputs), (row,), (_CHANNELS, _CHANNELS))
    convolution = KernelLaunch(
        kernel=Kernel(_SOURCE, "wgmma_smallest", macros),
        grid=Dim3(ceil_div(p.out_width, _SIDE), ceil_div(p.out_height, _SIDE), p.batch * outputs // _CHANNELS),
        block=Dim3(_THREADS),
        arguments=(
            *(image, weights, places.y),
            *scalars(p.outputs, p.out_height, p.out_width, stored, outputs, p.padding),
        ),
        flop=p.flop,
        nbytes=p.nbytes,
        label="wgmma smallest",
    )
    return Launches(compute=(convolution,), convert=(pack,))


def _refuses(problem: Problem, parameters: Parameters) -> str:  # noqa: ARG001
    return f"it does stride 1, not {problem.stride}" if problem.stride != 1 else ""


def _workspace_nbytes(problem: Problem, parameters: Parameters) -> int:  # noqa: ARG001
    return _filters_at(problem) + _HALF * _sizes(problem)[1]


VARIANTS = (
    Variant(
        name="wgmma-smallest",
        title="TMA and wgmma, the smallest",
        order=130,
        source=_SOURCE,
        teaches="Hopper's tensor cores and copy engine in a kernel that fits on a page: float16 products, float sums.",
        launches=_launches,
        refuses=_refuses,
        workspace_nbytes=_workspace_nbytes,
        tolerance=1e-3,  # of float16
        hopper=True,
    ),
)
