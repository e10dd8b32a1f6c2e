"""The magnitudes of a value over many images, and the scale that loses least of them."""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.compiler.quantization.scheme import SMALLEST_STEP, Scale
from vgg16gpu.errors import InputError

Doubles: TypeAlias = npt.NDArray[np.float64]

METHOD: Final = "least mean squared error"  # of all elements, rounding and clipping together

_DROPPED_BITS: Final = 13  # of a float32's 23: a bin is 1/1024 of an octave wide, a quarter of the step at 255 steps
BINS: Final = 0x7F800000 >> _DROPPED_BITS  # all finite magnitudes
_STEPS_PER_OCTAVE: Final = 16
_OCTAVES: Final = 6  # below the largest magnitude; what clips more than that is noise


def check_finite(largest: float, name: str) -> None:
    """Raise InputError where the largest magnitude of the value called `name` is NaN or infinite."""
    if not np.isfinite(largest):
        raise InputError(f"value '{name}' becomes NaN or infinite on these images: int8 needs others, or use fp32")


class Histogram:
    """Counts of |x| in bins of equal relative width: the leading bits of a float are its bin.

    No range has to be known before, and the order in which images come does not matter.
    """

    def __init__(self) -> None:
        self._counts = np.zeros(BINS, np.int64)
        self.largest = 0.0

    def add(self, x: Array, name: str) -> None:
        """Count the elements of `x`, a value called `name`. Raises InputError when one is NaN or infinite."""
        magnitudes = np.abs(x, dtype=np.float32).ravel()
        largest = float(magnitudes.max(initial=0.0))
        check_finite(largest, name)
        self.add_counts(np.bincount(magnitudes.view(np.uint32) >> _DROPPED_BITS, minlength=BINS), largest)

    def add_counts(self, counts: npt.NDArray[np.int64], largest: float) -> None:
        """Add what was counted elsewhere: (BINS,) counts by a magnitude's leading bits, and the largest magnitude."""
        self._counts += counts
        self.largest = max(self.largest, largest)

    def add_all(self, other: Histogram) -> None:
        """Add what another one has counted."""
        self.add_counts(other._counts, other.largest)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever added."""
        return not self._counts.any()

    def best_scale(self, *, signed: bool) -> Scale:
        """The scale of least mean squared error; of steps that lose the same the largest.

        Tried are steps that put the largest integer at the largest magnitude, and at 1/16 of an octave less each time.
        A value that was always zero gets the integers' range for -1..1.
        """
        limit = Scale(1.0, signed).limits[1]
        ends = (self.largest or 1.0) * 2.0 ** (-np.arange(_OCTAVES * _STEPS_PER_OCTAVE + 1) / _STEPS_PER_OCTAVE)
        steps = np.maximum((ends / limit).astype(np.float32), np.float32(SMALLEST_STEP))
        magnitudes, counts = self._bins()
        errors = [_squared_error(magnitudes, counts, float(step), limit) for step in steps]
        return Scale(float(steps[np.argmin(errors)]), signed)

    def clipped_share(self, scale: Scale) -> float:
        """The share of elements that are beyond the largest magnitude that `scale` rounds to."""
        magnitudes, counts = self._bins()
        beyond = int(counts[magnitudes > scale.step * (scale.limits[1] + 0.5)].sum())
        return beyond / max(int(counts.sum()), 1)

    def _bins(self) -> tuple[Doubles, npt.NDArray[np.int64]]:
        """(centres, counts) of the bins that are not empty, by rising magnitude."""
        used = np.flatnonzero(self._counts)
        edges = np.stack([used, used + 1]).astype(np.uint32) << _DROPPED_BITS
        return edges.view(np.float32).astype(np.float64).mean(axis=0), self._counts[used]


def _squared_error(magnitudes: Doubles, counts: npt.NDArray[np.int64], step: float, limit: int) -> float:
    rounded = np.minimum(np.rint(magnitudes / step), limit) * step
    return float(np.square(magnitudes - rounded) @ counts)
