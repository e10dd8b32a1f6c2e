"""kernels/layout/planes.cu: luminance and colours made RGB, to the bits of libjpeg, and of its arithmetic in numpy."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.support.kernel_harness import POISON, Bench, seeded
from tests.support.libjpeg_colours import Planes, laid_out, planes_of, rgb
from tests.support.selection import examples
from vgg16gpu.compiler.op_kernels.layout.planes import step, table
from vgg16gpu.devices.base import Device
from vgg16gpu.program.types import Pointer
from vgg16gpu.program.ycbcr import plane_shapes

Pixels = npt.NDArray[np.uint8]
Size = tuple[int, int]  # height, width

SAMPLINGS = {0x11: 0, 0x21: 1, 0x22: 2}  # as Pillow counts them
GAP = 5  # bytes between two pictures: they begin anywhere
SIDES = st.integers(1, 70)


def noise(size: Size, sampling: int) -> Planes:
    """Noise, and the least and the largest values in places, whose colours leave 0..255."""
    random = seeded(f"{size} {sampling}")
    y, cb, cr = (random.integers(0, 256, shape, dtype=np.uint8) for shape in plane_shapes(*size, sampling))
    for plane in (y, cb, cr):
        plane[random.random(plane.shape) < 0.3] = random.choice([0, 255])
    return y, cb, cr


def run(
    device: Device, given: Sequence[Planes], samplings: Sequence[int], *, most: int | None = None, far: int = 0
) -> list[Pixels]:
    """The pictures as they come out; between them everything stays as it was.

    far: bytes that both pools seem to begin earlier than they do, and everything in them to lie later.
    """
    bytes_of = [laid_out(planes, sampling) for planes, sampling in zip(given, samplings, strict=True)]
    heights, widths = (np.array([planes[0].shape[axis] for planes in given], np.int64) for axis in (0, 1))
    sources = np.cumsum([0] + [len(each) + GAP for each in bytes_of])
    targets = np.cumsum([0, *(3 * heights * widths + GAP)])
    pool = np.full(sources[-1] + 1, 77, np.uint8)
    for start, each in zip(sources, bytes_of, strict=False):
        pool[start : start + len(each)] = each
    words = table(sources[:-1] + far, targets[:-1] + far, heights, widths, np.array(samplings, np.int64))
    bench = Bench(device)
    room = bench.room(int(targets[-1]) + 1)
    at = [bench.put(pool), bench.put(words)]
    pool_at, out_at = (Pointer(place.arena, place.offset - far) for place in (at[0], room))
    bench.run(step(out_at, pool_at, at[1], len(given) if most is None else most))
    out = bench.get(room, (int(targets[-1]) + 1,), np.uint8)
    found = []
    for start, end, height, width in zip(targets[:-1], targets[1:], heights, widths, strict=True):
        found.append(out[start : end - GAP].reshape(height, width, 3))
        assert (out[end - GAP : end] == POISON).all()
    return found


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=hex)
def test_a_batch_of_every_kind(device: Device, sampling: int) -> None:
    sizes = [(37, 50), (1, 1), (1, 2), (2, 1), (3, 3), (4, 4), (9, 5), (16, 16), (5, 6), (60, 2), (2, 60), (31, 17)]
    given = [noise(size, sampling) for size in sizes]
    for planes, found in zip(given, run(device, given, [sampling] * len(sizes)), strict=True):
        np.testing.assert_array_equal(found, rgb(planes, sampling), err_msg=str(planes[0].shape))


@examples(60)
@given(pictures=st.lists(st.tuples(SIDES, SIDES, st.sampled_from(list(SAMPLINGS))), min_size=1, max_size=4))
def test_whatever_sizes_in_one_batch(device: Device, pictures: list[tuple[int, int, int]]) -> None:
    samplings = [sampling for _, _, sampling in pictures]
    given = [noise((height, width), sampling) for height, width, sampling in pictures]
    for planes, sampling, found in zip(given, samplings, run(device, given, samplings), strict=True):
        np.testing.assert_array_equal(found, rgb(planes, sampling))


def test_a_picture_of_more_pixels_than_threads(device: Device) -> None:
    given = [noise((375, 500), 0x22)]
    np.testing.assert_array_equal(run(device, given, [0x22])[0], rgb(given[0], 0x22))


def test_a_batch_that_is_not_full_and_lies_far_away(device: Device) -> None:
    given = [noise((20, 30), 0x21)]
    for found in (run(device, given, [0x21], most=9), run(device, given, [0x21], far=5 << 32)):
        np.testing.assert_array_equal(found[0], rgb(given[0], 0x21))


# ---- Files


def decoded(data: bytes) -> Pixels:
    with Image.open(io.BytesIO(data)) as picture:
        return np.array(picture)


@pytest.mark.parametrize("sampling", [0x11, 0x22], ids=hex)
@pytest.mark.parametrize(
    "size", [(37, 51), (16, 16), (1, 1), (2, 3), (5, 4), (4, 5), (64, 6), (33, 2), (7, 90)], ids=str
)
def test_the_planes_of_a_file_become_what_pillow_makes_of_it(device: Device, size: Size, sampling: int) -> None:
    file = io.BytesIO()
    coarse = seeded(str(size)).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    picture = Image.fromarray(coarse).resize(size[::-1], Image.Resampling.BICUBIC)
    picture.save(file, "JPEG", quality=95, subsampling=SAMPLINGS[sampling])
    planes = planes_of(file.getvalue(), sampling)
    np.testing.assert_array_equal(run(device, [planes], [sampling])[0], decoded(file.getvalue()))


def test_colours_of_half_the_width_become_what_pillow_makes_of_them(device: Device) -> None:
    """Each 8x8 samples of a colour are equal, so that they can be read off in their middle, where nothing is mixed."""
    file = io.BytesIO()
    coarse = seeded("4:2:2").integers(0, 256, (5, 4, 3), dtype=np.uint8)
    picture = Image.fromarray(coarse.repeat(8, axis=0).repeat(16, axis=1)[:37, :61])
    picture.save(file, "JPEG", quality=100, subsampling=1)
    with Image.open(io.BytesIO(file.getvalue())) as whole:
        whole.draft("YCbCr", whole.size)
        ycc = np.array(whole)
    y, cb, cr = ycc[..., 0], *(ycc[:, 8::16, channel].repeat(8, axis=1)[:, :31] for channel in (1, 2))
    expected = decoded(file.getvalue())
    assert len(np.unique(expected[0, 14:18], axis=0)) > 2  # colours are mixed where two blocks meet
    np.testing.assert_array_equal(run(device, [(y, cb, cr)], [0x21])[0], expected)
