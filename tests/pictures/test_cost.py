"""What a picture costs by its header: sizes, and which files are never of the quick kind."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from vgg16gpu.pictures.cost import QUICK_PIXELS, Cost, cost_of

HEIGHT, WIDTH = 30, 50
START = b"\x89PNG\r\n\x1a\n"


def file(kind: str, **options: object) -> bytes:
    written = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)).save(
        written, kind, **options
    )
    return written.getvalue()


def chunk(kind: bytes, content: bytes = b"") -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def header(height: int, width: int) -> bytes:
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_small_files_of_usual_kinds_are_quick(kind: str) -> None:
    assert cost_of(file(kind)) == Cost(HEIGHT, WIDTH, is_quick=True)
    assert cost_of(file(kind)).pixels == HEIGHT * WIDTH


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_many_pixels_are_not_quick(kind: str) -> None:
    side = int(QUICK_PIXELS**0.5)
    written = io.BytesIO()
    Image.new("L", (side, side + 1)).save(written, kind)
    assert cost_of(written.getvalue()) == Cost(side + 1, side, is_quick=False)


def test_a_progressive_picture_is_quick_as_encoders_make_it_and_not_with_many_scans() -> None:
    data = file("JPEG", progressive=True)
    assert cost_of(data).is_quick
    scans = data.count(b"\xff\xda")
    assert 1 < scans <= 16
    last = data.rindex(b"\xff\xda")
    assert cost_of(data[:-2] + data[last:-2] * 16 + data[-2:]) == Cost(HEIGHT, WIDTH, is_quick=False)


@pytest.mark.parametrize(
    "data",
    [
        START + header(10, 10) + header(5000, 5000) + chunk(b"IDAT") + chunk(b"IEND"),
        START + chunk(b"tEXt", b"a\0b") + header(10, 10) + chunk(b"IDAT") + chunk(b"IEND"),
        START + header(10, 10) + chunk(b"acTL", bytes(8)) + chunk(b"IDAT") + chunk(b"IEND"),
        START + header(10, 10) + chunk(b"tEXt", b"a\0b") * 5000 + chunk(b"IEND"),
        START + header(10, 10) + chunk(b"IDAT", b"a") * 5000 + chunk(b"IEND"),
    ],
    ids=["a second header", "no header first", "an animation", "thousands of texts", "thousands of parts"],
)
def test_png_files_that_may_hide_something_are_not_quick(data: bytes) -> None:
    assert not cost_of(data).is_quick


@pytest.mark.parametrize("data", [b"", b"x", START, START + b"\0\0\0\1IHDR", b"\xff\xd8\xff", b"GIF89a", b"II*\0"])
def test_what_is_no_picture_has_no_pixels(data: bytes) -> None:
    assert cost_of(data) == Cost(0, 0, is_quick=False)
