"""Judges somebody's kernel in a process of its own: one that crashes or never ends takes that alone.

python -m vgg16gpu_lab.exercises.judge    reads what to judge from standard input, as JSON, and prints the findings so
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from vgg16gpu.devices import open_device
from vgg16gpu.errors import DeviceError, Error, InputError
from vgg16gpu.io.files import followed
from vgg16gpu_lab.exercises.bench import Bench, read_kernels
from vgg16gpu_lab.exercises.exercise import NAMES, Exercise, Finding, exercise

SECONDS: Final = 120.0  # compiling included
ORDERS: Final = ("forward", "reverse")  # in which the CPU device runs the threads of a block

_NAMED: Final = re.compile(r"\A// (?:Exercise|Solution of) ([\w-]+):")
_HEAD: Final = 200  # characters in which the name must be


class NoDeviceError(DeviceError):
    """The device is not there: nothing can be said of the kernel."""


@dataclass(frozen=True)
class Verdict:
    """What was found in a file. `problem` says why it could not be run to its end; "" where it could."""

    exercise: str
    device: str
    findings: tuple[Finding, ...]
    problem: str = ""

    @property
    def passed(self) -> bool:
        """Return whether nothing is wrong."""
        return not self.problem and bool(self.findings) and all(finding.ok for finding in self.findings)


def which(path: Path) -> Exercise:
    """Return the exercise of a file, by its first line, else its name. Raises InputError for other files."""
    try:
        head = read_kernels(path)[:_HEAD]
    except InputError as error:
        raise InputError(f"{error}; `vgg16gpu lab exercise start NAME` writes one") from error
    found = _NAMED.match(head)
    name = found[1] if found else path.stem.replace("_", "-")
    if name not in NAMES:
        raise InputError(f"{path} is of no exercise: its first line should be '// Exercise NAME: ...', as it was")
    return exercise(name)


def check(path: Path, device: str) -> Verdict:
    """Judge a file on a device by name. Raises InputError for a file of no exercise, DeviceError for no device."""
    chosen = which(path)
    task = {"exercise": chosen.name, "file": str(followed(path)), "device": device}
    command = [sys.executable, "-m", "vgg16gpu_lab.exercises.judge"]
    try:
        done = subprocess.run(
            command, input=json.dumps(task), capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return Verdict(chosen.name, device, (), f"it did not end within {SECONDS:g} s: a loop without an end?")
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        return Verdict(chosen.name, device, (), f"it ended its process by {name}: it goes far outside of its arrays")
    if done.returncode or not done.stdout:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return Verdict(chosen.name, device, (), last)
    found = json.loads(done.stdout.splitlines()[-1])
    if "no_device" in found:
        raise NoDeviceError(found["no_device"])
    return _verdict(found)


def judge(chosen: Exercise, path: Path, device: str) -> Verdict:
    """Judge in this process. On the CPU device the threads of a block run in two orders, shared memory is NaN.

    Raises NoDeviceError; what else goes wrong is the kernel's.
    """
    findings: list[Finding] = []
    name = device
    try:
        for label, bench in _benches(path, device):
            name = bench.device.facts.name
            found = list(chosen.judge(bench))
            findings += found if not findings else [_labelled(found[0], label)]
    except NoDeviceError:
        raise
    except Error as error:
        return Verdict(chosen.name, name, tuple(findings), str(error))
    return Verdict(chosen.name, name, tuple(findings))


def _labelled(finding: Finding, label: str) -> Finding:
    return Finding(f"{finding.what}, {label}", finding.ok, finding.found, finding.wanted, finding.look)


def _benches(path: Path, device: str) -> Iterator[tuple[str, Bench]]:
    os.environ["VGG16GPU_SANITIZE"] = "poison"
    for order in ORDERS:
        os.environ["VGG16GPU_ORDER"] = order
        try:
            opened, _ = open_device(device)
        except DeviceError as error:
            raise NoDeviceError(str(error)) from error
        try:
            yield f"threads in {order} order", Bench(opened, path)
            if opened.facts.kind != "cpu":
                return
        finally:
            opened.close()


def _verdict(content: dict[str, Any]) -> Verdict:
    findings = tuple(Finding(**finding) for finding in content["findings"])
    return Verdict(content["exercise"], content["device"], findings, content["problem"])


def main() -> None:
    """Judge what standard input names."""
    task = json.load(sys.stdin)
    try:
        found = asdict(judge(exercise(task["exercise"]), Path(task["file"]), task["device"]))
    except NoDeviceError as error:
        found = {"no_device": str(error)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
