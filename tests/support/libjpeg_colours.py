"""What libjpeg makes of luminance and colours, in numpy; and the planes of a JPEG file, by Pillow."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image

from vgg16gpu.program.ycbcr import factors, pitch, plane_shapes, planes_nbytes

Pixels = npt.NDArray[np.uint8]
Planes = tuple[Pixels, Pixels, Pixels]  # luminance, blue, red


def rgb(planes: Sequence[Pixels], sampling: int) -> Pixels:
    """(h, w, 3): jdsample.c's "fancy" upsampling, jdcolor.c's constants."""
    height, width = planes[0].shape
    y, cb, cr = (plane.astype(np.int64) for plane in planes)
    cb, cr = (_interpolated(plane, sampling)[:height, :width] - 128 for plane in (cb, cr))
    half = 1 << 15
    red = y + ((91881 * cr + half) >> 16)
    green = y + ((-22554 * cb - 46802 * cr + half) >> 16)
    blue = y + ((116130 * cb + half) >> 16)
    found: Pixels = np.clip(np.stack([red, green, blue], axis=-1), 0, 255).astype(np.uint8)
    return found


def _interpolated(plane: npt.NDArray[np.int64], sampling: int) -> npt.NDArray[np.int64]:
    down, across = factors(sampling)
    if across == 1:
        return plane
    if plane.shape[1] <= 2:
        return plane.repeat(down, axis=0).repeat(across, axis=1)
    if down == 1:
        return _across(plane, (1, 2), 2)
    up, low = np.concatenate([plane[:1], plane[:-1]]), np.concatenate([plane[1:], plane[-1:]])
    rows = [_across(3 * plane + other, (8, 7), 4) for other in (up, low)]
    return np.stack(rows, axis=1).reshape(2 * len(plane), -1)


def _across(plane: npt.NDArray[np.int64], halves: tuple[int, int], bits: int) -> npt.NDArray[np.int64]:
    left = np.concatenate([plane[:, :1], plane[:, :-1]], axis=1)
    right = np.concatenate([plane[:, 1:], plane[:, -1:]], axis=1)
    both = [(3 * plane + other + half) >> bits for other, half in zip((left, right), halves, strict=True)]
    return np.stack(both, axis=2).reshape(len(plane), -1)


def planes_of(data: bytes, sampling: int) -> Planes:
    """The planes of a JPEG file. Those of 4:2:2 are not the file's own: every second column of what is interpolated.

    Half as large, libjpeg makes the luminance of 4:2:0 smaller, and leaves the colours as they are.
    """
    whole = _decoded(data, 1)
    across = factors(sampling)[1]
    colours = _decoded(data, 2)[..., 1:] if sampling == 0x22 else whole[:, ::across, 1:]
    return whole[..., 0], colours[..., 0], colours[..., 1]


def _decoded(data: bytes, scale: int) -> Pixels:
    with Image.open(io.BytesIO(data), formats=["JPEG"]) as picture:
        width, height = picture.size
        picture.draft("YCbCr", (max(1, width // scale), max(1, height // scale)))
        return np.array(picture)


def planes_in(memory: Pixels, height: int, width: int, sampling: int) -> Planes:
    """The planes of a picture that begins where `memory` does, as `program.ycbcr` places them."""
    found, start = [], 0
    for rows, columns in plane_shapes(height, width, sampling):
        end = start + rows * pitch(columns)
        found.append(memory[start:end].reshape(rows, -1)[:, :columns])
        start = end
    y, cb, cr = found
    return y, cb, cr


def laid_out(planes: Sequence[Pixels], sampling: int) -> Pixels:
    """The bytes of the planes as `program.ycbcr` places them; what no sample has is 99."""
    height, width = planes[0].shape
    found = np.full(planes_nbytes(height, width, sampling), 99, np.uint8)
    for place, plane in zip(planes_in(found, height, width, sampling), planes, strict=True):
        assert place.shape == plane.shape
        place[:] = plane
    return found
