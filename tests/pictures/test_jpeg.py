"""pictures/jpeg.py: Pillow's bits, the same outcome with and without simplejpeg, and what is left to Pillow."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from PIL import Image, ImageOps

from tests.support.picture_files import changed, every_kind, exif, frame_at, jpeg, oriented, pixels, with_segment
from vgg16gpu.errors import InputError
from vgg16gpu.pictures import jpeg as fast
from vgg16gpu.pictures.images import decode, decode_by_pillow
from vgg16gpu.pictures.jpeg import NotDecodedError, decode_jpeg, jpeg_shape
from vgg16gpu.pictures.jpeg_header import count_scans

simplejpeg = pytest.importorskip("simplejpeg")
if fast._simplejpeg() is None:
    pytest.skip("this Pillow is built with an older libjpeg-turbo, or another library", allow_module_level=True)

SIZES = [(1, 1), (1, 17), (8, 8), (15, 33), (16, 16), (37, 50), (97, 3)]
SUBSAMPLINGS = ["444", "422", "420", "440", "411"]


def pillows(data: bytes, channels: int) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as file:
        picture = ImageOps.exif_transpose(file).convert("RGB" if channels == 3 else "L")
    return np.asarray(picture).reshape(picture.height, picture.width, channels)


def assert_same_bits(data: bytes, channels: int) -> None:
    """That simplejpeg takes the file, writes nothing beside its pixels, and they are Pillow's."""
    expected = pillows(data, channels)
    assert jpeg_shape(data, channels) == expected.shape[:2]
    around = np.full(expected.size + 200, 77, np.uint8)
    decode_jpeg(data, channels, around[100:-100])
    np.testing.assert_array_equal(around[100:-100].reshape(expected.shape), expected)
    assert set(around[:100]) == set(around[-100:]) == {77}
    np.testing.assert_array_equal(decode(data, "a.jpg", channels), expected)


@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
@pytest.mark.parametrize("size", SIZES)
def test_bits_are_pillows(size, subsampling):
    for quality in (1, 30, 75, 100):
        assert_same_bits(
            simplejpeg.encode_jpeg(pixels(*size), quality, colorspace="RGB", colorsubsampling=subsampling), 3
        )


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_blocks": 2}, {"optimize": True}])
def test_bits_are_pillows_of_every_coding(options, channels):
    for size in SIZES:
        assert_same_bits(jpeg(*size, channels, **options), channels)
        assert_same_bits(jpeg(*size, 1, **options), 3)  # grey becomes three equal channels


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("orientation", range(10))
def test_orientation(order, orientation):
    data = oriented(jpeg(12, 20), orientation, order)
    assert (jpeg_shape(data, 3) is not None) == (orientation == 1)
    np.testing.assert_array_equal(decode(data, "a.jpg", 3), pillows(data, 3))


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(
    ("entry", "taken"),
    [
        ((0x0112, 3, 1, b"\1\0\0\0"), {"<"}),  # 1 in the one order, 256 in the other
        ((0x0112, 3, 1, b"\0\1\0\0"), {">"}),
        ((0x0112, 4, 1, b"\1\0\0\0"), set()),  # LONG
        ((0x0112, 4, 1, b"\0\0\0\1"), set()),
        ((0x0112, 3, 2, b"\1\0\1\0"), set()),
        ((0x0112, 3, 0, b"\1\0\0\0"), set()),
        ((0x0110, 2, 4, b"\x12\x01\x03\0"), {"<", ">"}),  # no orientation, though its bytes are there
        ((0x0110, 2, 5, b"\xff\xff\0\0"), set()),  # its text lies beyond the end
        ((0x011A, 5, 0, b"\0\0\0\0"), set()),
        ((0x011A, 2, 4, b"abc\0"), set()),
        ((0x0128, 2, 1, b"\2\0\0\0"), set()),
    ],
)
def test_only_a_plain_orientation_is_taken(order, entry, taken):
    data = with_segment(jpeg(12, 20), 0xE1, exif(order, entry))
    assert (jpeg_shape(data, 3) is not None) == (order in taken)


def test_damaged_exif_is_for_pillow():
    block = exif("<", (0x0112, 3, 1, b"\1\0\0\0"))
    for cut in range(6, len(block)):
        data = with_segment(jpeg(), 0xE1, block[:cut])
        assert jpeg_shape(data, 3) is None
        same_outcome(data)
    assert jpeg_shape(with_segment(with_segment(jpeg(), 0xE1, block), 0xE1, block), 3) is None  # Pillow joins them
    twice = exif("<", (0x0112, 3, 1, b"\1\0\0\0"), (0x0112, 3, 1, b"\6\0\0\0"))
    assert jpeg_shape(with_segment(jpeg(), 0xE1, twice), 3) is None


@pytest.mark.parametrize("form", ['<x tiff:Orientation="%d"/>', "<tiff:Orientation>%d</tiff:Orientation>"])
@pytest.mark.parametrize("said", [None, 1])
@pytest.mark.parametrize("orientation", [1, 6])
def test_orientation_in_xmp(form, said, orientation):
    """Pillow asks it where EXIF says nothing."""
    data = with_segment(jpeg(12, 20), 0xE1, b"http://ns.adobe.com/xap/1.0/\0" + (form % orientation).encode())
    data = data if said is None else oriented(data, said)
    assert (jpeg_shape(data, 3) is not None) == (said == 1 or orientation == 1)
    np.testing.assert_array_equal(decode(data, "a.jpg", 3), pillows(data, 3))


def test_what_else_is_left_to_pillow():
    colour = jpeg()
    frame = frame_at(colour)
    left = {
        "colour read as grey": (colour, 1),
        "no JPEG": (every_kind()["colour.png"], 3),
        "empty": (b"", 3),
        "CMYK": (every_kind()["cmyk.jpg"], 3),
        "12 bits": (changed(colour, frame, b"\x0c"), 3),
        "no rows": (changed(colour, frame + 1, b"\0\0"), 3),
        "no columns": (changed(colour, frame + 3, b"\0\0"), 3),
        "too many pixels": (changed(colour, frame + 1, struct.pack(">HH", 65_500, 65_500)), 3),
        "two components": (changed(colour, frame + 5, b"\2"), 3),
        "a sampling without a name": (changed(colour, frame + 7, b"\x31"), 3),
        "finer colours": (changed(colour, frame + 10, b"\x21"), 3),
        "one number for two components": (changed(colour, frame + 9, b"\1"), 3),
        "lossless": (changed(colour, frame - 3, b"\xc3"), 3),
        "arithmetic": (changed(colour, frame - 3, b"\xc9"), 3),
        "RGB inside": (with_segment(colour, 0xEE, b"Adobe\0\x64\0\0\0\0\0"), 3),
        "a short Adobe block": (with_segment(colour, 0xEE, b"Adobe\0"), 3),
        "a short JFIF block": (with_segment(colour, 0xE0, b"JFIF\0"), 3),
        "a short profile": (with_segment(colour, 0xE2, b"ICC_PROFILE\0\1"), 3),
        "half a Photoshop block": (with_segment(colour, 0xED, b"Photoshop 3.0\x008BIM\4\4"), 3),
        "a table of 16 bits": (with_segment(colour, 0xDB, b"\x13" + bytes(128)), 3),
        "half a table": (with_segment(colour, 0xDB, bytes(30)), 3),
        "bytes between segments": (colour[:2] + b"\0" + colour[2:], 3),
        "a second frame": (with_segment(colour, 0xC0, colour[frame : frame + 15]), 3),
        "an unknown marker": (with_segment(colour, 0xF7, b""), 3),
    }
    taken = [what for what, (data, channels) in left.items() if jpeg_shape(data, channels)]
    assert taken == []
    for data, channels in left.values():
        same_outcome(data, channels)


@pytest.mark.filterwarnings("ignore")  # of Image.open, about MPF
@pytest.mark.parametrize(
    ("marker", "content"),
    [
        (0xEE, b"Adobe\0\x64\0\0\0\0\1"),
        (0xEE, b"not of Adobe"),
        (0xED, b"Photoshop 3.0\x008BIM\4\4\0\0\0\0\0\3abc\x008BIM\4\5\0\0\0\0\0\0"),
        (0xED, b"Photoshop 3.0\0"),
        (0xE2, b"ICC_PROFILE\0\1\1profile"),
        (0xE2, b"MPF\0II*\0"),
        (0xE5, b"anything"),
        (0xFE, b"a comment"),
        (0xE1, b"http://ns.adobe.com/xmp/extension/\0tiff:Orientation"),
    ],
)
def test_usual_segments_are_taken(marker, content):
    assert_same_bits(with_segment(jpeg(), marker, content), 3)


def same_outcome(data: bytes, channels: int = 3) -> bool:
    """Whether there are pixels; with simplejpeg and without it they are the same, or the same is said."""
    outcomes = []
    for read in (decode, decode_by_pillow):
        try:
            outcomes.append(read(data, "a.jpg", channels))
        except InputError as error:
            outcomes.append(str(error))
    assert type(outcomes[0]) is type(outcomes[1]), outcomes
    np.testing.assert_array_equal(*outcomes)
    return not isinstance(outcomes[0], str)


@pytest.mark.filterwarnings("ignore")  # of Pillow, about damaged EXIF
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_blocks": 1}])
def test_damaged_files_have_the_same_outcome(options):
    data = oriented(jpeg(24, 40, **options), 1)
    good = sum(same_outcome(data[: len(data) * tenth // 20]) for tenth in range(20))
    assert good < 3
    random = np.random.default_rng(5)
    read = 0
    for _ in range(150):
        place, value = int(random.integers(2, len(data))), bytes(random.integers(0, 256, 1, dtype=np.uint8))
        read += same_outcome(changed(data, place, value))
    assert 15 < read < 150


def test_damage_is_said_and_not_shown():
    data = jpeg(64, 64)
    assert jpeg_shape(data[:-40], 3) == (64, 64)
    with pytest.raises(NotDecodedError):
        decode_jpeg(data[:-40], 3, bytearray(64 * 64 * 3))
    with pytest.raises(NotDecodedError):
        decode_jpeg(data, 3, bytearray(64 * 64 * 3 - 1))
    with pytest.raises(NotDecodedError):
        decode_jpeg(data, 3, bytearray(64 * 64 * 3 + 1))


@pytest.mark.parametrize(
    ("version", "taken"), [(None, False), ("2.1.5.1", False), ("3.0.0", False), ("3.0.3", True), ("3.1.2", True)]
)
def test_another_library_below_pillow_is_not_trusted(monkeypatch, version, taken):
    from PIL import features

    monkeypatch.setattr(features, "version", lambda _: version)
    fast._simplejpeg.cache_clear()
    try:
        assert (jpeg_shape(jpeg(), 3) is not None) == taken
    finally:
        fast._simplejpeg.cache_clear()


def test_scans_are_counted_up_to_the_end():
    data = jpeg(40, 40, progressive=True)
    assert count_scans(data) == 10
    assert count_scans(with_segment(data, 0xE5, b"\xff\xda" * 100)) == 10  # a preview, say
    assert count_scans(data + b"\xff\xda\0\x02" * 100) == 10  # what lies behind the end
    assert count_scans(jpeg(40, 40, restart_marker_blocks=1)) == 1
    assert count_scans(b"") == count_scans(b"\xff") == 0
