"""How times are taken: what is measured, how often, in which order, and what is said of the samples.

Whoever is compared is measured in turns (A B A B ...), so that clocks and neighbours are alike. Every turn starts with
an untimed run, because the turn before it left other data in the caches.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np

MIN_REPEATS = 3


class Method(StrEnum):
    """What lies between start and stop of a sample."""

    ISOLATED = "isolated"
    BACK_TO_BACK = "back to back"
    HOST_TO_HOST = "host to host"


DESCRIPTIONS: Mapping[Method, str] = {
    Method.ISOLATED: "input and output on the device; one run between two events (wall clock on a CPU), waited for",
    Method.BACK_TO_BACK: "input and output on the device; runs enqueued one after the other between two events (wall "
    "clock on a CPU), time divided by their number",
    Method.HOST_TO_HOST: "wall clock of one call with numpy arrays in and out, copies and waiting included",
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

    Every contender can be measured host to host; `methods` has that and what else it can.
    """

    name: str
    variant: str
    methods: Sequence[Method]

    def scores(self) -> Any:
        """The outputs for the inputs of this contender, on the host."""

    def measure(self, method: Method, runs: int) -> list[float]:
        """Seconds of each of `runs` runs; back to back one figure, the mean."""


@dataclass(frozen=True)
class Effort:
    """How much is measured: at least `repeats` runs of every number, or by default what fits into `seconds`."""

    seconds: float
    most: int
    rounds: int
    repeats: int | None = None

    def share(self, one: float) -> tuple[int, int]:
        """(turns, runs in each turn) for something that takes `one` second(s)."""
        runs = self.repeats or max(MIN_REPEATS, min(self.most, int(self.seconds / max(one, 1e-9))))
        turns = min(self.rounds, runs)
        return turns, math.ceil(runs / turns)


GPU_EFFORT = Effort(seconds=1.0, most=200, rounds=5)
CPU_EFFORT = Effort(seconds=3.0, most=50, rounds=3)

Times: TypeAlias = dict[Method, Summary]


def measure_in_turns(contenders: Sequence[Contender], effort: Effort) -> list[Times]:
    """Summaries of every method of every contender, in their order."""
    shares = [effort.share(_one_run(contender)) for contender in contenders]
    samples: list[dict[Method, list[float]]] = [{method: [] for method in c.methods} for c in contenders]
    for turn in range(effort.rounds):
        for contender, (turns, runs), found in zip(contenders, shares, samples, strict=True):
            if turn < turns:
                contender.measure(Method.HOST_TO_HOST, 1)
                for method in contender.methods:
                    found[method] += contender.measure(method, runs)
    return [
        {method: summarise(found[method], runs if method is Method.BACK_TO_BACK else 1) for method in found}
        for (_, runs), found in zip(shares, samples, strict=True)
    ]


def best(times: Iterable[Times], method: Method) -> int | None:
    """The index of the smallest median by `method`; None if nobody has one."""
    medians = [(found[method].median_s, i) for i, found in enumerate(times) if method in found]
    return min(medians)[1] if medians else None


def wall(work: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure_iterations(run: Callable[[Any], object], inputs: Sequence[Any], iterations: int) -> tuple[float, Summary]:
    """Every input `iterations` times in a row: the mean seconds of a run over all of them, and their summary."""
    samples = [wall(partial(run, x)) for x in inputs for _ in range(iterations)]
    return sum(samples) / len(samples), summarise(samples)


def _one_run(contender: Contender) -> float:
    """Seconds of a run, once warm."""
    contender.measure(Method.HOST_TO_HOST, 1)
    return contender.measure(Method.HOST_TO_HOST, 1)[0]
