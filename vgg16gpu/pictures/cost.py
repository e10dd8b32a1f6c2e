"""What a picture costs before it is decoded, by its header: how large it is, and whether it is of the quick kind.

Quick is a JPEG or PNG file of few pixels in which nothing is hidden that takes a decoder long: many scans, or thousands
of chunks. Of all other files only the size is known.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from vgg16gpu.io.foreign.pictures import opened_picture
from vgg16gpu.pictures.content import HEAD_NBYTES, picture_kind
from vgg16gpu.pictures.jpeg_header import read_header
from vgg16gpu.pictures.limits import check_header

QUICK_PIXELS: Final = 1 << 22  # of a picture that is decoded in some tens of milliseconds

_USUAL_SCANS: Final = 16  # of a progressive JPEG file
_SCAN: Final = b"\xff\xda"
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_CHUNK: Final = struct.Struct(">I4s")  # bytes of content, kind; then the content, and a checksum of four bytes
_SIDES: Final = struct.Struct(">II")  # width, height
_MOST_CHUNKS: Final = 4096  # Pillow takes 5 us for each


class Cost(NamedTuple):
    """height, width: as the file says, 0 where it says nothing. is_quick: whether its pixels tell how long it takes."""

    height: int
    width: int
    is_quick: bool

    @property
    def pixels(self) -> int:
        """Return how many the picture has."""
        return self.height * self.width


def cost_of(data: bytes) -> Cost:
    """Return what an encoded picture costs; 0 pixels for what is no picture, which its decoder refuses."""
    if header := read_header(data):
        return cost_of_jpeg(data, header.height, header.width)
    if shape := _png_shape(data):
        return Cost(*shape, shape[0] * shape[1] <= QUICK_PIXELS)
    return Cost(*_shape_by_pillow(data), is_quick=False)


def cost_of_jpeg(data: bytes, height: int, width: int) -> Cost:
    """Return what a JPEG file costs whose size is known."""
    return Cost(height, width, height * width <= QUICK_PIXELS and data.count(_SCAN) <= _USUAL_SCANS)


def _png_shape(data: bytes) -> tuple[int, int] | None:
    """Return (height, width) of a PNG file of one header and some thousand chunks at most; None for all others."""
    if not data.startswith(_PNG):
        return None
    place, shape = len(_PNG), None
    for number in range(_MOST_CHUNKS):
        if place + _CHUNK.size + _SIDES.size > len(data):
            return shape
        length, kind = _CHUNK.unpack_from(data, place)
        if (kind == b"IHDR") != (number == 0) or kind == b"acTL":
            return None
        if number == 0:
            width, height = _SIDES.unpack_from(data, place + _CHUNK.size)
            shape = height, width
        place += _CHUNK.size + length + 4
    return None


def _shape_by_pillow(data: bytes) -> tuple[int, int]:
    """Return (height, width) by Pillow, which decodes nothing yet; zeros where that cannot be told."""
    kind = picture_kind(data[:HEAD_NBYTES])
    if kind is None:
        return 0, 0
    try:
        check_header(data, kind, "")
        with opened_picture(kind, data) as file:
            return file.size[1], file.size[0]
    except Exception:  # its decoder says why
        return 0, 0
