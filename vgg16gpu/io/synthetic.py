"""Structured pictures made from integers alone, so that they are the same bytes on every machine.

They calibrate a generated model, feed the testbench and serve as the demo's sample image. Noise would not do: a deep
network answers nearly the same to every noise image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from vgg16gpu.io.files import atomic_writer
from vgg16gpu.io.labels import IMAGENET_MEAN, IMAGENET_STD
from vgg16gpu.io.normalize import Pixels, normalise

Plane: TypeAlias = npt.NDArray[np.int64]

CALIBRATION_SEED = 1  # the pictures that centre a generated model's scores
TESTBENCH_SEED = 2  # the pictures it is asked about
SCALES_SEED = 3  # the pictures that fix the scales of fp32 on tensor cores

_UNIT = 1024  # side of a picture in the units of the patterns, whatever its size in pixels


class _Dice:
    """Integers from raw PCG64 output, which numpy promises not to change."""

    def __init__(self, *seed: int) -> None:
        self._bits = np.random.PCG64(list(seed))

    def __call__(self, low: int, high: int) -> int:
        """Draw an integer with low <= value < high."""
        return low + int(self._bits.random_raw()) % (high - low)


def _gradient(x: Plane, y: Plane, dice: _Dice) -> Plane:
    across, down = dice(-4, 5), dice(1, 5)
    ramp = across * x + down * y
    low, high = int(ramp.min()), int(ramp.max())
    return (ramp - low) * 255 // max(high - low, 1)


def _stripes(x: Plane, y: Plane, dice: _Dice) -> Plane:
    across, down, period = dice(-4, 5), dice(1, 5), dice(120, 480)
    return (across * x + down * y) // period % 2 * 255


def _checkerboard(x: Plane, y: Plane, dice: _Dice) -> Plane:
    width, height = dice(40, 260), dice(40, 260)
    return (x // width + y // height) % 2 * 255


def _disks(x: Plane, y: Plane, dice: _Dice) -> Plane:
    level = np.zeros(np.broadcast_shapes(x.shape, y.shape), np.int64)
    for _ in range(dice(1, 7)):
        centre_x, centre_y, radius, shade = dice(0, _UNIT), dice(0, _UNIT), dice(80, 360), dice(100, 256)
        level = np.where((x - centre_x) ** 2 + (y - centre_y) ** 2 < radius**2, shade, level)
    return level


def _rings(x: Plane, y: Plane, dice: _Dice) -> Plane:
    centre_x, centre_y, area = dice(0, _UNIT), dice(0, _UNIT), dice(20_000, 120_000)
    return ((x - centre_x) ** 2 + (y - centre_y) ** 2) // area % 2 * 255


def _blobs(x: Plane, y: Plane, dice: _Dice) -> Plane:
    level = np.zeros(np.broadcast_shapes(x.shape, y.shape), np.int64)
    for _ in range(dice(2, 6)):
        centre_x, centre_y, area = dice(0, _UNIT), dice(0, _UNIT), dice(60, 240) ** 2
        level = level + 255 * area // (area + (x - centre_x) ** 2 + (y - centre_y) ** 2)
    return np.minimum(level, 255)


_PATTERNS: tuple[Callable[[Plane, Plane, _Dice], Plane], ...] = (
    _disks,
    _stripes,
    _gradient,
    _checkerboard,
    _blobs,
    _rings,
)


def _picture(size: int, seed: int, index: int) -> Pixels:
    dice = _Dice(seed, index)
    grid = np.arange(size, dtype=np.int64) * _UNIT // size
    level = _PATTERNS[index % len(_PATTERNS)](grid[None, :], grid[:, None], dice)
    planes = []
    for _ in range(3):
        back = dice(0, 256)
        front = (back + dice(96, 161)) % 256  # colours far apart: pale pictures get pale answers
        planes.append((back * (255 - level) + front * level) // 255)
    return np.stack(planes, axis=-1).astype(np.uint8)


def structured_images(count: int, size: int, seed: int) -> Pixels:
    """Draw disks, stripes, gradients, boards, blobs and rings in two colours each: (count, size, size, 3), RGB.

    Integer arithmetic only. The first images of a longer series are those of a shorter one, and the same pictures come
    at every size.
    """
    return np.stack([_picture(size, seed, index) for index in range(count)])


def typical_inputs(
    count: int, shape: tuple[int, ...], mean: Sequence[float], std: Sequence[float], seed: int
) -> npt.NDArray[np.float32]:
    """Return structured pictures as normalised float32 (count, C, H, W) for a sample's `shape` (C, H, W).

    A model of another depth than RGB gets the three planes again and again.
    """
    channels, height, width = shape
    pictures = structured_images(count, max(height, width), seed)
    return normalise(pictures[:, :height, :width, np.arange(channels) % 3], mean, std)


def write_sample_text(path: str | Path, size: int) -> None:
    """Write one picture as the text that `infer` reads: 3 * size * size normalised numbers, C, H, W order.

    Nine digits bring the same float32 back. Raises ModelError when the file cannot be written.
    """
    picture = structured_images(1, size, TESTBENCH_SEED)
    rows = normalise(picture, IMAGENET_MEAN, IMAGENET_STD).reshape(-1, size)
    with atomic_writer(Path(path)) as stream:
        for row in rows:
            stream.write((" ".join(f"{value:.9g}" for value in row) + "\n").encode())
