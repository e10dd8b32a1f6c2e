"""How the benchmark takes times: statistics, turns and pauses, load, readings of the GPU."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vgg16gpu.bench.measure import timing
from vgg16gpu.bench.measure.environment import gpu_readings
from vgg16gpu.bench.measure.timing import (
    CPU_EFFORT,
    GPU_EFFORT,
    MIN_REPEATS,
    Effort,
    LostError,
    Method,
    Watch,
    measure_in_turns,
    measure_iterations,
    measure_sustained,
    sample_until,
    summarise,
)

MILLISECOND = 1e-3
ISOLATED, QUEUED, HOST = Method.ISOLATED, Method.BACK_TO_BACK, Method.HOST_TO_HOST

# Statistics


def test_summary_of_known_samples() -> None:
    samples = [float(i) for i in range(1, 101)]
    found = summarise(samples[::-1], runs=7)
    assert (found.median_s, found.p95_s, found.min_s, found.samples, found.runs) == (50.5, 95.0, 1.0, 100, 7)


def test_effort_stays_in_its_bounds() -> None:
    for effort, one in itertools.product((GPU_EFFORT, CPU_EFFORT, Effort(2.0, 0.05, 2000)), (1e-6, 1e-3, 0.9, 100.0)):
        turns, runs = effort.share(one)
        assert turns <= effort.rounds
        assert turns * runs >= MIN_REPEATS
        assert turns * runs <= effort.most + effort.rounds
        assert turns * runs * one <= max(effort.seconds + effort.rounds * one, (MIN_REPEATS + 1) * one)
        assert runs * one <= effort.burst + one


def test_repeats_are_done_at_least() -> None:
    for repeats, share in ((1, (1, 1)), (5, (5, 1)), (7, (5, 2)), (100, (5, 20))):
        assert Effort(1.0, burst=0.2, most=200, repeats=repeats).share(1e-3) == share


# Turns


class Clock:
    """Stands for the module `time`: it goes on by what runs and pauses take."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def perf_counter(self) -> float:
        return self.now

    monotonic = perf_counter

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


class Fake:
    """A contender whose runs take what it is told; `log` has who was measured, how and how often."""

    unchecked = ""
    tf32 = False

    def __init__(
        self,
        name: str,
        seconds: float,
        log: list[tuple[str, Method, int]],
        methods: tuple[Method, ...],
        clock: Clock | None = None,
    ) -> None:
        self.name, self.variant, self.methods = name, "", methods
        self._seconds, self._log, self._clock = seconds, log, clock or Clock()

    def scores(self) -> None:
        raise NotImplementedError

    def measure(self, method: Method, runs: int) -> list[float]:
        self._log.append((self.name, method, runs))
        self._clock.now += runs * self._seconds
        return [self._seconds] * (1 if method is QUEUED else runs)


def test_contenders_take_turns_and_every_burst_starts_untimed() -> None:
    log: list[tuple[str, Method, int]] = []
    a, b = Fake("a", 1.0, log, (QUEUED, HOST)), Fake("b", 2.0, log, (HOST,))
    times = measure_in_turns([a, b], Effort(2.0, burst=1.0, most=100, repeats=6))
    warm = [("a", HOST, 1), ("a", HOST, 1), ("a", QUEUED, 1), ("a", HOST, 1), *[("b", HOST, 1)] * 3]
    turn = [("a", QUEUED, 1), ("a", QUEUED, 2), ("a", HOST, 1), ("a", HOST, 2), ("b", HOST, 1), ("b", HOST, 2)]
    assert log == warm + turn * 3
    assert [set(found) for found in times] == [{QUEUED, HOST}, {HOST}]
    assert (times[0][HOST].samples, times[0][HOST].runs, times[0][HOST].median_s) == (6, 1, 1.0)
    assert (times[0][QUEUED].samples, times[0][QUEUED].runs) == (3, 2)


class Leaves(Fake):
    """A contender that is lost after so many measurements."""

    def __init__(self, left: int, *rest: Any, **options: Any) -> None:
        super().__init__(*rest, **options)
        self._left = left

    def measure(self, method: Method, runs: int) -> list[float]:
        self._left -= 1
        if self._left < 0:
            raise LostError("it is gone")
        return super().measure(method, runs)


@pytest.mark.parametrize("left", [0, 3, 4])  # before it has a turn, in the first one, in the second
def test_who_is_lost_leaves_the_turns_to_the_others(left: int) -> None:
    log: list[tuple[str, Method, int]] = []
    fakes = [Leaves(left, "lost", 1.0, log, (HOST,)), Fake("stays", 1.0, log, (HOST,))]
    lost, stays = measure_in_turns(fakes, Effort(2.0, burst=1.0, most=100, repeats=6))
    assert isinstance(lost, LostError)
    assert isinstance(stays, dict)
    assert stays[HOST].samples == 6
    assert sum(name == "lost" for name, *_ in log) == left


def test_the_pause_is_as_long_as_the_load_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(timing, "time", clock)
    fakes = [Fake("fast", MILLISECOND, [], (HOST,), clock), Fake("slow", 0.5, [], (HOST,), clock)]
    measure_in_turns(fakes, Effort(0.15, burst=0.05, most=10, pause=0.05))
    assert clock.pauses == pytest.approx([0.05, 1.0] * 3)


def test_iterations_run_every_input_as_often_as_asked() -> None:
    seen: list[int] = []
    mean, summary = measure_iterations(seen.append, [1, 2, 3], 4)
    assert seen == [1] * 4 + [2] * 4 + [3] * 4
    assert summary.samples == 12
    assert summary.min_s <= mean


@pytest.mark.parametrize(
    ("seconds", "bounds", "count"),
    [
        (1.0, {}, 5),  # 4 * 0.25 is no longer than a second
        (1.0, {"most": 2}, 2),
        (0.0, {}, MIN_REPEATS),
        (0.0, {"least": 1}, 1),
        (0.0, {"most": 2}, 2),
        (math.inf, {"most": 7}, 7),
    ],
)
def test_samples_until_time_is_up(
    monkeypatch: pytest.MonkeyPatch, seconds: float, bounds: dict[str, int], count: int
) -> None:
    clock = Clock()
    monkeypatch.setattr(timing, "time", clock)

    def sample() -> float:
        clock.now += 0.25
        return clock.now

    assert sample_until(sample, seconds, **bounds) == [0.25 * (i + 1) for i in range(count)]


# Load


def test_under_load_there_is_no_pause_and_load_before_every_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    log: list[tuple[str, Method, int]] = []
    monkeypatch.setattr(timing, "time", clock)
    fakes = [
        Fake("ours", 0.01, log, tuple(Method), clock),
        Fake("waits", 0.02, log, (ISOLATED, HOST), clock),
        Fake("host only", 0.1, log, (HOST,), clock),
    ]
    ours, waits, nobody = measure_sustained(fakes, 3.0, Watch("cpu"))
    assert clock.pauses == []
    assert nobody is None
    assert ours is not None
    assert waits is not None
    assert (ours.method, ours.summary.median_s, ours.summary.runs, ours.gpu) == (QUEUED, 0.01, 10, None)
    assert (waits.method, waits.summary.runs) == (ISOLATED, 1)
    # 3 s of load, then twice both with 1 s of their own and 0.3 s of samples, all in chunks of 0.1 s.
    load = [entry for entry in log if entry[2] in (5, 10) and entry[1] is not HOST]
    turns = [(name, len(list(group))) for name, group in itertools.groupby(name for name, *_ in load)]
    assert turns[:1] == [("ours", pytest.approx(30 + 13, abs=3))]
    assert turns[1:] == [(name, pytest.approx(13, abs=2)) for name in ("waits", "ours", "waits")]
    assert ours.summary.samples == 6


@pytest.mark.parametrize("left", [0, 20])  # before the load, under it
def test_who_is_lost_under_load_leaves_the_others(monkeypatch: pytest.MonkeyPatch, left: int) -> None:
    clock = Clock()
    monkeypatch.setattr(timing, "time", clock)
    fakes = [Leaves(left, "lost", 0.02, [], (QUEUED, HOST), clock), Fake("stays", 0.01, [], (QUEUED, HOST), clock)]
    lost, stays = measure_sustained(fakes, 3.0, Watch("cpu"))
    assert isinstance(lost, LostError)
    assert isinstance(stays, timing.Sustained)
    assert stays.summary.samples == 6


# Readings


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '0, NVIDIA H200, 1980, 3201, 76.50, 700.00, 31'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tool


def test_gpu_readings_come_from_nvidia_smi(nvidia_smi: Path) -> None:
    assert gpu_readings("cpu") == []
    (reading,) = gpu_readings("cuda")
    assert reading["name"] == "NVIDIA H200"
    assert reading["clocks.sm"] == "1980"
    nvidia_smi.write_text("#!/bin/sh\nexit 9\n")
    assert gpu_readings("cuda") == []


@pytest.mark.usefixtures("nvidia_smi")
def test_the_watch_reads_while_the_block_runs() -> None:
    start = time.monotonic()
    with Watch("cuda") as watch:
        while len(watch._answers) < 2 and time.monotonic() < start + 30:
            time.sleep(0.1)
    state = watch.state([(start, time.monotonic())])
    assert state is not None
    assert (state.sm_mhz, state.memory_mhz, state.power_w, state.temperature_c) == (1980, 3201, 76.5, 31)
    assert state.readings >= 2
    assert watch.state([(start - 2, start - 1)]) is None


def test_of_two_cards_the_one_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    def cards(_: str) -> list[dict[str, str]]:
        keys = "index", "clocks.sm", "clocks.mem", "power.draw", "temperature.gpu"
        return [dict(zip(keys, card, strict=True)) for card in (("0", "345", "1", "75", "30"), BUSY)]

    monkeypatch.setattr(timing, "gpu_readings", cards)
    with Watch("cuda") as watch:
        pass
    state = watch.state([(0.0, time.monotonic())])
    assert state is not None
    assert (state.sm_mhz, state.power_w, state.temperature_c) == (1755, 690, None)


BUSY = ("1", "1755", "3201", "690", "[N/A]")
