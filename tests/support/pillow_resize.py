"""Pillow's resize of 8-bit pictures in numpy and plain Python: the second judge of kernels/layout/resize.cu.

libImaging's Resample.c and Geometry.c, operation by operation: weights in double, one sum after another, then 22 bits
behind the point; 8 bits between the two passes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]
PRECISION = 22


def bilinear(x: float) -> float:
    x = abs(x)
    return 1.0 - x if x < 1.0 else 0.0


def bicubic(x: float) -> float:
    a, x = -0.5, abs(x)
    if x < 1.0:
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * a if x < 2.0 else 0.0


FILTERS: dict[str, tuple[Callable[[float], float], float]] = {"bilinear": (bilinear, 1.0), "bicubic": (bicubic, 2.0)}


def weights(size: int, resized: int, interpolation: str) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """For each place of the result the first place that it is made of, and whole weights from there on."""
    function, reach = FILTERS[interpolation]
    scale = size / resized
    stretch = max(scale, 1.0)
    support, inverse = reach * stretch, 1.0 / stretch
    for place in range(resized):
        centre = (place + 0.5) * scale
        first = max(int(centre - support + 0.5), 0)
        end = min(int(centre + support + 0.5), size)
        found = [function((other - centre + 0.5) * inverse) for other in range(first, end)]
        total = list(itertools.accumulate(found, initial=0.0))[-1]
        shares = [value / total if total else value for value in found]
        whole = [int(share * 2**PRECISION + (0.5 if share >= 0 else -0.5)) for share in shares]
        yield first, np.array(whole, np.int64)


def nearest(size: int, resized: int) -> list[int]:
    """The place that each place of the result is a copy of."""
    step = size / resized
    return [int(place) for place in itertools.accumulate(itertools.repeat(step, resized - 1), initial=step * 0.5)]


def one_pass(pixels: Pixels, resized: int, interpolation: str) -> Pixels:
    """The first axis resized."""
    if interpolation == "nearest":
        return pixels[nearest(len(pixels), resized)]
    result = np.empty((resized, *pixels.shape[1:]), np.uint8)
    for place, (first, whole) in enumerate(weights(len(pixels), resized, interpolation)):
        sums = np.tensordot(whole, pixels[first : first + len(whole)].astype(np.int64), 1)
        result[place] = np.clip((sums + 2 ** (PRECISION - 1)) >> PRECISION, 0, 255)
    return result


def resize(pixels: Pixels, rows: int, columns: int, interpolation: str, *, down_first: bool = False) -> Pixels:
    """(h, w, C) pixels as (rows, columns, C)."""

    def along(made: Pixels, axis: int) -> Any:
        return np.swapaxes(one_pass(np.swapaxes(made, 0, axis), (rows, columns)[axis], interpolation), 0, axis)

    for axis in (0, 1) if down_first else (1, 0):
        pixels = along(pixels, axis)
    return pixels
