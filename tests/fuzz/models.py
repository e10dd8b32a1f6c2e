"""Hostile files in large numbers: none may crash, hang, read outside of its folder, or give a wrong answer.

    python -m tests.fuzz.models [--cases N] [--seconds S] [--seed N] [--jobs N] [--output FILE]

Case `number` of a seed is always the same file (cases.py). Worker processes load each one; what is accepted and small
is run on the cpu device and compared with onnxruntime. Loading may take 5 s, and 256 MiB more than folding constants
may. A failed case is kept, as a folder with the model and a report. Exit code 1 when there is one.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import platform
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final

from rich.progress import Progress

from tests.fuzz.cases import case
from tests.fuzz.worker import (
    AGREES,
    COMPILING,
    CRASH,
    FAILURES,
    HANG,
    JUDGING,
    LOADING,
    MAKING,
    NO_JUDGE,
    RUNNING,
    VERDICTS,
    Outcome,
    work,
)
from vgg16gpu.bench.measure.environment import commit
from vgg16gpu.bench.records.record import write
from vgg16gpu.cli.common.show import add_row, console, heading, progress, table

DEFAULT_CASES: Final = 10_000
CASE_SECONDS: Final = 5.0  # of a processor, to load, and again to run
SLOW_SECONDS: Final = 120.0  # for all else: a compiler, a process that starts, one that waits
STAGES: Final = {
    LOADING: "loading",
    RUNNING: "running",
    COMPILING: "compiling",
    JUDGING: "in onnxruntime",
    MAKING: "idle",
}
SHOWN_REASONS: Final = 40
RECORDED_REASONS: Final = 100  # the most frequent ones
KEPT: Final = 10  # failures of a kind


@dataclass(frozen=True)
class Subject:
    """What is fuzzed: how a worker examines cases, what a case consists of, and what a record says of it."""

    command: str
    description: str
    what: str  # in one line, for the record
    work: Callable[[Connection, Any, Path, int, range], None]
    case: Callable[[int, int], tuple[str, Mapping[str, bytes]]]  # by number and seed: what it is made of, its files
    verdicts: Sequence[str]
    agrees: str  # the verdict of what was compared
    packages: Sequence[str]


def models() -> Subject:
    """ONNX files, loaded and run."""
    return Subject(
        "tests.fuzz.models",
        (__doc__ or "").splitlines()[0],
        "hostile ONNX files: loaded, run on the cpu device where accepted, compared with onnxruntime",
        work,
        _model_case,
        VERDICTS,
        AGREES,
        ("numpy", "onnx", "protobuf", "onnxruntime"),
    )


def _model_case(number: int, seed: int) -> tuple[str, Mapping[str, bytes]]:
    found = case(number, seed)
    return found.seed.name, {**found.seed.files, "model.onnx": found.data}


@dataclass(eq=False)
class Worker:
    """A process, the numbers that it is to examine, and what it is doing."""

    process: Any
    pipe: Connection
    state: Any
    numbers: range
    was_late: bool = False  # and has been killed for it

    @property
    def number(self) -> int:
        """The case that it is at."""
        return int(self.state[0])

    @property
    def stage(self) -> int:
        """What it is doing."""
        return int(self.state[1])

    @property
    def is_late(self) -> bool:
        """Whether it has been doing that for too long."""
        waited = time.monotonic() - self.state[2]
        if waited > SLOW_SECONDS or self.stage not in (LOADING, RUNNING, JUDGING):
            return bool(waited > SLOW_SECONDS)
        # Its own time too: on a busy machine a process waits for its turn.
        return bool(waited > CASE_SECONDS and cpu_seconds(self.process.pid) - self.state[3] > CASE_SECONDS)


def cpu_seconds(process: int) -> float:
    """The time that the processors have spent on a process; 0 when it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(eq=False)
class Campaign:
    """A run of the fuzzer: workers and what they found."""

    subject: Subject
    seed: int
    numbers: range
    jobs: int
    folder: Path
    keep: Path
    verdicts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[Outcome] = field(default_factory=list)
    peak_nbytes: int = 0
    started: Iterator[int] = field(default_factory=itertools.count)

    @property
    def failed(self) -> int:
        """How many cases have failed."""
        return sum(self.verdicts[verdict] for verdict in FAILURES)

    def run(self, deadline: float, bar: Progress) -> None:
        """Examine the numbers until they are done or the time is over."""
        task = bar.add_task("files", total=len(self.numbers) if len(self.numbers) < sys.maxsize else None)
        workers = [self._start(self.numbers[first :: self.jobs]) for first in range(self.jobs)]
        try:
            while workers and time.monotonic() < deadline:
                ready = wait([worker.pipe for worker in workers], timeout=0.1)
                for worker in list(workers):
                    if worker.pipe in ready and not self._receive(worker):
                        workers.remove(worker)
                        workers += self._after_death(worker)
                    elif worker.is_late and not worker.pipe.poll():
                        worker.was_late = True
                        worker.process.kill()  # seen as its death in the next round
                bar.update(task, completed=self.verdicts.total())
        finally:
            for worker in workers:
                worker.process.kill()
                worker.process.join()

    def _start(self, numbers: range) -> Worker:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe(duplex=False)
        state = context.RawArray("d", [-1.0, MAKING, time.monotonic(), 0.0])
        folder = self.folder / str(next(self.started))
        arguments = (there, state, folder, self.seed, numbers)
        process = context.Process(target=self.subject.work, args=arguments, daemon=True)
        process.start()
        there.close()
        return Worker(process, here, state, numbers)

    def _receive(self, worker: Worker) -> bool:
        """Take what a worker has sent; False when there will be no more."""
        try:
            while worker.pipe.poll():
                outcome, nbytes = worker.pipe.recv()
                self.peak_nbytes = max(self.peak_nbytes, nbytes)
                self._note(outcome)
        except (EOFError, OSError):
            return False
        return True

    def _after_death(self, worker: Worker) -> list[Worker]:
        """Judge a process that has ended; another one goes on behind the case that it died of."""
        worker.process.join()
        code = worker.process.exitcode
        if code == 0:
            return []
        if worker.number < 0:
            raise SystemExit(f"a worker died before its first file, exit code {code}")
        doing = STAGES[worker.stage]
        if worker.stage in (JUDGING, COMPILING, MAKING):
            self._note(Outcome(worker.number, NO_JUDGE, f"process ended {doing}"))
        elif worker.was_late:
            self._note(Outcome(worker.number, HANG, doing, f"more than {CASE_SECONDS} s {doing}"))
        else:
            self._note(Outcome(worker.number, CRASH, f"process ended {doing}", f"exit code {code} {doing}"))
        left = range(worker.number + worker.numbers.step, worker.numbers.stop, worker.numbers.step)
        return [self._start(left)] if left else []

    def _note(self, outcome: Outcome) -> None:
        self.verdicts[outcome.verdict] += 1
        self.reasons[outcome.verdict, outcome.reason] += 1
        if outcome.verdict in FAILURES and self.reasons[outcome.verdict, outcome.reason] <= KEPT:
            self.failures.append(outcome)
            self._keep(outcome)

    def _keep(self, outcome: Outcome) -> None:
        """The failed case as files."""
        folder = self.keep / f"{outcome.verdict.split()[0]}-{self.seed}-{outcome.number}"
        folder.mkdir(parents=True, exist_ok=True)
        made_of, files = self.subject.case(outcome.number, self.seed)
        for name, content in files.items():
            (folder / name).write_bytes(content)
        (folder / "report.txt").write_text(f"{made_of}: {outcome.report}\n")


def main(arguments: Sequence[str] | None = None, subject: Subject | None = None) -> int:
    """Run, print the tables, write the record; 1 when a case failed."""
    subject = subject or models()
    parser = argparse.ArgumentParser(prog=f"python -m {subject.command}", description=subject.description)
    parser.add_argument("--cases", type=int, help=f"How many files; {DEFAULT_CASES}, or as many as --seconds allow.")
    parser.add_argument("--first", type=int, default=0, help="The number of the first one.")
    parser.add_argument("--seconds", type=float, help="Stop after so long.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="Worker processes.")
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz"), metavar="DIR", help="For failed cases.")
    parser.add_argument("--output", type=Path, help="Write what was found as JSON.")
    options = parser.parse_args(arguments)
    count = options.cases or (DEFAULT_CASES if options.seconds is None else sys.maxsize - options.first)
    numbers = range(options.first, options.first + count)
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # a disk is slower than the loader
    folder = Path(tempfile.mkdtemp(prefix="vgg16gpu-fuzz-", dir=memory))
    campaign = Campaign(subject, options.seed, numbers, max(1, min(options.jobs, count)), folder, options.keep)
    started = time.monotonic()
    try:
        with progress() as bar:
            campaign.run(started + (options.seconds or float("inf")), bar)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    seconds = time.monotonic() - started
    show(campaign, seconds)
    if options.output:
        write(options.output, record(campaign, seconds))
    return int(campaign.failed > 0)


def show(campaign: Campaign, seconds: float) -> None:
    """The tables."""
    screen, done = console(), campaign.verdicts.total()
    heading(screen, f"{done} files in {seconds:.0f} s, {done / seconds:.0f} each second; {_peak(campaign)} at most")
    outcomes = table(("what became of them", "files"), right=("files",))
    for verdict in campaign.subject.verdicts:
        add_row(outcomes, verdict, campaign.verdicts[verdict])
    screen.print(outcomes)
    reasons = table(("why", "of it", "files"), right=("files",))
    named = [(key, number) for key, number in campaign.reasons.most_common() if key[1]]
    for (verdict, reason), number in named[:SHOWN_REASONS]:
        add_row(reasons, verdict, reason, number)
    if len(named) > SHOWN_REASONS:
        add_row(
            reasons, "...", f"{len(named) - SHOWN_REASONS} more", sum(number for _, number in named[SHOWN_REASONS:])
        )
    screen.print(reasons)
    for outcome in campaign.failures[:SHOWN_REASONS]:
        print(f"FAIL: {outcome.verdict}: case {outcome.number} of seed {campaign.seed}: {outcome.reason}")
    if failed := campaign.failed:
        print(f"FAIL: {failed} in all; up to {KEPT} of a kind are kept in {campaign.keep}")


def record(campaign: Campaign, seconds: float) -> dict[str, Any]:
    """What was found, for a file."""
    done, subject = campaign.verdicts.total(), campaign.subject
    return {
        "what": subject.what,
        "passed": campaign.failed == 0,
        "seed": campaign.seed,
        "first": campaign.numbers[0],
        "cases": done,
        "seconds": round(seconds, 1),
        "per_second": round(done / seconds, 1),
        "jobs": campaign.jobs,
        "peak_nbytes": campaign.peak_nbytes,
        "compared": campaign.verdicts[subject.agrees],
        "verdicts": {verdict: campaign.verdicts[verdict] for verdict in subject.verdicts},
        "reasons": [[*key, number] for key, number in campaign.reasons.most_common(RECORDED_REASONS) if key[1]],
        "different_reasons": len(campaign.reasons),
        "failures": [vars(outcome) for outcome in campaign.failures],
        "environment": {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": commit(Path(__file__).resolve().parents[2]),
            "machine": platform.machine(),
            "python": platform.python_version(),
            **{name: version(name) for name in subject.packages},
        },
    }


def _peak(campaign: Campaign) -> str:
    return f"{campaign.peak_nbytes >> 20} MiB"


if __name__ == "__main__":
    sys.exit(main())
