"""kernels/layout/resize.cu: pictures resized and cropped to the bits of Pillow, and of its arithmetic in numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.support import pillow_resize
from tests.support.kernel_harness import POISON, Bench, seeded
from tests.support.selection import examples
from vgg16gpu.compiler.op_kernels.layout.resize import (
    ENTRY_WORDS,
    HEADER_WORDS,
    MAX_SIDE,
    PassOrder,
    ResizeSpec,
    entries,
    scratch_nbytes,
    steps,
    table,
    takes,
)
from vgg16gpu.devices.base import Device
from vgg16gpu.io.preprocessing import INTERPOLATIONS, Preprocess, resized_shape
from vgg16gpu.pictures.images import load_image
from vgg16gpu.pictures.pass_order import pass_order
from vgg16gpu.program.types import Pointer

Pixels = npt.NDArray[np.uint8]
Size = tuple[int, int]  # height, width

HERE = pass_order() or PassOrder.NONE  # tests/pictures/test_pass_order.py wants it to be known
GAP = 5  # bytes between two pictures: they begin anywhere


def fit(
    size: Size, channels: int = 3, *, crop: bool = True, interpolation: str = "bilinear", reverse: bool = False
) -> ResizeSpec:
    return ResizeSpec(size, channels, crop, interpolation, reverse, HERE)


def pictures(sizes: Sequence[Size], channels: int) -> list[Pixels]:
    """Noise, and black and white in places, whose bicubic sums leave 0..255."""
    random = seeded(str(sizes))
    made = [random.integers(0, 256, (*size, channels), dtype=np.uint8) for size in sizes]
    return [np.where(random.random(p.shape) < 0.3, (p > 127) * np.uint8(255), p).astype(np.uint8) for p in made]


def target(wanted: ResizeSpec, height: int, width: int) -> tuple[int, int, int, int]:
    """Rows and columns before the crop, and where that begins."""
    rows, columns = resized_shape(height, width, wanted.size) if wanted.crop else wanted.size
    return rows, columns, round((rows - wanted.size[0]) / 2), round((columns - wanted.size[1]) / 2)


def by_pillow(wanted: ResizeSpec, pixels: Pixels) -> Pixels:
    height, width, channels = pixels.shape
    rows, columns, top, left = target(wanted, height, width)
    picture = Image.fromarray(pixels if channels == 3 else pixels[..., 0])
    resized = picture.resize((columns, rows), Image.Resampling[wanted.interpolation.upper()])
    cropped = resized.crop((left, top, left + wanted.size[1], top + wanted.size[0]))
    made = np.asarray(cropped).reshape(*wanted.size, channels)
    return made[..., ::-1] if wanted.reverse else made


def by_numpy(wanted: ResizeSpec, pixels: Pixels) -> Pixels:
    height, width, _ = pixels.shape
    rows, columns, top, left = target(wanted, height, width)
    (down_first,) = wanted.order.down_first(*(np.array([side]) for side in (height, width, rows, columns)))
    made = pillow_resize.resize(pixels, rows, columns, wanted.interpolation, down_first=bool(down_first))
    made = made[top : top + wanted.size[0], left : left + wanted.size[1]]
    return made[..., ::-1] if wanted.reverse else made


def run(
    device: Device,
    wanted: ResizeSpec,
    given: Sequence[Pixels],
    *,
    rows: Sequence[int] | None = None,
    fitted: Sequence[bool] | None = None,
    most: int | None = None,
    far: int = 0,
) -> Pixels:
    """All rows of an output for `most` pictures; what no picture went to is POISON.

    far: bytes that pool and scratch seem to begin earlier than they do, and everything in them to lie later.
    """
    most = len(given) if most is None else most
    starts = np.cumsum([0] + [p.size + GAP for p in given])
    pool = np.full(starts[-1] + 1, 77, np.uint8)
    for start, picture in zip(starts, given, strict=False):
        pool[start : start + picture.size] = picture.ravel()
    heights, widths = (np.array([p.shape[axis] for p in given], np.int32) for axis in (0, 1))
    places = np.arange(len(given)) if rows is None else np.array(rows)
    flags = None if fitted is None else np.array(fitted)
    words = table(wanted, starts[:-1] + far, heights, widths, places, flags)
    words[HEADER_WORDS:].reshape(-1, ENTRY_WORDS)[:, 3] += far // 4 >> 32
    bench = Bench(device)
    out = bench.room(most * wanted.size[0] * wanted.size[1] * wanted.channels)
    scratch = bench.room(int(scratch_nbytes(wanted, heights, widths).sum()) or 1)
    at = [bench.put(pool), bench.put(words)]
    pool_at, scratch_at = (Pointer(place.arena, place.offset - far) for place in (at[0], scratch))
    bench.run(*steps(wanted, out, pool_at, at[1], scratch_at, most))
    return bench.get(out, (most, *wanted.size, wanted.channels), np.uint8)


def check(device: Device, wanted: ResizeSpec, sizes: Sequence[Size], *, numpy: bool = True) -> None:
    given = pictures(sizes, wanted.channels)
    made = run(device, wanted, given)
    for size, picture, found in zip(sizes, given, made, strict=True):
        np.testing.assert_array_equal(found, by_pillow(wanted, picture), err_msg=f"{size}, Pillow's")
        if numpy:
            np.testing.assert_array_equal(found, by_numpy(wanted, picture), err_msg=f"{size}, numpy's")


# Smaller, larger, of the size, of one pixel, thin, with more rows and columns than a block holds at a time.
SIZES = ((50, 37), (1, 1), (9, 11), (24, 40), (1, 30), (30, 1), (28, 46), (27, 45), (200, 90), (90, 200), (150, 150))


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize("crop", [True, False], ids=["crop", "stretch"])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_batch_of_every_kind(device: Device, channels: int, crop: bool, interpolation: str) -> None:
    check(device, fit((24, 40), channels, crop=crop, interpolation=interpolation), SIZES)


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize("size", [(1, 1), (32, 32), (33, 31), (64, 65), (7, 96)], ids=str)
def test_sizes_of_networks(device: Device, size: Size, interpolation: str) -> None:
    check(device, fit(size, interpolation=interpolation, crop=False), [(40, 60), (60, 40), size])
    check(device, fit(size, interpolation=interpolation, reverse=True), [(40, 60), (60, 40), size])


SIDES = st.integers(1, 90)


@examples(100)
@given(
    sizes=st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=3),
    size=st.tuples(st.integers(1, 50), st.integers(1, 50)),
    channels=st.sampled_from([1, 3]),
    crop=st.booleans(),
    interpolation=st.sampled_from(INTERPOLATIONS),
    reverse=st.booleans(),
)
def test_whatever_sizes(
    device: Device, sizes: list[Size], size: Size, channels: int, crop: bool, interpolation: str, reverse: bool
) -> None:
    wanted = fit(size, channels, crop=crop, interpolation=interpolation, reverse=reverse and channels == 3)
    check(device, wanted, sizes)


@pytest.mark.parametrize("size", [(MAX_SIDE, 2), (2, MAX_SIDE)], ids=str)
@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_the_longest_sides(device: Device, interpolation: str, size: Size) -> None:
    """Sums of tens of thousands of pixels, a chunk of shared memory at a time."""
    check(device, fit((4, 5), crop=False, interpolation=interpolation), [size], numpy=False)


@pytest.mark.parametrize("order", PassOrder)
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_the_passes_in_the_order_of_every_version(device: Device, interpolation: str, order: PassOrder) -> None:
    wanted = replace(fit((20, 40), interpolation=interpolation, crop=False), order=order)
    given = pictures([(90, 50), (61, 60), (60, 60), (404, 4), (400, 4), (30, 130)], 3)
    for picture, found in zip(given, run(device, wanted, given), strict=True):
        np.testing.assert_array_equal(found, by_numpy(wanted, picture), err_msg=str(picture.shape))


def test_the_same_as_a_file(device: Device, tmp_path: Path) -> None:
    """What `load_image` makes of a picture, for each preset's way to fit it."""
    (picture,) = pictures([(70, 51)], 3)
    Image.fromarray(picture).save(tmp_path / "picture.png")
    for name in ("torchvision", "keras", "unit"):
        wanted = Preprocess.named(name)
        same = fit(
            (40, 30),
            crop=wanted.fit == "crop",
            interpolation=wanted.interpolation,
            reverse=wanted.channel_order == "bgr",
        )
        expected = load_image(tmp_path / "picture.png", 3, 40, 30, wanted)
        np.testing.assert_array_equal(run(device, same, [picture])[0], expected)


# ---- Batches


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize("crop", [True, False], ids=["crop", "stretch"])
def test_a_picture_that_fits_already_stays_as_it_is(device: Device, crop: bool, interpolation: str) -> None:
    wanted = fit((33, 40), crop=crop, interpolation=interpolation, reverse=True)
    given = pictures([(33, 40), (50, 60), (33, 40)], 3)
    made = run(device, wanted, given, fitted=[True, False, False])
    np.testing.assert_array_equal(made[0], given[0])
    for found, picture in zip(made[1:], given[1:], strict=True):
        np.testing.assert_array_equal(found, by_pillow(wanted, picture))


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_batch_that_is_not_full(device: Device, count: int) -> None:
    """Rows are whatever the table says, and what it does not name stays."""
    wanted, rows = fit((33, 9)), [4, 1, 3][:count]
    given = pictures([(20, 30), (60, 40), (5, 5)][:count], 3)
    made = run(device, wanted, given, rows=rows, most=5)
    for row, picture in zip(rows, given, strict=True):
        np.testing.assert_array_equal(made[row], by_pillow(wanted, picture))
    assert (made[[row for row in range(5) if row not in rows]] == POISON).all()


def test_a_pool_of_any_size(device: Device) -> None:
    """Pictures and tables that lie beyond 2^32 bytes, as seen from where pool and scratch begin."""
    wanted = fit((20, 10))
    given = pictures([(20, 30), (60, 40)], 3)
    np.testing.assert_array_equal(run(device, wanted, given, far=3 << 34), run(device, wanted, given))


@pytest.mark.sanitize
@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize("channels", [1, 3])
def test_small_pictures(device: Device, channels: int, interpolation: str) -> None:
    wanted = fit((33, 35), channels, crop=False, interpolation=interpolation)
    check(device, replace(wanted, crop=True), [(3, 4), (80, 38)])
    given = pictures([(150, 20), (20, 150)], channels)
    for order in (PassOrder.NONE, PassOrder.STEEP):
        made = run(device, replace(wanted, order=order), given)
        for picture, found in zip(given, made, strict=True):
            np.testing.assert_array_equal(found, by_numpy(replace(wanted, order=order), picture))


# ---- The Python side


def test_which_pictures_are_taken() -> None:
    heights, widths = np.array([1, 0, MAX_SIDE, MAX_SIDE + 1, 5]), np.array([1, 5, 1, 5, MAX_SIDE + 1])
    assert takes(heights, widths).tolist() == [True, False, True, False, False]
    one, far = np.array([1]), np.array([MAX_SIDE + 1])
    with pytest.raises(ValueError, match="sides from 1 to 65535"):
        entries(fit((8, 8)), one, one, far, one)
    with pytest.raises(ValueError, match="no fitted ones of 8 x 8"):
        entries(fit((8, 8)), one, one, one, one, np.array([True]))
