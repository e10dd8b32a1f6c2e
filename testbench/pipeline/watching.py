"""A process of ours from its start to its end, watched from outside: rows of its file, memory, processor time."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from vgg16gpu.devices.stages import read_run
from vgg16gpu.errors import Error

POLL_SECONDS: Final = 0.002
_MEMORY_SECONDS: Final = 0.05  # between two looks at what it has taken
_MEMORY: Final = re.compile(rb"^Vm(?:HWM|RSS):\s+(\d+) kB$", re.MULTILINE)
_PACKAGES = str(Path(__file__).resolve().parents[2])  # so that it is this very package, wherever the command runs


@dataclass(frozen=True)
class Rows:
    """When the rows of the file came, by the seconds since the process was started.

    first: rows that were there when the first were seen, or those of a batch: the rest of it may wait for a file before
    it. per_s: those behind them by the time from then to the last; cpu_s_each: seconds of all processors for each of
    them. Both None where all came at once, the latter also where a system does not tell.
    """

    first: int
    to_first_s: float
    to_last_s: float
    per_s: float | None
    cpu_s_each: float | None


@dataclass(frozen=True)
class Watched:
    """One process that has ended. told: what it reported of itself."""

    whole_s: float
    count: int  # rows
    rows: Rows
    peak_memory_nbytes: int
    told: Mapping[str, Any]


def infer_command(*words: object) -> list[str]:
    """`infer` of this very package, which reports itself in its log."""
    return [sys.executable, "-P", "-m", "vgg16gpu", "-vv", "infer", *map(str, words)]


def watch(command: Sequence[str], output: Path, environ: Mapping[str, str]) -> Watched:
    """Run `infer` to its end while it writes `output`, a .csv. Raises Error, with its last line, if it wrote none."""
    environ = {**environ, "PYTHONPATH": os.pathsep.join(filter(None, [_PACKAGES, environ.get("PYTHONPATH")]))}
    with tempfile.TemporaryFile() as errors:
        start = time.perf_counter()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, env=environ
        )
        try:
            growth, peak = _followed(process, output, start)
            whole = time.perf_counter() - start
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        errors.seek(0)
        log = errors.read().decode(errors="replace").strip()
    told = read_run(log)
    if process.returncode not in (0, 1) or told is None or growth is None:
        said = (log.splitlines() or ["no message"])[-1].removeprefix("vgg16gpu: ")
        raise Error(f"--pictures: infer ended with {process.returncode}: {said}")
    count = count_rows(output)
    return Watched(whole, count, growth.rows(count, int(told["batch"])), peak, told)


def count_rows(output: Path) -> int:
    """Those of a .csv file, without its head; names may hold line breaks."""
    with output.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        return max(0, sum(1 for _ in csv.reader(file)) - 1)


@dataclass
class _Growth:
    """The file as it grew: seconds since the start, and of processors."""

    first: int
    to_first: float
    busy_at_first: float
    to_last: float
    busy_at_last: float

    def rows(self, count: int, batch: int) -> Rows:
        """Of a file that has `count` rows at its end, made of batches of so many."""
        first = min(count, max(self.first, batch))
        later, took = count - first, self.to_last - self.to_first
        if later <= 0 or took <= 0:
            return Rows(first, self.to_first, self.to_last, None, None)
        busy = (self.busy_at_last - self.busy_at_first) / later if self.busy_at_first else None
        return Rows(first, self.to_first, self.to_last, later / took, busy)


def _followed(process: subprocess.Popen[bytes], output: Path, start: float) -> tuple[_Growth | None, int]:
    """Until the process ends: how its file grew, and the most memory that it had (bytes)."""
    growth: _Growth | None = None
    size, peak, looked = 0, 0, 0.0
    while process.poll() is None:
        now = time.perf_counter() - start
        found = _size(output)
        if found > size:
            busy = _processor_seconds(process.pid)
            if growth is None:
                growth = _Growth(count_rows(output), now, busy, now, busy)
            growth.to_last, growth.busy_at_last = now, max(busy, growth.busy_at_last)
            size = found
        if now - looked > _MEMORY_SECONDS:
            peak, looked = max(peak, _peak_memory(process.pid)), now
        time.sleep(POLL_SECONDS)
    return growth, peak


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _processor_seconds(process: int) -> float:
    """Of all its threads and of the processes that it has started; 0 of those that have ended.

    The clock of another process has the complement of its number in it.
    """
    seconds = 0.0
    for each in _with_children(process):
        with suppress(OSError):
            seconds += time.clock_gettime((~each << 3) | 2)
    return seconds


def _peak_memory(process: int) -> int:
    """Bytes, as Linux keeps them (VmHWM), or what it has now where they are not kept; 0 once it has ended.

    With those of the processes that it has started: what they share counts in each.
    """
    total = 0
    for each in _with_children(process):
        with suppress(OSError):
            found = _MEMORY.findall(Path(f"/proc/{each}/status").read_bytes())
            total += 1024 * max(map(int, found), default=0)
    return total


def _with_children(process: int) -> list[int]:
    with suppress(OSError):
        tasks = list(Path(f"/proc/{process}/task").iterdir())
        return [process, *(int(word) for task in tasks for word in _words(task / "children"))]
    return [process]


def _words(path: Path) -> list[str]:
    with suppress(OSError):
        return path.read_text(encoding="ascii").split()
    return []
