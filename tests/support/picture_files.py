"""Pictures as files of every kind, small, and no two alike; their headers changed by hand where no encoder does it."""

from __future__ import annotations

import io
import struct
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image


def pixels(height: int, width: int, channels: int = 3, seed: int = 0) -> npt.NDArray[np.uint8]:
    """Something smooth with noise on it, (h, w, channels) or (h, w)."""
    random = np.random.default_rng((seed, height, width))
    coarse = random.integers(0, 256, (max(1, height // 8), max(1, width // 8), 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC), np.int16)
    found: npt.NDArray[np.uint8] = np.clip(smooth + random.integers(-20, 21, smooth.shape), 0, 255).astype(np.uint8)
    return found if channels == 3 else found[:, :, 0]


def encoded(picture: Any, kind: str, **options: Any) -> bytes:
    """A picture, or pixels, as a file."""
    stream = io.BytesIO()
    (picture if isinstance(picture, Image.Image) else Image.fromarray(picture)).save(stream, kind, **options)
    return stream.getvalue()


def jpeg(height: int = 20, width: int = 30, channels: int = 3, seed: int = 0, **options: Any) -> bytes:
    """A JPEG file."""
    return encoded(pixels(height, width, channels, seed), "JPEG", **options)


def with_segment(data: bytes, marker: int, content: bytes) -> bytes:
    """A JPEG file with one segment more, the first."""
    return data[:2] + bytes((0xFF, marker)) + struct.pack(">H", len(content) + 2) + content + data[2:]


def exif(order: str, *entries: tuple[int, int, int, bytes]) -> bytes:
    """An EXIF segment of (tag, type, count, value of 4 bytes) in "<" or ">" order."""
    start = {"<": b"II*\0", ">": b"MM\0*"}[order]
    directory = b"".join(struct.pack(f"{order}HHL", *entry[:3]) + entry[3] for entry in entries)
    return b"Exif\0\0" + start + struct.pack(f"{order}LH", 8, len(entries)) + directory + bytes(4)


def oriented(data: bytes, orientation: int, order: str = "<") -> bytes:
    """A JPEG file with the orientation in its EXIF segment."""
    return with_segment(data, 0xE1, exif(order, (0x0112, 3, 1, struct.pack(f"{order}HH", orientation, 0))))


def frame_at(data: bytes) -> int:
    """Where in a JPEG file the frame's content begins, behind marker and length."""
    place = 2
    while data[place + 1] not in (0xC0, 0xC1, 0xC2):
        place += 2 + int.from_bytes(data[place + 2 : place + 4], "big")
    return place + 4


def changed(data: bytes, place: int, value: bytes) -> bytes:
    """The file with other bytes at a place."""
    return data[:place] + value + data[place + len(value) :]


def resized_jpeg(data: bytes, height: int, width: int) -> bytes:
    """A JPEG file that claims another size."""
    return changed(data, frame_at(data) + 1, struct.pack(">HH", height, width))


@cache
def every_kind() -> dict[str, bytes]:
    """A whole file of each kind by name, with its ending."""
    colour = Image.fromarray(pixels(24, 32))
    grey, palette, clear = colour.convert("L"), colour.quantize(16), colour.convert("RGBA")
    deep = Image.fromarray(np.arange(24 * 32, dtype=np.uint16).reshape(24, 32) * 80)
    files = {
        "colour.jpg": encoded(colour, "JPEG"),
        "grey.jpeg": encoded(grey, "JPEG"),
        "progressive.jpg": encoded(colour, "JPEG", progressive=True),
        "cmyk.jpg": encoded(colour.convert("CMYK"), "JPEG"),
        "turned.jpg": oriented(encoded(colour, "JPEG"), 6),
        "colour.png": encoded(colour, "PNG"),
        "palette.png": encoded(palette, "PNG", transparency=bytes(16)),
        "clear.png": encoded(clear, "PNG"),
        "deep.png": encoded(deep, "PNG"),
        "palette.gif": encoded(palette, "GIF"),
        "moving.gif": encoded(palette, "GIF", save_all=True, append_images=[grey.quantize(4)]),
        "plain.tif": encoded(colour, "TIFF"),
        "packed.tiff": encoded(colour, "TIFF", compression="tiff_lzw"),
        "inner.tif": encoded(colour, "TIFF", compression="jpeg"),
        "deep.tif": encoded(deep, "TIFF", compression="tiff_deflate"),
        "plain.bmp": encoded(colour, "BMP"),
        "palette.bmp": encoded(palette, "BMP"),
        "lossy.webp": encoded(colour, "WEBP"),
        "clear.webp": encoded(clear, "WEBP", lossless=True),
    }
    Image.init()
    if "AVIF" in Image.SAVE:  # from Pillow 11.3 on, where it was built so
        files["colour.avif"] = encoded(colour, "AVIF")
    return files
