"""What an exercise is: a kernel with a hole, the check that judges what somebody makes of it, hints, a solution."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

from vgg16gpu.errors import InputError
from vgg16gpu.io.files import write_error
from vgg16gpu_lab.exercises.bench import Bench, Case, Outcome
from vgg16gpu_lab.exercises.log import ENTRIES
from vgg16gpu_lab.problem import Array

NAMES: Final = ("coalesce", "barrier", "tile", "split", "register-tile", "mma-sync")  # in the order to do them
TOLERANCE: Final = 1e-5  # norm-wise


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: what it is, what was found, what is wanted, and where to look if it is wrong."""

    what: str
    ok: bool
    found: str
    wanted: str
    look: str = ""


Judge: TypeAlias = Callable[[Bench], Iterator[Finding]]


@dataclass(frozen=True)
class Exercise:
    """One idea to be put into a kernel that works without it. Its folder has start.cu and solution.cu."""

    name: str
    title: str
    task: str
    hints: tuple[str, ...]
    explanation: str  # of the solution
    judge: Judge
    folder: Path

    @property
    def start(self) -> Path:
        """The kernel with the hole."""
        return self.folder / "start.cu"

    @property
    def solution(self) -> Path:
        """A kernel that passes."""
        return self.folder / "solution.cu"

    def write(self, folder: Path) -> Path:
        """Write the start into `folder`, which is made; its path. Raises InputError if the file is there already."""
        path = folder / f"{self.name}.cu"
        if os.path.lexists(path):
            raise InputError(f"{path} is there already and is left as it is; move it away, or give another --dir")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as stream:
                stream.write(self.start.read_text(encoding="utf-8"))
        except OSError as error:
            raise write_error(path, error) from error
        return path


def exercises() -> tuple[Exercise, ...]:
    """Return all exercises, in the order to do them."""
    return tuple(exercise(name) for name in NAMES)


def exercise(name: str) -> Exercise:
    """Return the exercise of this name. Raises InputError for another name."""
    wanted = name.replace("_", "-")
    if wanted not in NAMES:
        raise InputError(f"there is no exercise '{name}'; there are: {', '.join(NAMES)}")
    module = importlib.import_module(f"vgg16gpu_lab.exercises.{wanted.replace('-', '_')}")
    found: Exercise = module.EXERCISE
    return found


def answer(bench: Bench, cases: Iterator[Case], tolerance: float = TOLERANCE) -> tuple[Finding, list[Outcome]]:
    """Judge whether every case has the right answer and nothing else is written; return the outcomes, too."""
    outcomes, wrong = [], ""
    worst = 0.0
    for case in cases:
        outcome = bench.run(case)
        outcomes.append(outcome)
        if not outcome.error <= tolerance:  # NaN, too
            wrong = wrong or _wrong(case, outcome)
        elif outcome.trespass:
            wrong = wrong or f"{case.name}: it writes {outcome.trespass}"
        elif not outcome.log.complete:
            wrong = wrong or f"{case.name}: over {ENTRIES:,} reads and writes, more than can be counted"
        worst = outcome.error if not outcome.error <= worst else worst
    found = wrong or f"error {worst:.1e}"
    look = "Look at what else is wrong first; then undo your last change and see whether the answer was right before."
    return Finding("right answer", not wrong, found, f"at most {tolerance:g}", look if wrong else ""), outcomes


def _wrong(case: Case, outcome: Outcome) -> str:
    if math.isnan(outcome.error):
        return f"{case.name}: outputs that nobody wrote, or that were made of values beside an array"
    return f"{case.name}: error {outcome.error:.1e}"


def no_race(outcome: Outcome) -> Finding:
    """Judge whether a barrier lies between all that threads do to the same place of shared memory."""
    race = outcome.log.race()
    look = "Both threads must meet at a __syncthreads() after the one has finished and before the other begins."
    return Finding("no race in shared memory", race is None, str(race or "none"), "none", look if race else "")


def at_most(what: str, found: float, most: float, look: str) -> Finding:
    """Judge a count that must not be larger."""
    ok = found <= most
    return Finding(what, ok, _number(found), f"at most {_number(most)}", "" if ok else look)


def at_least(what: str, found: float, least: float, look: str) -> Finding:
    """Judge a count that must not be smaller."""
    ok = found >= least
    return Finding(what, ok, _number(found), f"at least {_number(least)}", "" if ok else look)


def normal(seed: int, *shape: int) -> Array:
    """Draw normal numbers, the same in every run."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:.3g}"
