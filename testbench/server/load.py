"""Loads: so many clients that each wait for their answer (closed), or arrivals that wait for nobody (open)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Times: TypeAlias = npt.NDArray[np.float64]

SHARES: Final = (0.25, 0.5, 0.8)  # of the best closed loop, where no rates are asked for
PERMILLE: Final = {"p50": 500, "p90": 900, "p99": 990, "p99.9": 999}


@dataclass(frozen=True)
class Load:
    """amount: clients of a closed loop, or requests a second of an open one."""

    kind: Literal["closed", "open"]
    amount: float

    def __str__(self) -> str:
        return f"{self.amount:g} clients" if self.kind == "closed" else f"{self.amount:,.0f} requests/s"


def poisson(rate: float, seconds: float, seed: int) -> Times:
    """When requests of a Poisson process arrive within so many seconds, ascending; the same for the same seed.

    Given their number, arrivals of such a process are independent and uniform.
    """
    dice = np.random.default_rng(seed)
    return np.sort(dice.uniform(0.0, seconds, dice.poisson(rate * seconds)))


def percentiles(latencies: Times) -> dict[str, float | None]:
    """By nearest rank: the smallest that so many percent are not above; None of none."""
    if not len(latencies):
        return dict.fromkeys(PERMILLE)
    ordered = np.sort(latencies)
    return {name: float(ordered[-(-len(ordered) * share // 1000) - 1]) for name, share in PERMILLE.items()}
