"""Pictures as JPEG decoders leave them, made RGB as libjpeg does it: the Python side of kernels/layout/planes.cu."""

from __future__ import annotations

from typing import Final

import numpy as np

from vgg16gpu.compiler.op_kernels.base import BLOCK
from vgg16gpu.compiler.op_kernels.layout.resize import Integers, Words, halves, with_header
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch
from vgg16gpu.program.types import Pointer
from vgg16gpu.program.ycbcr import factors

KERNEL: Final = Kernel("planes.cu", "planes_to_rgb")
ENTRY_WORDS: Final = 8  # of 32 bits, behind the header that `resize` has, too
_BLOCKS: Final = 32  # of a picture


def table(sources: Integers, targets: Integers, heights: Integers, widths: Integers, samplings: Integers) -> Words:
    """Return the header and the entries of a batch, int32, as `step` reads them.

    sources, targets: offsets in its `pool` and `out`. samplings: as in `program.ycbcr`.
    """
    found = np.empty((len(heights), ENTRY_WORDS), np.int32)
    found[:, 0:2], found[:, 2:4] = halves(sources), halves(targets)
    found[:, 4], found[:, 5] = heights, widths
    down, across = factors(np.asarray(samplings))
    found[:, 6], found[:, 7] = across, down
    return with_header(found)


def step(out: Pointer, pool: Pointer, table: Pointer, most: int) -> KernelLaunch:
    """Return a launch that writes (height, width, 3) bytes of every picture in `table`, at most `most`, to 65535.

    The blocks of pictures that the table lacks return at once. The table lies at a multiple of 4 bytes.
    """
    return KernelLaunch(
        kernel=KERNEL,
        grid=Dim3(_BLOCKS, most),
        block=Dim3(BLOCK),
        arguments=(out, pool, table),
        label="colours of pictures",
    )
