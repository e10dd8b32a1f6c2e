"""How often each magnitude occurs in a value: the Python side of kernels/general/magnitudes.cu."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from vgg16gpu.compiler.op_kernels.base import BLOCK, ceil_div, scalars
from vgg16gpu.compiler.quantization.scheme import BINS
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch
from vgg16gpu.program.types import DeviceFacts, DType, Layout, Pointer, TensorDesc

KERNEL: Final = Kernel("magnitudes.cu", "magnitudes_f32")
COUNTS_NBYTES: Final = 8 * BINS

_BLOCK_ELEMENTS = 16 * BLOCK  # so that clearing and adding up a block's counts is the smaller part
_BLOCKS_PER_MULTIPROCESSOR = 5  # by shared memory


@dataclass(frozen=True)
class MagnitudeCounts:
    """Where counts gather: zero at first, see the kernel's header."""

    counts: Pointer  # COUNTS_NBYTES
    largest: Pointer  # a word: the bits of a float32


def can_count(value: TensorDesc) -> bool:
    """Return whether the kernel reads what this value is made of, and how it lies: as Conv and Gemm want it."""
    return value.element is DType.F32 and value.layout is Layout.NHWC


def count(value: TensorDesc, rows: int, tally: MagnitudeCounts, facts: DeviceFacts) -> KernelLaunch:
    """Count the elements of the first `rows` of a value that `can_count`, beside earlier ones."""
    pixels = rows * math.prod(value.stored_shape[1:-1])
    blocks = min(ceil_div(pixels * value.pitch, _BLOCK_ELEMENTS), _BLOCKS_PER_MULTIPROCESSOR * facts.multiprocessors)
    return KernelLaunch(
        kernel=KERNEL,
        grid=Dim3(max(blocks, 1)),
        block=Dim3(BLOCK),
        arguments=(tally.counts, tally.largest, value.pointer, *scalars(pixels, value.shape[1], value.pitch)),
        nbytes=4 * pixels * value.pitch,
        names=(value.name,),
        label=f"magnitudes of {value.name}",
    )
