"""The process of a dry run of somebody's own variant: one that crashes or hangs takes that alone.

python -m vgg16gpu_lab.measure.dry_run.process    reads a `Task` from standard input, as JSON

Each case is run twice. First there are NaNs beside the arrays, in the workspace and in y: what is read there shows in
the answer, what is written there shows in the NaNs. Then it is 3.4e38, as fmaxf swallows a NaN, and a CPU runs the
threads of a block in reverse order, where a missing barrier shows. Under the address sanitizer nothing but the arrays
may be touched: a read shows whose value nobody uses.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from vgg16gpu.devices import open_device
from vgg16gpu.devices.base import Device
from vgg16gpu.devices.cpu import sanitize
from vgg16gpu.errors import Error
from vgg16gpu_lab.measure.dry_run.problems import small_problems
from vgg16gpu_lab.measure.measure import Measurement, Status, verdict
from vgg16gpu_lab.measure.outcome import outcome
from vgg16gpu_lab.measure.trial import Trial
from vgg16gpu_lab.own.own_variants import own_variants
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.variant import Parameters, Variant


@dataclass(frozen=True)
class Task:
    """What the process is to do; it begins a line of `report` for what it begins and for what it has done."""

    report: str  # a file
    folder: str
    device: str
    sanitized: bool  # by the address sanitizer, which is in the process already
    variant: str
    seconds: float  # after which the process ends itself
    cases: Sequence[tuple[int, Mapping[str, Any], Mapping[str, int]]]  # number, fields of the problem, parameters


class Guarded(Trial):
    """A trial with a poison of choice, which the workspace holds as well."""

    def __init__(self, poison: int, *trial: Any) -> None:
        self.poison = poison
        super().__init__(*trial)

    def forbid_gaps(self) -> None:
        """Let the address sanitizer end the process where the gaps are touched; `trespass` must not be called then."""
        for offset, nbytes in self._gaps.values():
            sanitize.forbid(self._base + offset, nbytes)

    def _fill(self) -> None:
        if nbytes := self.variant.workspace_nbytes(self.problem, self.parameters):
            self.device.copy_in(self._at(self._places.workspace), np.full(nbytes, self.poison, np.uint8))
        super()._fill()


@dataclass(frozen=True)
class Way:
    """A device to run on, and what lies beside the arrays there."""

    device: Device
    poison: int
    words: str = ""  # what is unusual


def ways(task: Task) -> list[Way]:
    """Return how often each problem is run, and where. Raises DeviceError."""
    device, _ = open_device(task.device)
    if task.sanitized:
        return [Way(device, 0xFF, ", shared memory full of NaN")]
    if device.facts.kind != "cpu":
        return [Way(device, 0xFF), Way(device, 0x7F)]
    os.environ["VGG16GPU_ORDER"] = "reverse"
    backwards, _ = open_device(task.device)
    return [Way(device, 0xFF), Way(backwards, 0x7F, ", threads in reverse order")]


class CaseRunner:
    """Does a task and writes the report."""

    def __init__(self, task: Task, report: TextIO) -> None:
        self._task, self._report = task, report
        self._ways = ways(task)
        found = own_variants(Path(task.folder))
        self._variant: Variant = next(variant for variant in found if variant.name == task.variant)
        self._known: dict[object, Measurement | None] = {}  # cases may be tried on the same problems

    def run(self) -> None:
        """Run all cases, until one breaks the device."""
        for number, fields, given in self._task.cases:
            self._watch()
            self._tell("begin", number)
            found, is_broken = self._case(number, Problem(**fields), given)
            self._tell("end", number, **(asdict(found) if found else {}))
            if is_broken:
                return
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _case(self, number: int, asked: Problem, given: Parameters) -> tuple[Measurement | None, bool]:
        """Return what is wrong, and whether the device is beyond use."""
        where = ""
        try:
            parameters = self._variant.with_defaults(given)
            for problem in small_problems(self._variant, asked, parameters, self._ways[0].device.facts):
                for way in self._ways:
                    where = f"dry run on an output of {problem.out_height}x{problem.out_width}{way.words}: "
                    if fault := self._run(number, where, way, problem, parameters):
                        return Measurement(**{**asdict(fault), "reason": where + fault.reason}), False
        except Exception as error:
            found = outcome(error)
            reason = found.reason if found.output else where + found.reason
            return Measurement(Status.FAILED, reason, output=found.output), self._is_broken()
        return None, False

    def _run(self, number: int, where: str, way: Way, problem: Problem, parameters: Parameters) -> Measurement | None:
        key = way.words, way.poison, problem, tuple(sorted(parameters.items()))
        if key not in self._known:
            self._watch(0)  # compilers end
            with Guarded(way.poison, way.device, self._variant, problem, parameters) as trial:
                self._watch()
                self._tell("begin", number, where=where)
                self._known[key] = self._fault(trial)
        return self._known.get(key)

    def _fault(self, trial: Guarded) -> Measurement | None:
        if self._task.sanitized:
            trial.forbid_gaps()
        found = verdict(trial.error(), "all outputs", trial.variant.allowed(trial.problem))
        if not self._task.sanitized and (where := trial.trespass()):
            return Measurement(Status.WRONG, f"writes {where}: no time", found.error, found.tolerance, found.checked)
        return None if found.status is Status.RIGHT else found

    def _is_broken(self) -> bool:
        for way in self._ways:
            with suppress(Error):
                way.device.synchronize()
                continue
            return True
        return False

    def _watch(self, seconds: float | None = None) -> None:
        """End the process after so long: nothing in it could stop a kernel."""
        signal.setitimer(signal.ITIMER_REAL, self._task.seconds if seconds is None else seconds)

    def _tell(self, what: str, number: int, **more: Any) -> None:
        print(json.dumps({"what": what, "number": number, **more}), file=self._report, flush=True)


def main() -> None:
    """Do the task of standard input."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    task = Task(**json.load(sys.stdin))
    with Path(task.report).open("w", encoding="utf-8") as report:
        CaseRunner(task, report).run()


if __name__ == "__main__":
    main()
