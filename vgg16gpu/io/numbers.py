"""Numbers that a caller gives in Python: vectors, weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def finite_numbers(given: Any) -> npt.NDArray[np.float64] | None:
    """Return numbers, in whatever numpy reads, as a float64 array; None for others than finite ones.

    Text and booleans, also one among numbers, are none: numpy would take "0.5" for 0.5 and True for 1.
    """
    try:
        if _has_boolean(given) or np.asarray(given).dtype.kind in "bSU":
            return None
        found = np.asarray(given, np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last: a tensor that requires a gradient
        return None
    return found if np.isfinite(found).all() else None


def _has_boolean(given: Any) -> bool:
    """Return whether there is a boolean in lists, which an array would hold as a number."""
    if isinstance(given, list | tuple):
        return any(map(_has_boolean, given))
    return isinstance(given, bool | np.bool_) or str(getattr(given, "dtype", "")) == "torch.bool"
