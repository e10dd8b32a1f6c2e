"""pictures/limits.py: what would take minutes or all memory is refused, and what encoders write is not."""

from __future__ import annotations

import struct

import pytest

from tests.support.hostile_files import bombs
from tests.support.picture_files import every_kind, exif, jpeg, with_segment
from vgg16gpu.errors import InputError
from vgg16gpu.pictures.limits import MAX_PIXELS, check_header, check_size, is_decodable_in_time


def tiff(order: str, big: bool, tag: int, pieces: int, tags: int = 1) -> bytes:
    """The header of a TIFF file with one tag of interest."""
    mark = struct.pack(f"{order}H", 43 if big else 42)
    start = {"<": b"II", ">": b"MM"}[order] + mark
    if big:
        head = start + struct.pack(f"{order}HHQ", 8, 0, 16) + struct.pack(f"{order}Q", tags)
        return head + struct.pack(f"{order}HHQ8s", tag, 4, pieces, b"")
    return start + struct.pack(f"{order}LH", 8, tags) + struct.pack(f"{order}HHL4s", tag, 4, pieces, b"")


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("tag", [273, 324])
def test_pieces_of_tiff(order, big, tag):
    check_header(tiff(order, big, tag, 1 << 17), "TIFF", "a.tif")
    check_header(tiff(order, big, 700, 1 << 30), "TIFF", "a.tif")  # a text
    with pytest.raises(InputError, match=r"'a\.tif' is in 131,073 pieces, at most 131,072 are read"):
        check_header(tiff(order, big, tag, (1 << 17) + 1), "TIFF", "a.tif")


def test_endless_directories_of_tiff():
    with pytest.raises(InputError, match="'a' is in 1,000,000 pieces"):
        check_header(tiff("<", True, 700, 1, tags=1_000_000), "TIFF", "a")
    for cut in range(30):
        check_header(tiff("<", True, 273, 1 << 20)[:cut], "TIFF", "a")  # Pillow says what is wrong
    check_header(b"II+\0\x08\0\0\0" + b"\xff" * 40, "TIFF", "a")


@pytest.mark.parametrize("name", sorted(every_kind()))
def test_what_encoders_write_is_not_refused(name):
    data = every_kind()[name]
    for kind in ("JPEG", "TIFF", "PNG"):
        check_header(data, kind, name)
    check_size(data, "JPEG" if name.endswith("jpg") else "PNG", (12_000, 14_000), MAX_PIXELS, name)


def test_scans():
    """The more pixels, the fewer scans; what only looks like scans does not count."""
    data = bombs()[b"bomb-scans.jpg"]
    assert is_decodable_in_time(data, 64 * 64)
    assert not is_decodable_in_time(data, 10_000 * 10_000)
    with pytest.raises(InputError, match="'a' has more scans than are decoded in seconds"):
        check_size(data, "JPEG", (10_000, 10_000), MAX_PIXELS, "a")
    check_size(data, "PNG", (10_000, 10_000), MAX_PIXELS, "a")
    assert is_decodable_in_time(jpeg() + b"\xff\xda" * 100_000, MAX_PIXELS)  # a film behind the picture
    assert is_decodable_in_time(jpeg(64, 64, progressive=True) + bytes(10_000), MAX_PIXELS)


def test_blocks_of_exif_that_pillow_would_join_for_minutes():
    block = exif("<") + bytes(65_000)
    few = with_segment(jpeg(), 0xE1, block)
    check_header(few + bytes(17 << 20), "JPEG", "a")
    segment = few[2 : few.index(b"\xff", 2 + len(block))]
    many = few[:2] + segment * 300 + few[2:]
    with pytest.raises(InputError, match="'a' has 301 blocks of EXIF, at most 256 are read"):
        check_header(many, "JPEG", "a")
