"""Judge errors: the one definition, the promises of each precision, and what rounding explains."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from vgg16gpu.errors import InputError
from vgg16gpu.io.scores import Scores

Floats: TypeAlias = npt.NDArray[np.floating[Any]]

SCORE_TOLERANCE = 1e-5  # largest score_error and layer_error that a float32 run may show against another library

# The same for each precision, against a float32 library. VGG16 with random weights, whose scores are small differences
# of large sums, comes to 4.4e-3 in fp16 and 3.2e-2 in bf16 with float32 sums of what is stored. int8 has no bound of
# its own, as calibration decides how good it can be: its mean score_error over all inputs is judged beside that of
# onnxruntime's quantised form with the same scales.
SCORE_TOLERANCES: Mapping[str, float] = {"fp32": SCORE_TOLERANCE, "fp16": 1e-2, "bf16": 8e-2, "int8": math.inf}
INT8_RATIO = 1.1  # largest quotient of those two means

FLOAT32_EPSILON = float(np.finfo(np.float32).eps)

# The error of a float32 sum of K random products of unit scale, added up in two levels, has a standard deviation of
# about 4 epsilon sqrt(K) for K up to 25088 (chunks of 128 or so); a tensor's largest deviates by some 4 of those.
_TOLERANCE_FACTOR = 16.0


def score_error(scores: Floats, reference: Floats) -> npt.NDArray[np.float64]:
    """Return max|y - r| / max|r| of each row of (N, K) scores, as (N,) float64. NaN where a score is NaN.

    A reference of zeros gives 0 for equal scores and infinity for others. Raises InputError when the shapes differ.
    """
    y, r = _pair(scores, reference)
    rows = (y.shape[0], -1) if y.ndim > 1 else (1, -1)
    with np.errstate(invalid="ignore"):  # infinity minus infinity is NaN, which fails as it should
        difference = _largest(np.abs(y - r).reshape(rows))
    return _ratio(difference, _largest(np.abs(r).reshape(rows)))


def layer_error(value: Floats, reference: Floats) -> float:
    """Return ||y - r|| / ||r|| in float64 over the whole tensor. NaN when any element is NaN."""
    y, r = _pair(value, reference)
    with np.errstate(invalid="ignore"):
        return float(_ratio(np.linalg.norm((y - r).ravel()), np.linalg.norm(r.ravel())))


def tolerance(reduction_length: int, *scales: float) -> float:
    """Return the absolute error allowed for a float32 sum of `reduction_length` products.

    `scales` are the typical magnitudes (root mean square) of the factors: 16 * epsilon * sqrt(length) * product.
    """
    return _TOLERANCE_FACTOR * FLOAT32_EPSILON * math.sqrt(reduction_length) * math.prod(scales)


@dataclass(frozen=True)
class ArrayComparison:
    """Two arrays compared elementwise; `str()` is the one-line verdict with every number."""

    shape: tuple[int, ...]
    atol: float
    rtol: float
    max_abs: float  # largest |y - r|; NaN if any difference is NaN
    max_rel: float  # largest |y - r| / |r|, only for information
    worst_index: tuple[int, ...]
    worst: tuple[float, float]  # (y, r) there
    mismatches: int

    @property
    def passed(self) -> bool:
        """No element beyond the tolerance, and none of them NaN."""
        return self.mismatches == 0

    def __str__(self) -> str:
        verdict = "match" if self.passed else f"{self.mismatches} of {math.prod(self.shape)} elements differ"
        place = ", ".join(str(i) for i in self.worst_index)
        return (
            f"{verdict}: shape {self.shape}, max abs {self.max_abs:.3g}, max rel {self.max_rel:.3g}, "
            f"worst at [{place}]: {self.worst[0]:.9g}, expected {self.worst[1]:.9g} "
            f"(atol {self.atol:.3g}, rtol {self.rtol:.3g})"
        )


def compare(actual: npt.ArrayLike, expected: npt.ArrayLike, atol: float, rtol: float = 0.0) -> ArrayComparison:
    """Compare elementwise: an element matches when |y - r| <= atol + rtol * |r|, or when both are the same infinity.

    NaN matches nothing, not even NaN. Raises InputError when the shapes differ.
    """
    y, r = _pair(np.asarray(actual), np.asarray(expected))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        difference = np.where(y == r, 0.0, np.abs(y - r))
        matches = (difference == 0) | (np.isfinite(difference) & (difference <= atol + rtol * np.abs(r)))
        relative = np.where(difference == 0, 0.0, difference / np.abs(r))
    worst = _worst(difference)
    return ArrayComparison(
        shape=y.shape,
        atol=atol,
        rtol=rtol,
        max_abs=float(_largest(difference.reshape(1, -1))[0]),
        max_rel=float(_largest(relative.reshape(1, -1))[0]),
        worst_index=worst,
        worst=(float(y[worst]), float(r[worst])) if y.size else (0.0, 0.0),
        mismatches=int(y.size - np.count_nonzero(matches)),
    )


def _pair(actual: npt.NDArray[Any], expected: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    if actual.shape != expected.shape:
        raise InputError(f"cannot compare an array of shape {actual.shape} with a reference of shape {expected.shape}")
    return actual.astype(np.float64), expected.astype(np.float64)


def _largest(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.asarray(rows.max(axis=1, initial=0.0))


def _ratio(difference: Any, scale: Any) -> npt.NDArray[np.float64]:
    # 0 / 0 is a perfect answer, not NaN; x / 0 stays infinite.
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(np.equal(difference, 0), 0.0, np.divide(difference, scale)))


def _worst(difference: npt.NDArray[np.float64]) -> tuple[int, ...]:
    if not difference.size:
        return ()
    # argmax takes the first NaN for the largest, which is what a reader wants to see.
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(difference)), difference.shape))


# Largest `score_error` of ours against onnxruntime's float32. torch's own comes to 5.3e-3 in fp16 and 3.6e-2 in bf16 on
# VGG16 with random weights, whose scores are small sums of large terms, and to 1.2e-2 and 7.7e-2 on one of an eighth of
# its width. A kernel that reads the wrong numbers comes to 1. How good int8 is depends on its calibration and
# on the weights (random ones: up to 0.2): what it promises, the sums bit for bit, is a matter of tests.
ADMITTED_ERRORS: Mapping[str, float] = {"fp32": SCORE_TOLERANCE, "fp16": 2e-2, "bf16": 0.15, "int8": 0.5}

# Largest `score_error` of a peer against ours: it must compute the same, not as precisely. In fp32 Winograd
# convolutions come to 2e-5, TF32 goes beyond 1e-3.
PEER_TOLERANCES: Mapping[str, float] = {**ADMITTED_ERRORS, "fp32": 1e-4}

# TF32 keeps as many bits of every factor as float16 does, and so has its bound.
TF32_TOLERANCE = ADMITTED_ERRORS["fp16"]


def peer_tolerance(precision: str, *, tf32: bool) -> float:
    """Return the bound for a peer that computes in this precision; `tf32`: with products of TF32."""
    return TF32_TOLERANCE if tf32 else PEER_TOLERANCES[precision]


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
    """Return the coarsest rounding that explains all these numbers; None where they look like float32."""
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
