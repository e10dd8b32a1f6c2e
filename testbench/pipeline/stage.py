"""One stage alone: how long it takes for so many pictures, and where it takes place."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Place(StrEnum):
    """What a stage keeps busy; stages of one place take turns there."""

    FILES = "files"
    CORES = "cores"
    BUS = "bus"
    DEVICE = "device"
    DECODER = "decoder"  # of a GPU, which decodes JPEG
    WRITER = "writer"  # the one thread that ranks and writes


@dataclass(frozen=True)
class StageTime:
    """Seconds of each repeat: of the wall clock, and of all processors together.

    threads: how many worked on it. counts: whether a whole run has it in this form; what does not is there to compare.
    precision: of the engine; None of what has none. decode: who decodes in runs that have it, "cpu" or "gpu"; None: in
    all runs.
    """

    stage: str
    place: Place
    pictures: int
    seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...]
    threads: int = 1
    counts: bool = True
    precision: str | None = None
    decode: str | None = None

    @property
    def pictures_per_s(self) -> float:
        """By the median of the seconds."""
        return self.pictures / statistics.median(self.seconds)

    @property
    def best_pictures_per_s(self) -> float:
        """By the repeat that was disturbed least."""
        return self.pictures / min(self.seconds)

    @property
    def cpu_s_each(self) -> float:
        """Seconds of all processors for a picture, in the repeat that took the fewest."""
        return min(self.cpu_seconds) / self.pictures

    def fields(self) -> dict[str, Any]:
        """As plain data."""
        rates = {"pictures_per_s": self.pictures_per_s, "best_pictures_per_s": self.best_pictures_per_s}
        found = {**asdict(self), "place": self.place.value, **rates}
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True)
class Samples:
    """Seconds of each repeat: `wall`, and `cpu` of all processors."""

    wall: tuple[float, ...]
    cpu: tuple[float, ...]


def timed(repeats: int, work: Callable[[], object], before: Callable[[], object] = lambda: None) -> Samples:
    """Seconds of `work`, so often, each behind an untimed `before`. Processor time is that of this whole process."""
    wall, cpu = [], []
    for _ in range(repeats):
        before()
        start, busy = time.perf_counter(), time.process_time()
        work()
        wall.append(time.perf_counter() - start)
        cpu.append(time.process_time() - busy)
    return Samples(tuple(wall), tuple(cpu))
