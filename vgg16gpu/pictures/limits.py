"""What a picture may cost: a small file can ask for more memory or time than there is, and is refused unread then."""

from __future__ import annotations

from typing import Final

from vgg16gpu.errors import InputError
from vgg16gpu.pictures.jpeg_header import count_scans
from vgg16gpu.pictures.tiff import TOO_MANY, entries

MAX_PIXELS: Final = 178_956_970  # of any picture on the way; Pillow refuses to make larger ones, too
MAX_NBYTES: Final = 1 << 30  # of a file; no picture of MAX_PIXELS needs more

_MAX_WALK: Final = 32 * MAX_PIXELS  # pixels of all scans of a JPEG together: some seconds; encoders make a dozen scans
_SCAN_MARKER, _SCAN_NBYTES = b"\xff\xda", 10

_MAX_PIECES: Final = 1 << 17  # of a TIFF, strips or tiles: some seconds
_STRIPS, _TILES = 273, 324

_LARGE_JPEG: Final = 16 << 20  # bytes
_MAX_EXIF: Final = 256  # blocks, which Pillow joins one by one


def is_decodable_in_time(data: bytes, pixels: int) -> bool:
    """Return whether a JPEG file does not walk so often over so many pixels that it would hold up all others."""
    # Counting takes a while: first what the file has room for, then what looks like scans, and only then what are some.
    most = _MAX_WALK // pixels
    return len(data) // _SCAN_NBYTES <= most or data.count(_SCAN_MARKER) <= most or count_scans(data) <= most


def check_header(data: bytes, kind: str, name: str) -> None:
    """Raise InputError for a JPEG or TIFF file whose header alone would take Pillow minutes."""
    if kind == "TIFF" and (pieces := _pieces(data)) > _MAX_PIECES:
        raise InputError(
            f"'{name}' is in {pieces:,} pieces, at most {_MAX_PIECES:,} are read (a decompression bomb?); "
            "write it with larger strips or tiles"
        )
    if kind == "JPEG" and len(data) > _LARGE_JPEG and (blocks := data.count(b"Exif\0\0")) > _MAX_EXIF:
        raise InputError(
            f"'{name}' has {blocks:,} blocks of EXIF, at most {_MAX_EXIF} are read (a decompression bomb?); "
            "write it anew"
        )


def check_size(data: bytes, kind: str, size: tuple[int, int], most: int | None, name: str) -> None:
    """Raise InputError for a picture of more than `most` pixels, None for any number, and for endless JPEG."""
    pixels = size[0] * size[1]
    if most is not None and pixels > most:
        raise InputError(
            f"'{name}' has {size[0]}x{size[1]} pixels, at most {most:,} are decoded (a decompression bomb?); "
            "make it smaller"
        )
    if kind == "JPEG" and not is_decodable_in_time(data, pixels):
        raise InputError(f"'{name}' has more scans than are decoded in seconds (a decompression bomb?); write it anew")


def _pieces(data: bytes) -> int:
    """Return the strips or tiles that a TIFF file says it has; its tags where these are too many."""
    found = (entry for directory in entries(data) for entry in directory)
    return max((entry.values for entry in found if entry.tag in (_STRIPS, _TILES, TOO_MANY)), default=0)
