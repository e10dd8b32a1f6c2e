"""A dry run: somebody's own variant on small images of odd sizes in other processes, before it is run in this one.

What is run there, and what shows: process.py. Here the processes are started, and what ends them is told.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from vgg16gpu.devices.cpu import sanitize
from vgg16gpu.errors import DeviceError
from vgg16gpu_lab.measure.bench_rig import Case
from vgg16gpu_lab.measure.dry_run.process import Task
from vgg16gpu_lab.measure.measure import Measurement, Status
from vgg16gpu_lab.variant import Variant

SECONDS: Final = 30.0  # for a run, without compiling

_log = logging.getLogger(__name__)
_COMMAND: Final = (sys.executable, "-m", "vgg16gpu_lab.measure.dry_run.process")
_ACCESS: Final = re.compile(r"^(READ|WRITE) of size (\d+)", re.MULTILINE)
_UNDEFINED: Final = re.compile(r"runtime error: (.+)")
_PLACE: Final = re.compile(r"([^/\s:]+\.cuh?):(\d+)")


def dry_run(folder: Path, device: str, variant: Variant, cases: Sequence[Case]) -> list[Measurement | None]:
    """Return what is wrong with a variant of the folder in each case, None where nothing is known against it.

    On `device` ("cpu", "cuda:N"), then on the CPU, then under the address sanitizer there: each has what passed before.
    Where the last two cannot be had that is logged.
    """
    found: dict[int, Measurement] = {}
    for stage in _stages(device):
        task = Task("", str(folder), stage.device, stage.is_sanitized, variant.name, SECONDS, ())
        left = {number: case for number, case in enumerate(cases) if number not in found}
        found |= _TriedCases(stage, task, left).found
    return [found.get(number) for number in range(len(cases))]


@dataclass(frozen=True)
class _Stage:
    """Where the cases are run. An optional one may not know what the device itself can do: that is no fault."""

    device: str
    environment: Mapping[str, str]
    is_sanitized: bool = False
    is_optional: bool = True

    def __str__(self) -> str:
        return "under the address sanitizer" if self.is_sanitized else f"on {self.device}"


def _stages(device: str) -> Iterator[_Stage]:
    environment = {name: value for name, value in os.environ.items() if name != "VGG16GPU_SANITIZE"}
    yield _Stage(device, environment, is_optional=False)
    if device != "cpu":
        yield _Stage("cpu", environment)
    try:
        yield _Stage("cpu", sanitize.environment("address"), is_sanitized=True)
    except DeviceError as error:
        _log.warning("what a kernel reads beside its arrays and does not use stays unseen: %s", error)


class _TriedCases:
    """The cases of a stage, in as many processes as it takes: one that ends is followed by one with what is left."""

    def __init__(self, stage: _Stage, task: Task, cases: Mapping[int, Case]) -> None:
        self.found: dict[int, Measurement] = {}
        self._noted: set[str] = set()
        self._stage, self._task, self._left = stage, task, dict(cases)
        while self._left:
            self._perform()

    def _perform(self) -> None:
        done, lines = self._process()
        begun: dict[str, Any] | None = None
        for line in lines:
            begun = None if line["what"] == "end" else line
            if begun is None:
                self._hear(line["number"], _measurement(line))
        if begun:
            self._blame(done, begun["number"], begun.get("where", ""))
        elif not lines:
            self._give_up(_last_line(done.stderr) or f"exit code {done.returncode}", "its dry run failed: {}")

    def _process(self) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]:
        cases = [(number, asdict(problem), dict(given)) for number, (problem, given) in self._left.items()]
        with TemporaryDirectory(prefix="vgg16gpu-") as folder:
            report = Path(folder, "report")
            report.touch()
            task = json.dumps({**asdict(self._task), "report": str(report), "cases": cases})
            done = subprocess.run(
                _COMMAND,
                input=task,
                capture_output=True,
                text=True,
                errors="replace",
                env=dict(self._stage.environment),
                check=False,
            )
            return done, [json.loads(line) for line in report.read_text(encoding="utf-8").splitlines()]

    def _hear(self, number: int, found: Measurement | None) -> None:
        """Note the process's own verdict on a case."""
        if found and found.status is Status.FAILED and self._stage.is_optional:
            self._note(found.reason)  # it does not compile there, or cannot be launched
            found = None
        self._settle(number, found)

    def _settle(self, number: int, found: Measurement | None) -> None:
        del self._left[number]
        if found:
            self.found[number] = found

    def _blame(self, done: subprocess.CompletedProcess[str], number: int, where: str) -> None:
        """Blame the case that was under way when the process ended."""
        if done.returncode != -signal.SIGALRM:
            what = _told(done.stderr) if self._stage.is_sanitized else _ended(done.returncode)
            self._settle(number, Measurement(Status.FAILED, f"{where}{what}"))
            return
        reason = f"{where}did not end within {self._task.seconds:g} s: a loop without an end?"
        if not self._stage.is_optional:
            self._settle(number, Measurement(Status.FAILED, reason))
        self._give_up(reason, "not run, as it did not end elsewhere: {}")  # each would take as long

    def _give_up(self, reason: str, words: str = "{}") -> None:
        """Settle all that is left: by saying so, or where the stage is needed as faults."""
        if self._stage.is_optional:
            self._note(reason)
            self._left.clear()
        for number in tuple(self._left):
            self._settle(number, Measurement(Status.FAILED, words.format(reason)))

    def _note(self, reason: str) -> None:
        """Log once that something was not tried."""
        if reason not in self._noted:
            _log.warning("%s was not tried %s: %s", self._task.variant, self._stage, reason)
        self._noted.add(reason)


def _measurement(line: Mapping[str, Any]) -> Measurement | None:
    fields = {name: value for name, value in line.items() if name not in ("what", "number")}
    return Measurement(**{**fields, "status": Status(fields["status"])}) if fields else None


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended its process with exit code {code}"
    return f"ended its process by {signal.Signals(-code).name}: it reads or writes far outside of its arrays"


def _told(report: str) -> str:
    """Sum up a sanitizer's report on a line."""
    access, undefined, place = (pattern.search(report) for pattern in (_ACCESS, _UNDEFINED, _PLACE))
    if access:
        what = f"{'reads' if access[1] == 'READ' else 'writes'} {access[2]} bytes outside of its arrays"
    else:
        what = undefined[1] if undefined else _last_line(report) or "ended by the address sanitizer"
    line = f" in {place[1]}, line {place[2]}" if place else ""
    return f"{what}{line} (address sanitizer): no time"


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]
