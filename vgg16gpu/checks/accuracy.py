"""The one definition of error, used by the tests, the testbench and the benchmark.

Scores are judged by `score_error` (norm-wise, per input), layers by `layer_error`, single kernels elementwise against
`tolerance`. What each precision promises of scores and layers is in `SCORE_TOLERANCES`. Elementwise relative error is
printed and never a criterion: two correct libraries differ by 1e-2 in it where a value is close to zero. Every
criterion is written as "not (error <= bound)", so NaN never passes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vgg16gpu.errors import InputError

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
    """max|y - r| / max|r| of each row of (N, K) scores, as (N,) float64. NaN where a score is NaN.

    A reference of zeros gives 0 for equal scores and infinity for others. Raises InputError when the shapes differ.
    """
    y, r = _pair(scores, reference)
    rows = (y.shape[0], -1) if y.ndim > 1 else (1, -1)
    with np.errstate(invalid="ignore"):  # infinity minus infinity is NaN, which fails as it should
        difference = _largest(np.abs(y - r).reshape(rows))
    return _ratio(difference, _largest(np.abs(r).reshape(rows)))


def layer_error(value: Floats, reference: Floats) -> float:
    """||y - r|| / ||r|| in float64 over the whole tensor. NaN when any element is NaN."""
    y, r = _pair(value, reference)
    with np.errstate(invalid="ignore"):
        return float(_ratio(np.linalg.norm((y - r).ravel()), np.linalg.norm(r.ravel())))


def tolerance(reduction_length: int, *scales: float) -> float:
    """The absolute error allowed for a float32 sum of `reduction_length` products.

    `scales` are the typical magnitudes (root mean square) of the factors: 16 * epsilon * sqrt(length) * product.
    """
    return _TOLERANCE_FACTOR * FLOAT32_EPSILON * math.sqrt(reduction_length) * math.prod(scales)


def rms(array: Floats) -> float:
    """Root mean square of the elements, in float64: the scale that `tolerance` asks for."""
    return float(np.sqrt(np.mean(np.square(array, dtype=np.float64)))) if array.size else 0.0


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


def assert_close(
    actual: npt.ArrayLike, expected: npt.ArrayLike, atol: float, rtol: float = 0.0, label: str = ""
) -> None:
    """For tests: raise AssertionError with shape, errors, worst index and count unless every element matches."""
    result = compare(actual, expected, atol, rtol)
    if not result.passed:
        raise AssertionError(f"{label}: {result}" if label else str(result))


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
