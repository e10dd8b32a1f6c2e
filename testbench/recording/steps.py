"""Commands one after the other within a given time: what each prints goes to a log, a table says how all ended."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Final

from testbench.recording.says import says

ROOT: Final = Path(__file__).resolve().parents[2]
PYTHON: Final = sys.executable
DONE, STOPPED, NO_RECORD = "done", "stopped", "no record"
NO_TIME, MADE_BEFORE, MISSING = "no time left", "made before", "not installed"
TAIL: Final = 30  # lines of a failed command that are shown
NOT_STARTED: Final = 127  # as a shell says it
MERCY: Final = 5.0  # seconds from SIGTERM to SIGKILL


@dataclass(frozen=True)
class Step:
    """A command: what it is called, how many seconds it takes on an H200 with 16 cores, and the files that it makes.

    `stdout`: what it prints is one of them. `environ`: what is other than here; None: not set. `needs`: packages
    without which it is left out. `once`: a file that is always the same; where it lies the step is not repeated.
    """

    name: str
    command: tuple[str, ...]
    seconds: float
    makes: tuple[Path, ...] = ()
    stdout: Path | None = None
    cwd: Path = ROOT
    environ: Mapping[str, str | None] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    once: Path | None = None

    def shown(self) -> str:
        """As a shell takes it, from the checkout's folder, with `python` for the Python that runs this."""
        words = ["python" if word == PYTHON else word for word in self.command]
        names = [f"-u {name}" for name, value in self.environ.items() if value is None]
        pairs = [f"{name}={shlex.quote(value)}" for name, value in self.environ.items() if value is not None]
        changed = ["env", *names, *pairs] if names or pairs else []
        target = f" > {shlex.quote(str(self.stdout))}" if self.stdout else ""
        folder = f"cd {shlex.quote(str(self.cwd))} && " if self.cwd != ROOT else ""
        return folder + " ".join([*changed, shlex.join(words)]) + target


@dataclass(frozen=True)
class Ended:
    """What became of a step. `log`: where its output lies; `made`: the files that it wrote."""

    step: Step
    status: str
    seconds: float
    log: Path | None = None
    made: tuple[Path, ...] = ()

    @property
    def is_well(self) -> bool:
        """Whether it did what it is there for, or cannot here."""
        return self.status in (DONE, MADE_BEFORE) or self.status.endswith(MISSING)

    def line(self) -> str:
        """A row of the table."""
        found = "; ".join(f"{path.name}: {says(path)}" for path in self.made)
        return f"{self.step.name:20} {self.step.seconds:8.0f} {self.seconds:8.1f}  {self.status:14} {found}".rstrip()


@dataclass(frozen=True)
class Recipe:
    """Steps, and what is made of all that they left, once they have ended: the files that it wrote."""

    steps: Sequence[Step]
    finish: Callable[[Mapping[str, Ended]], Sequence[Path]] | None = None


def run_all(steps: Sequence[Step], limit: float, logs: Path) -> list[Ended]:
    """Run what fits into `limit` seconds by its expected time; at the end of them the step that runs is stopped."""
    logs.mkdir(parents=True, exist_ok=True)
    deadline, ended = time.monotonic() + limit, list[Ended]()
    for step in steps:
        left = deadline - time.monotonic()
        if lacking := [name for name in step.needs if find_spec(name) is None]:
            ended.append(Ended(step, f"{', '.join(lacking)} {MISSING}", 0.0))
        elif step.once and step.once.is_file():
            ended.append(Ended(step, MADE_BEFORE, 0.0))
        elif step.seconds > left:
            ended.append(Ended(step, NO_TIME, 0.0))
        else:
            print(f"{step.name} ({step.seconds:.0f} s, {left:.0f} left): {step.shown()}", flush=True)
            ended.append(run(step, left, logs / f"{step.name}.log"))
            _tell(ended[-1])
    return ended


def run(step: Step, limit: float, log: Path) -> Ended:
    """Run one, and whatever it starts, for `limit` seconds at most."""
    for path in (*step.makes, *([step.stdout] if step.stdout else [])):
        path.parent.mkdir(parents=True, exist_ok=True)
    before = {path: _written(path) for path in step.makes}
    environ = {**os.environ, "PYTHONPATH": _search_path(step.cwd)}
    environ |= {name: value for name, value in step.environ.items() if value is not None}
    for name in (name for name, value in step.environ.items() if value is None):
        environ.pop(name, None)
    started = time.monotonic()
    with log.open("wb") as told, step.stdout.open("wb") if step.stdout else nullcontext(told) as out:
        try:
            code = _call(step, environ, limit, out, told)
        except OSError as error:  # no such program or folder
            told.write(f"{error}\n".encode())
            code = NOT_STARTED
    seconds = time.monotonic() - started
    made = tuple(path for path in step.makes if _written(path) not in (None, before[path]))
    if code is None:
        return Ended(step, STOPPED, seconds, log, made)
    status = f"exit code {code}" if code else DONE if made == step.makes else NO_RECORD
    return Ended(step, status, seconds, log, made)


def _call(step: Step, environ: Mapping[str, str], limit: float, out: IO[bytes], told: IO[bytes]) -> int | None:
    """The exit code; None where the time was over first."""
    process = subprocess.Popen(step.command, cwd=step.cwd, env=environ, stdout=out, stderr=told, start_new_session=True)
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(process)


def table(ended: Sequence[Ended]) -> str:
    """What is printed last."""
    head = f"{'step':20} {'expected':>8} {'took (s)':>8}  {'ended':14} what the record says"
    return "\n".join([head, *(each.line() for each in ended)])


def _search_path(folder: Path) -> str:
    """Modules of the checkout that the command runs in come before all others."""
    own = [str(folder), str(folder / "serving"), str(folder / "lab")]
    return os.pathsep.join([*own, *filter(None, [os.environ.get("PYTHONPATH")])])


def _written(path: Path) -> int | None:
    return path.stat().st_mtime_ns if path.is_file() else None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Whatever is left of the process and of those that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except (ProcessLookupError, PermissionError):
            break
        try:
            process.wait(MERCY)
        except subprocess.TimeoutExpired:
            continue
        if number == signal.SIGTERM:
            time.sleep(0.1)


def _tell(ended: Ended) -> None:
    """The last lines of what has failed."""
    if not ended.is_well and ended.log:
        lines = ended.log.read_text(errors="replace").splitlines()[-TAIL:]
        print("\n".join([f"{ended.step.name}: {ended.status}; the end of {ended.log}:", *lines]), flush=True)
