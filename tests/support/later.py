"""Cases of a parametrized test that `make test` leaves to `make test-all`."""

from __future__ import annotations

from typing import Any

import pytest


def later(reason: str, *cases: Any) -> list[Any]:
    """Return the cases, marked slow; a tuple has the values of several parameters."""
    slow = pytest.mark.slow(reason=reason)
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=slow) for case in cases]
