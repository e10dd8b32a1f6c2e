"""Take times: samples, medians, times under sustained load."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias

import numpy as np

from vgg16gpu.bench.measure.environment import gpu_readings
from vgg16gpu.errors import Error

MIN_REPEATS = 3
_PROBE_SECONDS, _PROBE_RUNS = 0.02, 10  # of the runs that tell how long one takes


class LostError(Error):
    """A contender cannot go on; the others can. `output`: the last lines that it wrote, for who looks for the cause."""

    def __init__(self, reason: str, output: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.output = output


class Method(StrEnum):
    """What lies between start and stop of a sample."""

    ISOLATED = "isolated"
    BACK_TO_BACK = "back to back"
    HOST_TO_HOST = "host to host"


class Regime(StrEnum):
    """How the device is treated around the samples."""

    COOL = "cool"
    SUSTAINED = "sustained"


DESCRIPTIONS: Mapping[Method, str] = {
    Method.ISOLATED: "input and output on the device; one run between two events (wall clock on a CPU), waited for",
    Method.BACK_TO_BACK: "input and output on the device; runs enqueued one after the other between two events (wall "
    "clock on a CPU, for JAX, the wait for the last run included, and for onnxruntime, which waits for each), time "
    "divided by their number",
    Method.HOST_TO_HOST: "wall clock of one call with numpy arrays in and out, copies and waiting included (JAX's "
    "input lies in its own layout and type already)",
}


@dataclass(frozen=True)
class Summary:
    """What is said of samples, in seconds. `runs` lie behind each of the `samples`."""

    median_s: float
    p95_s: float
    min_s: float
    samples: int
    runs: int = 1


def summarise(samples: Sequence[float], runs: int = 1) -> Summary:
    """Return median, 95th percentile (the smallest sample that 95 % do not exceed), minimum and sample count."""
    ordered = sorted(samples)
    p95 = ordered[math.ceil(0.95 * len(ordered)) - 1]
    return Summary(float(np.median(ordered)), p95, ordered[0], len(ordered), runs)


class Contender(Protocol):
    """A way to run the model on one batch of inputs: ours, or a peer's. `variant` tells a peer's own ways apart.

    Every contender can be measured host to host; `methods` has that and what else it can. `unchecked` says why its
    scores mean nothing, for those that are there for their time alone; it is empty for all others. `tf32`: products of
    float32 are computed in TF32, as torch and JAX do unless told otherwise.
    """

    name: str
    variant: str
    methods: Sequence[Method]
    unchecked: str
    tf32: bool

    def scores(self) -> Any:
        """Compute the outputs for the inputs of this contender, on the host. Raises LostError."""

    def measure(self, method: Method, runs: int) -> list[float]:
        """Return seconds of each of `runs` runs; back to back one figure, the mean. Raises LostError."""


@dataclass(frozen=True)
class Effort:
    """How much is measured: at least `repeats` runs of every number, or by default what fits into `seconds`.

    They come in bursts of about `burst` seconds, each followed by a pause of its own length, at least `pause`, in which
    the device cools down; a `pause` of 0 is none.
    """

    seconds: float
    burst: float
    most: int
    pause: float = 0.0
    repeats: int | None = None

    @property
    def rounds(self) -> int:
        """Most bursts for one number, and so turns."""
        return max(MIN_REPEATS, math.ceil(self.seconds / self.burst))

    def share(self, one: float) -> tuple[int, int]:
        """Return (turns, runs in each turn) for something that takes `one` second(s)."""
        runs = self.repeats or max(MIN_REPEATS, min(self.most, int(self.seconds / max(one, 1e-9))))
        turns = min(self.rounds, runs)
        return turns, math.ceil(runs / turns)


GPU_EFFORT = Effort(seconds=0.15, burst=0.05, most=2000, pause=0.05)
CPU_EFFORT = Effort(seconds=3.0, burst=1.0, most=50)

Times: TypeAlias = dict[Method, Summary]


def measure_in_turns(contenders: Sequence[Contender], effort: Effort) -> list[Times | LostError]:
    """Summarise every method of every contender, in order, in the cool regime. A lost contender leaves the turns."""
    entrants = [_Entrant(contender, effort) for contender in contenders]
    for entrant in entrants:
        entrant.attempt(entrant.probe)
    for turn in range(effort.rounds):
        for entrant in entrants:
            entrant.attempt(partial(entrant.take, turn))
    return [entrant.times() for entrant in entrants]


@dataclass
class _Entrant:
    """A contender in the turns, and what it has come to so far."""

    contender: Contender
    effort: Effort
    shares: dict[Method, tuple[int, int]] = field(default_factory=dict)
    samples: dict[Method, list[float]] = field(default_factory=dict)
    lost: LostError | None = None

    def attempt(self, work: Callable[[], None]) -> None:
        """Do it, unless this contender is lost, now or before."""
        if self.lost is None:
            try:
                work()
            except LostError as error:
                self.lost = error

    def probe(self) -> None:
        """See how long a run takes, and share the effort by that."""
        self.shares = {method: self.effort.share(one) for method, one in one_run(self.contender).items()}
        self.samples = {method: [] for method in self.shares}

    def take(self, turn: int) -> None:
        """Run one burst by each method that has not had its share."""
        for method, (turns, runs) in self.shares.items():
            if turn < turns:
                self.samples[method] += _burst(self.contender, method, runs, self.effort.pause)

    def times(self) -> Times | LostError:
        """Summarise all bursts."""
        if self.lost is not None:
            return self.lost
        return {
            method: summarise(found, self.shares[method][1] if method is Method.BACK_TO_BACK else 1)
            for method, found in self.samples.items()
        }


def one_run(contender: Contender) -> dict[Method, float]:
    """Return the seconds of a run by each method, once warm."""
    contender.measure(Method.HOST_TO_HOST, 1)
    host = contender.measure(Method.HOST_TO_HOST, 1)[0]
    runs = max(1, min(_PROBE_RUNS, int(_PROBE_SECONDS / max(host, 1e-9))))
    return {method: float(np.mean(contender.measure(method, runs))) for method in contender.methods}


def wall(work: Callable[[], object]) -> float:
    """Return the seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def sample_until(
    sample: Callable[[], float], seconds: float, *, most: float = math.inf, least: int = MIN_REPEATS
) -> list[float]:
    """Sample until `seconds` are over: `least` samples at least, but never more than `most`."""
    start = time.perf_counter()
    found: list[float] = []
    while len(found) < most:
        found.append(sample())
        if len(found) >= least and time.perf_counter() - start > seconds:
            break
    return found


def measure_iterations(run: Callable[[Any], object], inputs: Sequence[Any], iterations: int) -> tuple[float, Summary]:
    """Run every input `iterations` times in a row; return the mean seconds of all runs, and their summary."""
    samples = [wall(partial(run, x)) for x in inputs for _ in range(iterations)]
    return sum(samples) / len(samples), summarise(samples)


def _burst(contender: Contender, method: Method, runs: int, pause: float) -> list[float]:
    """Run one burst of load and the pause behind it; return the samples."""
    start = time.perf_counter()
    contender.measure(method, 1)
    samples = contender.measure(method, runs)
    if pause:
        time.sleep(max(pause, time.perf_counter() - start))
    return samples


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
        """Return the card's state in these (start, stop) windows of time.monotonic; None if it was not read then.

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
    """Times of one contender under load. `gpu` is None where clocks and power are not read."""

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
        """Run `seconds` of load and, with `sample`, the samples of one turn; nothing once this one is lost."""
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
    """Describe how the sustained regime is measured with N seconds of load."""
    return DESCRIPTION.format(seconds=seconds, turns=_TURNS, own=round(seconds * _OWN_SHARE, 2))


def device_method(contender: Contender) -> Method | None:
    """Return how a contender is measured under load; None for one that runs from host to host only."""
    return next((method for method in _METHODS if method in contender.methods), None)


def measure_sustained(
    contenders: Sequence[Contender], seconds: float, watch: Watch
) -> list[Sustained | LostError | None]:
    """Measure every contender under load, in order; None for those that run from host to host only."""
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
