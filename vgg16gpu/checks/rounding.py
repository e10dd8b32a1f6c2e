"""Whether numbers have been rounded before they came here, to how many digits, and by how much they may be off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from vgg16gpu.checks.accuracy import Floats
from vgg16gpu.io.scores import Scores

_LOOKED_AT: Final = 1000  # numbers; all of them have to be round
_FEWEST: Final = 8  # numbers that are not zero: fewer may be round by chance
_DIGITS: Final = range(7)  # float32 has seven
_COARSER: Final = 8.0  # a step of rounding by that of float32 at the largest number: below it every number is round
_HALVES: Final = (("bfloat16", 8), ("float16", 11))  # bits of a number, the coarser first
_SMALLEST_HALF: Final = 2.0**-25  # half a step of float16 about zero


@dataclass(frozen=True, eq=False)
class Rounding:
    """How numbers were rounded."""

    words: str  # "3 decimals"
    slack: npt.NDArray[np.float64]  # by how much each may differ from what it was


def rounding_of(numbers: Scores) -> Rounding | None:
    """The coarsest rounding that explains all these numbers; None where they look like float32."""
    finite = numbers[np.isfinite(numbers) & (numbers != 0)]
    if finite.size < _FEWEST:
        return None
    values = finite[np.linspace(0, finite.size - 1, min(finite.size, _LOOKED_AT)).astype(np.intp)]
    magnitudes = np.abs(numbers.astype(np.float64))
    decimals, digits = _decimals(values), _significant(values)
    # Numbers with as many digits each have more decimals, the smaller they are.
    if decimals is not None and (digits is None or decimals <= digits):
        words = f"{decimals} decimal{'s' * (decimals != 1)}"
        return Rounding(words, np.full(magnitudes.shape, 10.0**-decimals / 2))
    if digits is not None:
        return Rounding(f"{digits} significant digit{'s' * (digits > 1)}", magnitudes * 5 * 10.0**-digits)
    for name, bits in _HALVES:
        if not np.any(values.view(np.uint32) & ((1 << (24 - bits)) - 1)):
            return Rounding(name, magnitudes * 2.0**-bits + _SMALLEST_HALF)
    return None


def _decimals(values: Scores) -> int | None:
    spacing = float(np.spacing(np.abs(values).max()))
    known = (n for n in _DIGITS if 10.0**-n > _COARSER * spacing)
    return next((n for n in known if _same(np.round(values.astype(np.float64), n), values)), None)


def _significant(values: Scores) -> int | None:
    def rounded(digits: int) -> Floats:
        return np.array([float(f"{value:.{digits - 1}e}") for value in values.tolist()])

    return next((n for n in _DIGITS[1:] if _same(rounded(n), values)), None)


def _same(rounded: Floats, values: Scores) -> bool:
    return bool(np.array_equal(rounded.astype(np.float32), values))
