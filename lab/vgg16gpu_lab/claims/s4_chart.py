"""S4's promised chart, size by channels: their loop against cuDNN, and what the claims ask of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from vgg16gpu_lab.claims.judge import (
    Compared,
    Finding,
    Growing,
    Judge,
    Pair,
    Verdict,
    compare,
    decided,
    growth,
    missing,
)
from vgg16gpu_lab.claims.times import Quantity, Times, number, one
from vgg16gpu_lab.experiments.s4 import CHART_CHANNELS, CHART_SIZES, POINT
from vgg16gpu_lab.measure.baseline import CUDNN

SEED: Final = "S4"
OWN: Final = "direct"  # their loop
BETTER: Final = ("halo-prefetch",)  # had the row's name once: what theirs was meant to be
POINTS: Final = len(CHART_SIZES) * len(CHART_CHANNELS)
LOWEST, HIGHEST = 0.1, 10.0  # of cuDNN's speed, elsewhere
WITHIN: Final = 2.0  # "0.1 to 10 times": from a least in 0.05 to 0.2, to a most in 5 to 20

_SHAPE: Final = re.compile(r"channels=(\d+) outputs=\1 kernel=6 stride=1")  # of a point of the chart that they promise


@dataclass(frozen=True)
class Points:
    """The chart: points by size and channels, those too short to count apart, and why others are missing."""

    found: dict[tuple[str, int], Compared]
    short: tuple[str, ...]
    lacking: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        """Return whether nothing is missing."""
        return len(self.found) + len(self.short) == POINTS

    @property
    def none(self) -> Finding:
        """Finding if no point counts."""
        return missing([*self.lacking, *([f"{len(self.short)} too short to count"] if self.short else [])])


def time_of(table: str, size: object, method: str, parameter: str) -> Quantity:
    """Return a time of one of S4's tables; of the row "direct" theirs alone."""
    return one(SEED, table, size, method, parameter, other_than=BETTER if method == OWN else ())


def elsewhere() -> Judge:
    """Judge least and most of the chart."""

    def find(times: Times) -> Finding:
        points = _points(times)
        if not points.found:
            return points.none
        ratios = {place: each.ratio for place, each in points.found.items()}
        low, high = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
        figure = f"{_at(low, ratios)} to {_at(high, ratios)}, {len(ratios)} points of {POINTS}{_apart(points)}"
        near = all(1 / WITHIN <= ratios[at] / said <= WITHIN for at, said in ((low, LOWEST), (high, HIGHEST)))
        return replace(decided(figure, near if points.is_whole else None), short=points.short)

    return Judge((), find)


def depends() -> Judge:
    """Judge whether the winner changes with the channels at some size."""

    def find(times: Times) -> Finding:
        points = _points(times)
        if not points.found:
            return points.none
        sizes = sorted({size for size, _ in points.found}, key=int)
        which = tuple(size for size in sizes if _changes([each for at, each in points.found.items() if at[0] == size]))
        ahead = sum(each.is_ahead for each in points.found.values())
        figure = f"ahead of cuDNN at {ahead} of {len(points.found)} points{_apart(points)}; the winner changes at sizes"
        verdict = Verdict.HOLDS if which else Verdict.DOES_NOT if points.is_whole else Verdict.CANNOT_TELL
        return Finding(f"{figure}: {', '.join(which) or 'none'}", verdict, len(which), len(sizes), which, points.short)

    return Judge((), find)


def small_leads() -> Judge:
    """Judge that cuDNN's time grows less from a small image to 1024 pixels: the lead is larger at the small one."""
    return growth(_small_leads())


def _small_leads() -> Iterator[Growing]:
    parameter = f"channels={POINT.channels} outputs={POINT.channels} kernel={POINT.kernel} stride=1"
    for size in (64, 128, 256):
        first, second = (
            (time_of("chart", size, method, parameter), time_of("chart", 1024, method, parameter))
            for method in (CUDNN, OWN)
        )
        yield Growing(str(size), first, second)


def _points(times: Times) -> Points:
    found: dict[tuple[str, int], Compared] = {}
    short, lacking = list[str](), list[str]()
    for name in times.rows(SEED, "chart", OWN):
        if shape := _SHAPE.fullmatch(name[4]):
            own, library = (time_of("chart", name[2], method, name[4]) for method in (OWN, CUDNN))
            compared, reasons = compare([Pair("", own, library)], times)
            lacking += reasons
            for each in compared:
                if each.is_short:
                    short.append(f"size {name[2]}, {shape[1]} channels")
                else:
                    found[name[2], int(shape[1])] = each
    return Points(found, tuple(short), tuple(lacking) or (() if found or short else (times.absent,)))


def _changes(found: list[Compared]) -> bool:
    return any(each.is_ahead for each in found) and any(each.is_behind for each in found)


def _at(place: tuple[str, int], ratios: dict[tuple[str, int], float]) -> str:
    return f"{number(ratios[place])}x (size {place[0]}, {place[1]} channels)"


def _apart(points: Points) -> str:
    return f", {len(points.short)} too short to count" if points.short else ""
