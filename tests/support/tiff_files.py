"""TIFF files written byte by byte, as the specification says (TIFF 6.0, sections 2 to 8, 14 and 19)."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

SHORT, LONG = 3, 4
WHITE_IS_ZERO, BLACK_IS_ZERO, RGB = 0, 1, 2
UNSIGNED, SIGNED, FLOAT, UNTYPED = 1, 2, 3, 4
NONE, DEFLATE = 1, 8


def tiff(
    values: npt.NDArray[np.integer | np.floating],
    bits: int,
    photometric: int = BLACK_IS_ZERO,
    sample_format: int | None = None,
    order: str = "<",
    compression: int = NONE,
) -> bytes:
    """Return a file of (H, W) or (H, W, samples) numbers as they are, in one strip; no tag 339 without a format.

    Samples of 8, 16, 32 bits are stored in the file's order of bytes, all others packed, the highest bit first.
    """
    height, width, samples = (*values.shape, 1)[:3]
    data = _packed(values, bits, order)
    tags = {
        256: (LONG, [width]),
        257: (LONG, [height]),
        258: (SHORT, [bits] * samples),
        259: (SHORT, [compression]),
        262: (SHORT, [photometric]),
        273: (LONG, [0]),  # where the strip begins: see below
        277: (SHORT, [samples]),
        278: (LONG, [height]),
        279: (LONG, [0]),
    }
    if sample_format is not None:
        tags[339] = (SHORT, [sample_format] * samples)
    data = zlib.compress(data) if compression == DEFLATE else data
    return _file(tags, data, order)


def _packed(values: npt.NDArray[np.integer | np.floating], bits: int, order: str) -> bytes:
    if bits in (8, 16, 32):
        kind = values.dtype.kind
        return values.astype(f"{order}{kind}{bits // 8}").tobytes()
    rows = values.reshape(len(values), -1).astype(np.int64)
    each = (rows[..., None] >> np.arange(bits)[::-1]) & 1
    return np.packbits(each.reshape(len(rows), -1).astype(np.uint8), axis=1).tobytes()


def _file(tags: dict[int, tuple[int, Sequence[int]]], data: bytes, order: str) -> bytes:
    entries = sorted(tags.items())
    place = 8 + 2 + 12 * len(entries) + 4  # behind the directory: values that have no room in it, then the strip
    beside = b""
    directory = struct.pack(f"{order}H", len(entries))
    strip = place + sum(_size(kind, found) for kind, found in tags.values() if _size(kind, found) > 4)
    for tag, (kind, found) in entries:
        numbers = {273: [strip], 279: [len(data)]}.get(tag, found)
        packed = struct.pack(f"{order}{len(numbers)}{'HL'[kind == LONG]}", *numbers)
        if len(packed) > 4:
            packed, beside = struct.pack(f"{order}L", place + len(beside)), beside + packed
        directory += struct.pack(f"{order}HHL4s", tag, kind, len(numbers), packed.ljust(4, b"\0"))
    mark = {"<": b"II*\0", ">": b"MM\0*"}[order]
    return mark + struct.pack(f"{order}L", 8) + directory + bytes(4) + beside + data


def _size(kind: int, numbers: Sequence[int]) -> int:
    return len(numbers) * (4 if kind == LONG else 2)
