"""How times are taken: what is measured, how often, in which order, and what is said of the samples.

Whoever is compared is measured in turns (A B A B ...), so that clocks and neighbours are alike. Every burst starts with
an untimed run, because the one before it left other data in the caches.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np

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
    """Median, 95th percentile (the smallest sample that 95 % do not exceed), minimum and number of samples."""
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
        """The outputs for the inputs of this contender, on the host. Raises LostError."""

    def measure(self, method: Method, runs: int) -> list[float]:
        """Seconds of each of `runs` runs; back to back one figure, the mean. Raises LostError."""


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
        """(turns, runs in each turn) for something that takes `one` second(s)."""
        runs = self.repeats or max(MIN_REPEATS, min(self.most, int(self.seconds / max(one, 1e-9))))
        turns = min(self.rounds, runs)
        return turns, math.ceil(runs / turns)


GPU_EFFORT = Effort(seconds=0.15, burst=0.05, most=2000, pause=0.05)
CPU_EFFORT = Effort(seconds=3.0, burst=1.0, most=50)

Times: TypeAlias = dict[Method, Summary]


def measure_in_turns(contenders: Sequence[Contender], effort: Effort) -> list[Times | LostError]:
    """Summaries of every method of every contender, in their order: the cool regime. Who is lost leaves the turns."""
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
        """One burst by each method that has not had its share."""
        for method, (turns, runs) in self.shares.items():
            if turn < turns:
                self.samples[method] += _burst(self.contender, method, runs, self.effort.pause)

    def times(self) -> Times | LostError:
        """What all bursts have come to."""
        if self.lost is not None:
            return self.lost
        return {
            method: summarise(found, self.shares[method][1] if method is Method.BACK_TO_BACK else 1)
            for method, found in self.samples.items()
        }


def one_run(contender: Contender) -> dict[Method, float]:
    """Seconds that a run takes by each method, once warm."""
    contender.measure(Method.HOST_TO_HOST, 1)
    host = contender.measure(Method.HOST_TO_HOST, 1)[0]
    runs = max(1, min(_PROBE_RUNS, int(_PROBE_SECONDS / max(host, 1e-9))))
    return {method: float(np.mean(contender.measure(method, runs))) for method in contender.methods}


def wall(work: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def sample_until(
    sample: Callable[[], float], seconds: float, *, most: float = math.inf, least: int = MIN_REPEATS
) -> list[float]:
    """Samples until `seconds` are over: `least` of them at least, but never more than `most`."""
    start = time.perf_counter()
    found: list[float] = []
    while len(found) < most:
        found.append(sample())
        if len(found) >= least and time.perf_counter() - start > seconds:
            break
    return found


def measure_iterations(run: Callable[[Any], object], inputs: Sequence[Any], iterations: int) -> tuple[float, Summary]:
    """Every input `iterations` times in a row: the mean seconds of a run over all of them, and their summary."""
    samples = [wall(partial(run, x)) for x in inputs for _ in range(iterations)]
    return sum(samples) / len(samples), summarise(samples)


def _burst(contender: Contender, method: Method, runs: int, pause: float) -> list[float]:
    """The samples of one burst of load, and the pause behind it."""
    start = time.perf_counter()
    contender.measure(method, 1)
    samples = contender.measure(method, runs)
    if pause:
        time.sleep(max(pause, time.perf_counter() - start))
    return samples
