"""pictures/tiff.py: what the tags of a TIFF say of its numbers; files are written byte by byte."""

from __future__ import annotations

import itertools
import struct

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.tiff_files import (
    BLACK_IS_ZERO,
    DEFLATE,
    FLOAT,
    NONE,
    RGB,
    SIGNED,
    UNSIGNED,
    UNTYPED,
    WHITE_IS_ZERO,
    tiff,
)
from vgg16gpu.errors import InputError
from vgg16gpu.pictures.images import decode

HEIGHT, WIDTH = 5, 7
ORDERS = ("<", ">")
GREY = [*itertools.product((1, 2, 4, 8, 16), ORDERS), (12, "<")]  # Pillow has no reader for 12 bits in the other order


def values(bits: int, samples: int = 1) -> npt.NDArray[np.uint32]:
    """Numbers from 0 to the largest, both among them."""
    white = (1 << bits) - 1
    found = np.linspace(0, white, HEIGHT * WIDTH * samples).round().astype(np.uint32)
    return found.reshape(HEIGHT, WIDTH, samples) if samples > 1 else found.reshape(HEIGHT, WIDTH)


def expected(numbers: npt.NDArray[np.uint32], bits: int, photometric: int) -> npt.NDArray[np.float64]:
    """What they are in 8 bits, by the specification: from black to white as many parts as numbers but one."""
    part = numbers / ((1 << bits) - 1)
    return 255 * (1 - part if photometric == WHITE_IS_ZERO else part)


@pytest.mark.parametrize(("bits", "order"), GREY)
@pytest.mark.parametrize("compression", [NONE, DEFLATE])
@pytest.mark.parametrize("photometric", [WHITE_IS_ZERO, BLACK_IS_ZERO])
@pytest.mark.parametrize("sample_format", [None, UNSIGNED])
def test_grey(bits: int, order: str, compression: int, photometric: int, sample_format: int | None) -> None:
    numbers = values(bits)
    data = tiff(numbers, bits, photometric, sample_format, order, compression)
    found = decode(data, "a.tif", 1)[..., 0]
    np.testing.assert_array_equal(found, np.floor(expected(numbers, bits, photometric) + 0.5))
    assert (decode(data, "a.tif", 3) == found[..., None]).all()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("bits", [8, 16])
def test_colours(order: str, bits: int) -> None:
    numbers = values(bits, 3)
    found = decode(tiff(numbers, bits, RGB, order=order), "a.tif", 3)
    np.testing.assert_allclose(found, expected(numbers, bits, RGB), atol=1)  # Pillow leaves the lower byte out


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize(
    ("bits", "sample_format", "words"),
    [
        (8, SIGNED, "has signed 8-bit pixels"),
        (16, SIGNED, "has signed 16-bit pixels"),
        (32, SIGNED, "has signed 32-bit pixels"),
        (32, FLOAT, "has floating-point 32-bit pixels"),
        (16, FLOAT, "has floating-point 16-bit pixels"),
        (8, 9, "has unknown 8-bit pixels"),
        (32, UNSIGNED, "32-bit pixels|samples of 32 bits, a form of TIFF that is not read"),
        (32, UNTYPED, "32-bit pixels|samples of 32 bits, a form of TIFF that is not read"),
        (10, UNSIGNED, "samples of 10 bits, a form of TIFF that is not read"),
        (14, UNSIGNED, "samples of 14 bits, a form of TIFF that is not read"),
    ],
)
def test_what_nobody_can_show_is_said_truly(
    order: str, samples: int, bits: int, sample_format: int, words: str
) -> None:
    numbers = values(8, samples).astype({SIGNED: np.int32, FLOAT: np.float32}.get(sample_format, np.uint32))
    data = tiff(numbers, bits, RGB if samples > 1 else BLACK_IS_ZERO, sample_format, order)
    for channels in (1, 3):
        with pytest.raises(InputError, match=rf"^'a\.tif' .*({words})"):
            decode(data, "a.tif", channels)


def test_twelve_bits_in_the_other_order_are_said_truly() -> None:
    data = tiff(values(12), 12, WHITE_IS_ZERO, order=">")
    try:
        found = decode(data, "a.tif", 1)[..., 0]
    except InputError as error:
        words = str(error)
        assert words.startswith("'a.tif' has samples of 12 bits, zero is white, a form of TIFF")
    else:
        np.testing.assert_array_equal(found, np.floor(expected(values(12), 12, WHITE_IS_ZERO) + 0.5))


@pytest.mark.parametrize("compression", [NONE, DEFLATE])
@pytest.mark.parametrize(("count", "place_of_values"), [(40_000, 8), (40, 1), (2, 3), (0, 1)])
@pytest.mark.filterwarnings("ignore:Tag data larger than file")
def test_a_tag_of_other_than_one_value_is_none(compression: int, count: int, place_of_values: int) -> None:
    """Pillow skips tag 262 then, as one of more values than the file has, and takes grey for white at zero."""
    numbers = values(16)
    data = bytearray(tiff(numbers, 16, BLACK_IS_ZERO, compression=compression))
    place = data.index(struct.pack("<HHL", 262, 3, 1)) + 4
    data[place : place + 8] = struct.pack("<LL", count, place_of_values)
    found = decode(bytes(data), "a.tif", 1)[..., 0]
    np.testing.assert_array_equal(found, np.floor(expected(numbers, 16, WHITE_IS_ZERO) + 0.5))


def test_every_form_is_right_or_refused() -> None:
    """Whatever Pillow makes of it: no numbers are shown that the tags do not mean."""
    forms = itertools.product(range(1, 17), (WHITE_IS_ZERO, BLACK_IS_ZERO, RGB), (None, 1, 2, 3, 4), ORDERS, (NONE,))
    shown = 0
    for bits, photometric, sample_format, order, compression in forms:
        numbers = values(bits, 3 if photometric == RGB else 1)
        data = tiff(numbers, bits, photometric, sample_format, order, compression)
        try:
            found = decode(data, "a.tif", 3)
        except InputError:
            continue
        wanted = expected(numbers, bits, photometric).reshape(HEIGHT, WIDTH, -1)
        assert sample_format in (None, UNSIGNED, UNTYPED), (bits, photometric, order, compression)
        np.testing.assert_allclose(found, np.broadcast_to(wanted, found.shape), atol=1, err_msg=f"{bits} {photometric}")
        shown += 1
    assert shown > 20
