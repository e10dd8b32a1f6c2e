"""What the five reports published: every time of theirs, and the rooflines of the cards that they name."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

from vgg16gpu_lab.problem import Problem

TABLES: Final = Path(__file__).resolve().parent / "data" / "seeds_tables.csv"

Key: TypeAlias = tuple[str, str, str, str, str]  # seed, table, size, method, parameter


@dataclass(frozen=True)
class Card:
    """A card's roofline by its data sheet."""

    name: str
    flop_per_s: float  # float32
    bytes_per_s: float

    def percent(self, problem: Problem, seconds: float) -> float:
        """Return the least time for this problem in percent of `seconds`."""
        return 100 * max(problem.flop / self.flop_per_s, problem.nbytes / self.bytes_per_s) / seconds


# Quadro M4000: 1664 FFMA a clock at 773 MHz, 256 bits of GDDR5 at 6 Gbit/s (NVIDIA's data sheet).
CARDS: Final[Mapping[str, Card]] = {"S2": Card("Quadro M4000", 2.573e12, 192.3e9)}


@cache
def published() -> Mapping[Key, float]:
    """Return the milliseconds of every row; for rows of the table "claim" the ratio, a plain number."""
    with TABLES.open(newline="", encoding="utf-8") as stream:
        return {
            (row["seed"], row["table"], row["size"], row["method"], row["parameter"]): float(row["milliseconds"])
            for row in csv.DictReader(stream)
        }
