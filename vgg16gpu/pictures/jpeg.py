"""JPEG by simplejpeg where it is installed, straight into a buffer, and only where its bits are Pillow's.

`jpeg_shape` takes a file or leaves it to Pillow; `decode_jpeg` decodes what was taken. Both libraries are
libjpeg-turbo with its exact DCT and smooth upsampling. A file with anything unusual, and one with any damage, is left
to Pillow, whose word decides: the outcome does not depend on whether simplejpeg is installed.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final, TypeAlias

from vgg16gpu.pictures.jpeg_header import read_header
from vgg16gpu.pictures.limits import MAX_PIXELS, is_decodable_in_time

Buffer: TypeAlias = Any  # writable and contiguous: an array of uint8, a memoryview, a bytearray

_SAME_BITS: Final = (3, 0, 3)  # before that libjpeg-turbo smooths progressive files without refinements in other ways
_END: Final = b"\xff\xd9"
_SAMPLINGS_OF_GPUS: Final = frozenset((0x11, 0x21, 0x22))  # 4:4:4, 4:2:2, 4:2:0
_SPACES: Final = {1: "GRAY", 3: "RGB", 4: "RGBX"}


class NotDecodedError(Exception):
    """simplejpeg does not decode this file cleanly: Pillow is to be asked."""


def jpeg_shape(data: bytes, channels: int) -> tuple[int, int] | None:
    """Return (h, w) of a JPEG file that `decode_jpeg` takes for 1 or 3 channels; None for all that Pillow reads."""
    header = read_header(data) if _simplejpeg() else None
    if header is None or header.components > channels:  # Pillow computes grey from RGB
        return None
    pixels = header.height * header.width
    if not 0 < pixels <= MAX_PIXELS or not (header.has_one_scan or is_decodable_in_time(data, pixels)):
        return None
    return header.height, header.width


def baseline_shape(data: bytes) -> tuple[int, int, int] | None:
    """Return (h, w, sampling) of a JPEG file that every decoder of a GPU knows; None for all others.

    sampling: as in `program.ycbcr`.

    It has colours, 4:4:4, 4:2:2 or 4:2:0, one scan, and its end in its place: such decoders may fill up with grey what
    a file lacks, and say nothing of it. What is unusual elsewhere is left to Pillow here, too.
    """
    header = read_header(data)
    if header is None or header.components != 3 or not header.has_one_scan or not data.endswith(_END):
        return None
    if header.sampling not in _SAMPLINGS_OF_GPUS or header.identities == b"RGB":
        return None
    is_usual = 0 < header.height * header.width <= MAX_PIXELS
    return (header.height, header.width, header.sampling) if is_usual else None


def decode_jpeg(data: bytes, channels: int, out: Buffer) -> None:
    """Decode what `jpeg_shape` took into `out`, exactly h * w * channels bytes, without a copy and without the GIL.

    channels: 1 grey, 3 RGB, 4 RGB and a byte of 255. Raises NotDecodedError where the file is damaged in any way; then
    `out` may hold anything.
    """
    try:
        pixels = _simplejpeg().decode_jpeg(data, _SPACES[channels], buffer=out, strict=True)
    except Exception as error:  # whatever the reader says, Pillow is asked
        raise NotDecodedError(str(error)) from error
    if pixels.nbytes != memoryview(out).nbytes:
        raise NotDecodedError(f"{pixels.nbytes} bytes decoded")


@cache
def _simplejpeg() -> Any:
    """Import simplejpeg; None where it is not installed, or Pillow decodes by a library whose bits differ."""
    try:
        import simplejpeg  # noqa: PLC0415 - optional
    except ImportError:
        return None
    from PIL import features  # noqa: PLC0415 - only runs on images pay for it

    found = features.version("libjpeg_turbo") or "0"  # None of another library
    return simplejpeg if tuple(map(int, re.findall(r"\d+", found))) >= _SAME_BITS else None
