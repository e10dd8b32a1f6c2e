"""Pictures of any size resized and cropped as Pillow does it: the Python side of kernels/layout/resize.cu.

A batch is a table of numbers and the pictures' bytes; both passes and their weights are the device's. What is done to a
picture is a `ResizeSpec`; which of the two passes comes first has changed from version to version of Pillow:
`PassOrder`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from vgg16gpu.compiler.op_kernels.base import BLOCK, ceil_div, scalars
from vgg16gpu.io.preprocessing import INTERPOLATIONS, resized_shape
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch
from vgg16gpu.program.types import Pointer

Integers: TypeAlias = npt.NDArray[np.integer]
Words: TypeAlias = npt.NDArray[np.int32]
Flags: TypeAlias = npt.NDArray[np.bool_]

SOURCE: Final = "resize.cu"
VARIANTS: Final = tuple((("CHANNELS", channels),) for channels in (1, 3))
HEADER_WORDS: Final = 2  # of 32 bits: the number of pictures, and nothing
ENTRY_WORDS: Final = 14
MAX_SIDE: Final = 65_535  # of a picture: offsets within a row, and a column of weights, fit into 32 bits

_TILE = 32  # rows and columns of the output, as in the source
_SUPPORT = {"bilinear": 1.0, "bicubic": 2.0}  # pixels of the smaller picture on either side


class PassOrder(Enum):
    """Which pictures a version of Pillow resizes along their columns first; all others along their rows."""

    NONE = "none"  # to 12.1
    STRIPS = "strips"  # 12.2 and 12.3: more than 100 times as high as wide, made lower
    STEEP = "steep"  # from 13.0 on: the height loses more than twice what the width loses

    def down_first(self, heights: Integers, widths: Integers, rows: Integers, columns: Integers) -> Flags:
        """Return which pictures of (heights, widths), resized to (rows, columns), are resized downwards first."""
        if self is PassOrder.NONE:
            return np.zeros(np.shape(heights), np.bool_)
        lower: Flags = rows < heights
        if self is PassOrder.STRIPS:
            return lower & (heights > 100 * widths)
        return lower & (heights - rows > 2 * (widths - columns))


@dataclass(frozen=True)
class ResizeSpec:
    """What is done to every picture. `order`: of the Pillow whose bits are wanted."""

    size: tuple[int, int]  # (H, W) of the network
    channels: int  # 1 or 3
    crop: bool  # the shorter side to 256/224 of the size, then the centre; else stretched to the size
    interpolation: str  # "nearest", "bilinear" or "bicubic"
    reverse: bool  # the order of channels
    order: PassOrder


def takes(heights: Integers, widths: Integers) -> Flags:
    """Return which pictures the kernel accepts: those with sides from 1 to MAX_SIDE."""
    return (np.minimum(heights, widths) >= 1) & (np.maximum(heights, widths) <= MAX_SIDE)


def scratch_nbytes(fit: ResizeSpec, heights: Integers, widths: Integers) -> npt.NDArray[np.int64]:
    """Return each picture's bytes of device scratch: first pixel, number and weights of each row and column."""
    rows, columns = _resized(fit, heights, widths)
    height, width = fit.size
    words = height * (2 + _taps(fit, heights, rows)) + width * (2 + _taps(fit, widths, columns))
    return 4 * words


def entries(
    fit: ResizeSpec,
    offsets: Integers,
    heights: Integers,
    widths: Integers,
    rows: Integers,
    fitted: Flags | None = None,
) -> Words:
    """Return (n, ENTRY_WORDS) int32: each picture's place, its sizes before and after, and its row of the output.

    offsets: in the pool, of (height, width, channels) bytes each. Pictures that are `fitted` already, of the network's
    size and in its order of channels, stay as they are. Each has its own scratch, as `scratch_nbytes` says. Raises
    ValueError for pictures that the kernel does not accept.
    """
    heights, widths = np.asarray(heights, np.int64), np.asarray(widths, np.int64)
    fitted = np.zeros(heights.shape, np.bool_) if fitted is None else fitted
    height, width = fit.size
    if not takes(heights, widths).all():
        raise ValueError(f"pictures of {heights} x {widths} pixels: sides from 1 to {MAX_SIDE} are resized")
    if (fitted & ((heights != height) | (widths != width))).any():
        raise ValueError(f"pictures of {heights} x {widths} pixels are no fitted ones of {height} x {width}")
    high, wide = _resized(fit, heights, widths)
    high, wide = np.where(fitted, height, high), np.where(fitted, width, wide)
    scratch = scratch_nbytes(fit, heights, widths) // 4
    table = np.empty((len(heights), ENTRY_WORDS), np.int32)
    table[:, 0:2] = halves(offsets)
    table[:, 2:4] = halves(np.cumsum(scratch) - scratch)
    table[:, 4], table[:, 5] = heights, widths
    table[:, 6], table[:, 7] = high, wide
    table[:, 8], table[:, 9] = _origin(high, height), _origin(wide, width)
    table[:, 10] = _taps(fit, widths, wide)
    table[:, 11] = rows
    table[:, 12] = fit.reverse & ~fitted
    table[:, 13] = fit.order.down_first(heights, widths, high, wide)
    return table


def table(
    fit: ResizeSpec,
    offsets: Integers,
    heights: Integers,
    widths: Integers,
    rows: Integers,
    fitted: Flags | None = None,
) -> Words:
    """Return the header and the entries of a batch, int32, as the steps read them."""
    found = entries(fit, offsets, heights, widths, rows, fitted)
    return with_header(found)


def with_header(entries: Words) -> Words:
    """Return the words of a table of pictures: their number, then the entries."""
    return np.concatenate([np.array([len(entries)] + [0] * (HEADER_WORDS - 1), np.int32), entries.ravel()])


def steps(
    fit: ResizeSpec, out: Pointer, pool: Pointer, table: Pointer, scratch: Pointer, most: int
) -> tuple[KernelLaunch, ...]:
    """Return two launches that write (row, H, W, channels) bytes at `out` of every picture in `table`.

    Their grids are for `most` pictures, to 65535; the blocks of those that the table lacks return at once. Table and
    scratch lie at multiples of 4 bytes, pictures and output anywhere.
    """
    height, width = fit.size
    defines = (("CHANNELS", fit.channels),)
    size = scalars(height, width)
    return (
        KernelLaunch(
            kernel=Kernel(SOURCE, "resize_tables", defines),
            grid=Dim3(ceil_div(height + width, BLOCK), most),
            block=Dim3(BLOCK),
            arguments=(scratch, table, *size, *scalars(INTERPOLATIONS.index(fit.interpolation))),
            label="weights of pictures",
        ),
        KernelLaunch(
            kernel=Kernel(SOURCE, "resize_crop", defines),
            grid=Dim3(ceil_div(width, _TILE), ceil_div(height, _TILE), most),
            block=Dim3(BLOCK),
            arguments=(out, pool, table, scratch, *size),
            nbytes=2 * most * height * width * fit.channels,
            label="pictures resized and cropped",
        ),
    )


def _resized(
    fit: ResizeSpec, heights: Integers, widths: Integers
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the rows and columns that each picture has before the crop."""
    heights, widths = np.asarray(heights, np.int64), np.asarray(widths, np.int64)
    if fit.crop:
        return resized_shape(heights, widths, fit.size, larger=np.maximum)
    return np.full_like(heights, fit.size[0]), np.full_like(widths, fit.size[1])


def _taps(fit: ResizeSpec, sizes: Integers, resized: Integers) -> npt.NDArray[np.int64]:
    """Return the most pixels of a picture that contribute to a row or column."""
    if fit.interpolation == "nearest":
        return np.ones(np.shape(sizes), np.int64)
    reach = _SUPPORT[fit.interpolation] * np.maximum(sizes / resized, 1.0)
    return 2 * np.ceil(reach).astype(np.int64) + 1


def _origin(resized: Integers, size: int) -> npt.NDArray[np.int64]:
    """Return where the centre crop begins; halves go to the even side, as Python's round takes them."""
    return np.rint((resized - size) / 2).astype(np.int64)


def halves(numbers: Integers) -> Words:
    """Split 64-bit numbers into low and high words, (n, 2)."""
    return np.ascontiguousarray(numbers, "<i8").view("<i4").reshape(-1, 2)
