"""Arrays that must be close to others, elementwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from vgg16gpu.checks.accuracy import compare


def rms(array: npt.NDArray[np.floating[Any]]) -> float:
    """Return the root mean square of the elements, in float64: the scale that `accuracy.tolerance` asks for."""
    return float(np.sqrt(np.mean(np.square(array, dtype=np.float64)))) if array.size else 0.0


def assert_close(
    actual: npt.ArrayLike, expected: npt.ArrayLike, atol: float, rtol: float = 0.0, label: str = ""
) -> None:
    """Raise AssertionError with shape, errors, worst index and count unless every element matches."""
    result = compare(actual, expected, atol, rtol)
    if not result.passed:
        raise AssertionError(f"{label}: {result}" if label else str(result))
