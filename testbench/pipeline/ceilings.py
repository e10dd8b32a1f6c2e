"""What stages that share a place come to together, which place is the narrowest, and what a whole run has of that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from testbench.pipeline.stage import Place, StageTime


@dataclass(frozen=True)
class Ceiling:
    """As many pictures as one place lets through: its stages take turns, so their times add up."""

    place: Place
    stages: tuple[str, ...]
    pictures_per_s: float  # by medians
    best_pictures_per_s: float
    cpu_s_each: float  # of all processors, for a picture


@dataclass(frozen=True)
class Speed:
    """What whole runs in one precision came to, JPEG decoded by the "cpu" or the "gpu".

    None where all rows came at once, so that there is no rate.
    """

    precision: str
    decode: str
    whole_s: float
    rows_per_s: float | None
    best_rows_per_s: float | None
    cpu_s_each: float | None


@dataclass(frozen=True)
class Verdict:
    """A whole run by its smallest ceiling.

    share: its rate by that, medians both; best: the same of what was disturbed least. cpu: seconds of all processors
    for a picture in the stages alone, by those of the whole run, where all stages have the same cores: on a CPU.
    """

    precision: str
    decode: str
    ceiling: Ceiling
    share: float | None
    best: float | None
    cpu: float | None
    whole_s: float

    def fields(self) -> dict[str, Any]:
        """As plain data."""
        found = asdict(self)
        found["ceiling"]["place"] = self.ceiling.place.value
        return found


def ceilings(stages: Sequence[StageTime], precision: str, decode: str, kind: str) -> list[Ceiling]:
    """Of each place, in the order of the stages. kind: "cuda", or "cpu", where the device is the processor's cores."""
    places: dict[Place, list[StageTime]] = {}
    for stage in stages:
        if stage.counts and stage.precision in (None, precision) and stage.decode in (None, decode):
            place = Place.CORES if kind == "cpu" and stage.place is Place.DEVICE else stage.place
            places.setdefault(place, []).append(stage)
    return [_ceiling(place, found) for place, found in places.items()]


def smallest(found: Sequence[Ceiling]) -> Ceiling:
    """The place that the others wait for."""
    return min(found, key=lambda ceiling: ceiling.pictures_per_s)


def verdict(stages: Sequence[StageTime], speed: Speed, kind: str) -> Verdict:
    """What a whole run has of its smallest ceiling."""
    ceiling = smallest(ceilings(stages, speed.precision, speed.decode, kind))
    on_cores = kind == "cpu" and ceiling.place is Place.CORES
    return Verdict(
        speed.precision,
        speed.decode,
        ceiling,
        _ratio(speed.rows_per_s, ceiling.pictures_per_s),
        _ratio(speed.best_rows_per_s, ceiling.best_pictures_per_s),
        _ratio(ceiling.cpu_s_each, speed.cpu_s_each) if on_cores else None,
        speed.whole_s,
    )


def _ceiling(place: Place, stages: Sequence[StageTime]) -> Ceiling:
    return Ceiling(
        place,
        tuple(stage.stage for stage in stages),
        1 / math.fsum(1 / stage.pictures_per_s for stage in stages),
        1 / math.fsum(1 / stage.best_pictures_per_s for stage in stages),
        math.fsum(stage.cpu_s_each for stage in stages),
    )


def _ratio(number: float | None, by: float | None) -> float | None:
    return number / by if number and by else None
