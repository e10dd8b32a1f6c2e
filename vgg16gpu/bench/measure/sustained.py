"""The sustained regime: times of a device that has been under load for seconds and gets no pause.

A card that draws all the power it may lowers its clocks; short bursts do not show that.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from vgg16gpu.bench.measure.readings import GpuState, Watch
from vgg16gpu.bench.measure.timing import Contender, LostError, Method, Summary, one_run, summarise

FROM_BATCH = 32  # smaller batches do not fill the device, and nobody who wants throughput runs them
DESCRIPTION = (
    "{seconds:g} s of load before the first number; then the fastest variant of each contender in {turns} turns "
    "without a pause, each with {own:g} s of its own load before its samples; back to back (isolated where a contender "
    "cannot); clocks, power and temperature are medians of readings taken during the samples"
)
_TURNS = 2
_OWN_SHARE = 1 / 3  # of the seconds of load, before each turn of a contender
_METHODS = (Method.BACK_TO_BACK, Method.ISOLATED)  # those that keep the device busy; the first that a contender has
_CHUNK_SECONDS = 0.1  # of load in one sample, or between two looks at the clock
_CHUNKS = 3  # samples in a turn (isolated more: every run is one)


@dataclass(frozen=True)
class Sustained:
    """What one contender took under load. `gpu` is None where nobody reads clocks and power."""

    method: Method
    summary: Summary
    gpu: GpuState | None


@dataclass
class _Turn:
    """A contender under load, and what has been seen of it."""

    contender: Contender
    method: Method
    runs: int  # in a chunk
    samples: list[float] = field(default_factory=list)
    windows: list[tuple[float, float]] = field(default_factory=list)  # of time.monotonic, around the samples
    lost: LostError | None = None

    def take(self, seconds: float, *, sample: bool = True) -> None:
        """So many seconds of load and, with `sample`, the samples of one turn; nothing once this one is lost."""
        if self.lost is None:
            try:
                self._load(seconds)
                if sample:
                    self._sample()
            except LostError as error:
                self.lost = error

    def _load(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.contender.measure(self.method, self.runs)

    def _sample(self) -> None:
        start = time.monotonic()
        for _ in range(_CHUNKS):
            self.samples += self.contender.measure(self.method, self.runs)
        self.windows.append((start, time.monotonic()))


def description(seconds: float) -> str:
    """How the sustained regime is measured with so many seconds of load."""
    return DESCRIPTION.format(seconds=seconds, turns=_TURNS, own=round(seconds * _OWN_SHARE, 2))


def device_method(contender: Contender) -> Method | None:
    """How a contender is measured under load; None for one that runs from host to host only."""
    return next((method for method in _METHODS if method in contender.methods), None)


def measure_sustained(
    contenders: Sequence[Contender], seconds: float, watch: Watch
) -> list[Sustained | LostError | None]:
    """What every contender takes under load, in their order; None for those that run from host to host only."""
    turns = [_start(contender) for contender in contenders]
    running = [turn for turn in turns if isinstance(turn, _Turn)]
    with watch:
        if running:
            running[0].take(seconds, sample=False)
        for _ in range(_TURNS):
            for turn in running:
                turn.take(seconds * _OWN_SHARE)
    return [_found(turn, watch) if isinstance(turn, _Turn) else turn for turn in turns]


def _start(contender: Contender) -> _Turn | LostError | None:
    method = device_method(contender)
    if method is None:
        return None
    try:
        one = one_run(contender)[method]
    except LostError as error:
        return error
    return _Turn(contender, method, max(1, int(_CHUNK_SECONDS / max(one, 1e-9))))


def _found(turn: _Turn, watch: Watch) -> Sustained | LostError:
    if turn.lost is not None:
        return turn.lost
    runs = turn.runs if turn.method is Method.BACK_TO_BACK else 1
    return Sustained(turn.method, summarise(turn.samples, runs), watch.state(turn.windows))
