"""Clocks, power and temperature of the GPU while something runs on it: nvidia-smi, asked again and again."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from vgg16gpu.bench.measure.environment import gpu_readings

_POLL_SECONDS = 0.05  # between two questions; an answer takes about as long
_JOIN_SECONDS = 30.0


@dataclass(frozen=True)
class GpuState:
    """Medians of `readings` readings of one card; None for what it does not tell."""

    sm_mhz: float | None
    memory_mhz: float | None
    power_w: float | None
    temperature_c: float | None
    readings: int


@dataclass(frozen=True)
class _PeerAnswer:
    start: float  # of time.monotonic
    stop: float
    cards: Sequence[Mapping[str, str]]


class Watch:
    """Reads every card in a thread of its own while the `with` block runs; on a CPU (`kind`) it reads nothing."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._answers: list[_PeerAnswer] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._kind == "cuda":
            self._thread = threading.Thread(target=self._poll, name="gpu readings", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)

    def state(self, windows: Sequence[tuple[float, float]]) -> GpuState | None:
        """The card during these (start, stop) windows of time.monotonic; None if it was not read then.

        Of several cards the one that draws the most power then: it is the one that works.
        """
        answers = [a for a in self._answers if any(a.stop >= start and a.start <= stop for start, stop in windows)]
        cards: dict[str, list[Mapping[str, str]]] = {}
        for answer in answers:
            for card in answer.cards:
                cards.setdefault(card["index"], []).append(card)
        states = [_condensed(readings) for readings in cards.values()]
        return max(states, key=lambda state: state.power_w or 0.0, default=None)

    def _poll(self) -> None:
        while True:
            start = time.monotonic()
            cards = gpu_readings(self._kind)
            self._answers.append(_PeerAnswer(start, time.monotonic(), cards))
            if self._stop.wait(_POLL_SECONDS):
                return


def _condensed(readings: Sequence[Mapping[str, str]]) -> GpuState:
    def median(key: str) -> float | None:
        values = []
        for reading in readings:
            with suppress(ValueError):  # "[N/A]"
                values.append(float(reading[key]))
        return statistics.median(values) if values else None

    return GpuState(
        median("clocks.sm"), median("clocks.mem"), median("power.draw"), median("temperature.gpu"), len(readings)
    )
