"""io/numbers.py: numbers in what a caller gives, and what numpy would take for numbers."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from vgg16gpu.io.numbers import finite_numbers


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (2, 2.0),
        (np.float16(0.5), 0.5),
        ([1, 2.5], [1, 2.5]),
        ((Fraction(1, 4), 1), [0.25, 1]),
        (np.ones((1, 3, 1, 1), np.uint8), np.ones((1, 3, 1, 1))),
    ],
)
def test_numbers(given: Any, expected: Any) -> None:
    found = finite_numbers(given)
    assert found is not None
    assert found.dtype == np.float64
    assert np.array_equal(found, expected)


@pytest.mark.parametrize(
    "given",
    [
        *(True, np.True_, [True, 1.0], (1.0, (np.False_,)), np.zeros(3, bool), "0.5", ["0.5"], b"1"),
        *(None, 1j, [[1], [1, 2]], {"a": 1}, object(), 10**400, float("nan"), [1, float("inf")]),
    ],
    ids=lambda given: "object" if type(given) is object else repr(given)[:40],  # the same in all workers
)
def test_what_are_none(given: Any) -> None:
    assert finite_numbers(given) is None
