"""Numbers that somebody else wrote, as text or in JSON."""

from __future__ import annotations

import math
import re
import sys
from typing import Final

from vgg16gpu.errors import InputError
from vgg16gpu.io.shown import shown

MOST_REAL: Final = 1e9  # of an option: in seconds 31 years, which waits of threads and processes take

_DIGITS = re.compile(r"0|[1-9][0-9]*", re.ASCII)
_REAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)


def whole_number(text: str, what: str, low: int, high: int) -> int:
    """Return the number from `low` to `high` (both at least 0) that a text of ASCII digits says.

    Digits and length are checked first, then the value: Python takes seconds to convert millions of digits, and refuses
    more than 4,300. Raises InputError, which names `what`, for signs, blanks, leading zeros, and numbers out of range.
    """
    if _DIGITS.fullmatch(text) and len(text) <= len(str(high)) and low <= int(text) <= high:
        return int(text)
    raise InputError(f"{what} is {shown(text)}; accepted is a whole number from {low} to {high}, in digits")


def digits_value(text: str, most: int) -> int | None:
    """Return the number that a text of ASCII digits says, leading zeros included; None for others and above `most`.

    Digits and length are checked first: see `whole_number`.
    """
    digits = text.lstrip("0")
    if not (text.isascii() and text.isdigit()) or len(digits) > len(str(most)):
        return None
    value = int(digits or "0")
    return value if value <= most else None


def real_value(text: str, most: float = math.inf) -> float | None:
    """Return the finite number that a text says in decimals, 1.5 or 2e-3; None for others, and beyond +-`most`.

    NaN, infinities, blanks, underscores and digits of other scripts, which `float` takes, are others.
    """
    if not _REAL.fullmatch(text):
        return None
    value = float(text)
    return value if math.isfinite(value) and abs(value) <= most else None


def whole_value(value: object, what: str, low: int, high: int) -> int:
    """Return a value of a JSON document that is a whole number from `low` to `high`; true and 1.0 are none.

    Raises InputError, which names `what`.
    """
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
        return value
    raise InputError(f"{what} is {shown(value)}; accepted is a whole number from {low} to {high}")


def is_finite_number(value: object) -> bool:
    """Return whether a value of a JSON document is a number that float has room for; true, NaN and 10**400 are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
