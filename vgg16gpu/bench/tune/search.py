"""The search: which candidates are tried, what is believed of them, what is written down."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillRunning
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

import numpy as np

from vgg16gpu.bench.tune.bench import MAX_LAUNCHES, BenchRig, WrongResultError
from vgg16gpu.bench.tune.cases import case
from vgg16gpu.bench.tune.tasks import TuneTask
from vgg16gpu.compiler.op_kernels.conv import conv_wgmma
from vgg16gpu.compiler.op_kernels.conv.conv_wgmma_tiles import CYCLE_SECONDS, LargeTile, SmallTile
from vgg16gpu.compiler.op_kernels.tile_choice import Choice
from vgg16gpu.devices.base import Device
from vgg16gpu.errors import Error, KernelError
from vgg16gpu.program.launch import Kernel
from vgg16gpu.program.types import TileEntry, Tiles

REPEATS: Final = 3
GRAPH_SECONDS: Final = 1e-3  # about; of the launches that are timed together
LAUNCH_SECONDS: Final = 5e-6  # what a single launch is slower than one of many, at most
HOPELESS: Final = 1.7  # times slower than the best one so far: not timed any further
FINALISTS: Final = 3
ROUNDS: Final = 7  # of timing the finalists in turn
MAX_PROGRAMMATIC_BATCH: Final = 32  # up to which programmatic dependent launch is tried
LEADERS: Final = 2 / 3  # of the candidates differ in more than stages and blocks of a multiprocessor
MARGIN: Final = 1.02  # times the fastest one's seconds, up to which today's tile stays: a layer alone is no network

Compile = Callable[[Kernel], None]


@dataclass(frozen=True)
class Timing:
    """A candidate that computes what it should, and its time in seconds. `estimate`: as the cost model has it."""

    entry: TileEntry
    seconds: float
    estimate: float | None = None


@dataclass
class Finding:
    """What was learnt of a problem: timings, the fastest first.

    usual: what is taken without measurements. today: what is taken with the tables that there are.
    """

    key: str
    label: str
    flop: int
    usual: TileEntry
    today: TileEntry
    timings: list[Timing] = field(default_factory=list)
    wrong: list[tuple[TileEntry, str]] = field(default_factory=list)

    @property
    def usual_seconds(self) -> float | None:
        """The time of what is taken without measurements."""
        return next((timing.seconds for timing in self.timings if timing.entry == self.usual), None)

    @property
    def chosen(self) -> Timing | None:
        """Entry for a table: the fastest, or today's where that takes at most MARGIN times as long."""
        fastest = next(iter(self.timings), None)
        today = next((timing for timing in self.timings if timing.entry == self.today), None)
        return today if fastest and today and today.seconds <= MARGIN * fastest.seconds else fastest


def tiles(findings: Sequence[Finding]) -> Tiles:
    """Return the table of the chosen tiles."""
    return {finding.key: chosen.entry for finding in findings if (chosen := finding.chosen)}


def search(
    device: Device, tasks: Sequence[TuneTask], compile_kernel: Compile, *, top: int, deadline: float
) -> Iterator[Finding]:
    """Find the fastest tile of each task in turn, until all are done or `time.monotonic()` passes `deadline`.

    `compile_kernel` may be called from any thread. Raises DeviceError when memory runs out, and KernelError, naming the
    tile, when a kernel leaves the device beyond use.
    """
    lists = [(task, shortlist(task, top)) for task in tasks]
    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        kernels = (task.dry_step(choice).kernel for task, choices in lists for choice in choices)
        compiled = {kernel: pool.submit(compile_kernel, kernel) for kernel in dict.fromkeys(kernels)}
        for task, choices in lists:
            built = _built(device, task, choices, compiled, deadline)
            if built is None or time.monotonic() > deadline:
                return
            yield _settle(device, task, built)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def shortlist(task: TuneTask, top: int) -> list[Choice[Any]]:
    """Return the candidates to try: of a convolution the `top` that the cost model likes best, and distinct.

    Today's is one of them.
    """
    choices = task.candidates()
    if task.kernels is not conv_wgmma or len(choices) <= top:
        return list(choices)
    kin: dict[object, list[Choice[Any]]] = {}
    for choice in choices:
        kin.setdefault(_shape(choice.tile), []).append(choice)
    groups = list(kin.values())
    leaders = [group[0] for group in groups[: round(top * LEADERS)]]
    others = [choice for group in groups for choice in group[1:]]
    tried, today = [*leaders, *others[: top - len(leaders)]], task.today
    return [*tried, *(choice for choice in choices if choice.tile == today.tile and choice not in tried)]


def _shape(tile: LargeTile | SmallTile) -> object:
    return tile if isinstance(tile, LargeTile) else (tile.rows, tile.splits, tile.exchange)


@dataclass
class _Built:
    choices: list[Choice[Any]]
    wrong: list[tuple[TileEntry, str]]


def _built(
    device: Device,
    task: TuneTask,
    choices: Sequence[Choice[Any]],
    compiled: dict[Kernel, Future[None]],
    deadline: float,
) -> _Built | None:
    """Return the choices whose kernels are on the device; None if time runs out before they are."""
    built = _Built([], [])
    for choice in choices:
        kernel = task.dry_step(choice).kernel
        try:
            compiled[kernel].result(max(0.0, deadline - time.monotonic()))
            device.build([kernel])
        except StillRunning:
            return None
        except Error as error:
            built.wrong.append((choice.entry, str(error)))
        else:
            built.choices.append(choice)
    return built


def _settle(device: Device, task: TuneTask, built: _Built) -> Finding:
    """Check and time the candidates of a task, then the best once more in turn."""
    usual = task.candidates()[0]
    step = task.dry_step(usual)
    finding = Finding(task.key, step.label, step.flop, usual.entry, task.today.entry, wrong=built.wrong)
    if not built.choices:
        return finding
    rig = BenchRig(device, task, case(task), built.choices)
    try:
        times = _Race(rig, finding).run(built.choices)
    finally:
        rig.close()
    sms = device.facts.multiprocessors
    finding.timings = [
        Timing(choice.entry, seconds, _estimate(task, choice, sms))
        for choice, seconds in sorted(times.items(), key=lambda item: item[1])
    ]
    return finding


class _Race:
    """The candidates of a task against each other."""

    def __init__(self, rig: BenchRig, finding: Finding) -> None:
        self.rig, self.finding = rig, finding
        self._least = math.inf  # seconds of the fastest launch so far

    def run(self, choices: Sequence[Choice[Any]]) -> dict[Choice[Any], float]:
        """Return the seconds of a launch of every choice that is right and not hopelessly slow."""
        times: dict[Choice[Any], float] = {}
        for choice in choices:
            try:
                seconds = self._first_time(choice)
            except Error as error:
                self.finding.wrong.append((choice.entry, str(error)))
                self._require_device(choice)
            else:
                if seconds is not None:
                    times[choice] = seconds
        best = sorted(times, key=lambda choice: times[choice])[:FINALISTS]
        today = self.rig.task.today
        return times | self._final(best, [today] if any(choice.tile == today.tile for choice in times) else [])

    def _require_device(self, choice: Choice[Any]) -> None:
        """Raise KernelError, naming the culprit, where a candidate has left the device beyond use."""
        try:
            self.rig.device.synchronize()
        except Error as error:
            raise KernelError(f"{self.finding.key}: {dict(choice.entry)} broke the device: {error}") from error

    def _first_time(self, choice: Choice[Any]) -> float | None:
        """Return the seconds of a launch, checked; None for a slow one. Raises WrongResultError, KernelError."""
        rig = self.rig
        right = rig.check(choice)
        single = rig.quick(choice)
        self._least = min(self._least, single)
        if single > HOPELESS * self._least + LAUNCH_SECONDS:
            return None
        launches = self._launches(single)
        graph = rig.graph(choice, launches)
        times = [rig.measure(graph) / launches for _ in range(1 + REPEATS)][1:]
        if not np.array_equal(rig.images(), right):
            raise WrongResultError("it leaves other bits when it is launched again and again")
        return median(times)

    def _launches(self, seconds: float) -> int:
        return int(min(max(GRAPH_SECONDS / max(seconds, 1e-9), 2), MAX_LAUNCHES))

    def _final(self, best: Sequence[Choice[Any]], others: Sequence[Choice[Any]]) -> dict[Choice[Any], float]:
        """Measure the best, as programmatic dependent launches and not, and others, in turn; return the seconds."""
        tried = (False, True) if self.rig.task.problem.batch <= MAX_PROGRAMMATIC_BATCH else (False,)
        both = (Choice(choice.tile, one) for choice in best for one in (choice.programmatic, *tried))
        choices = dict.fromkeys([*both, *others])
        launches = self._launches(self._least)
        graphs = {choice: self.rig.graph(choice, launches) for choice in choices}
        times: dict[Choice[Any], list[float]] = {choice: [] for choice in choices}
        for _ in range(ROUNDS):
            for choice, graph in graphs.items():
                times[choice].append(self.rig.measure(graph) / launches)
        return {choice: median(found) for choice, found in times.items()}


def _estimate(task: TuneTask, choice: Choice[Any], multiprocessors: int) -> float | None:
    if task.kernels is not conv_wgmma:
        return None
    return float(choice.tile.cycles(task.problem, multiprocessors) * CYCLE_SECONDS)
