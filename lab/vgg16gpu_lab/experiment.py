"""A published experiment, run again: its rows as cases of ours, measured, each beside what was published.

A module in experiments/ that holds `EXPERIMENT` is one; there is no list to edit. Most are lists of cases
(`CaseExperiment`); one that measures whole networks brings a `run` of its own and returns the same rows.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from vgg16gpu_lab.measure.baseline import BASELINES
from vgg16gpu_lab.measure.bench_rig import BenchRig, BrokenDeviceError
from vgg16gpu_lab.measure.measure import Effort, Measurement, Scope, Status
from vgg16gpu_lab.problem import Network, Problem
from vgg16gpu_lab.published import CARDS, Key, published
from vgg16gpu_lab.variant import Variant

Tell: TypeAlias = Callable[[int, int, str], None]  # done, of how many, what is next
Unit: TypeAlias = Literal["ms", "ratio"]


@dataclass(frozen=True)
class Choice:
    """What is to be run; an empty tuple: what the experiment says."""

    kind: str = "cpu"  # of the device
    sizes: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    blocks: tuple[int, ...] = ()
    channels: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    quick: bool = False
    full: bool = False
    model: Path | None = None  # somebody's own, in place of S5's
    inputs: Path | None = None  # a file or folder of inputs for it
    own: tuple[Variant, ...] = ()  # somebody's own variants, into the same comparison

    def sizes_or(self, usual: Sequence[int], quick: Sequence[int]) -> tuple[int, ...]:
        """Return the sizes asked for, else a few small ones if it is to be quick, else the usual ones."""
        return self.sizes or tuple(quick if self.quick else usual)


@dataclass(frozen=True)
class Case:
    """One number to be found, named as seeds_tables.csv names it; `variant` may be a baseline."""

    table: str
    size: str
    method: str
    parameter: str
    problem: Problem
    variant: str
    parameters: Mapping[str, int] = field(default_factory=dict)
    scope: Scope = "compute"
    note: str = ""


@dataclass(frozen=True)
class Row:
    """One number found, or why there is none, beside the published one; both in `unit`."""

    seed: str
    table: str
    size: str
    method: str
    parameter: str
    ours: float | None
    theirs: float | None = None
    unit: Unit = "ms"
    ours_percent: float | None = None  # of the device's roofline
    theirs_percent: float | None = None  # of their card's, where it is known
    variant: str = ""
    parameters: Mapping[str, int] = field(default_factory=dict)
    problem: Problem | Network | None = None
    scope: Scope = "compute"
    measurement: Measurement | None = None
    note: str = ""

    @property
    def key(self) -> Key:
        """Its name in seeds_tables.csv."""
        return self.seed, self.table, self.size, self.method, self.parameter

    @property
    def status(self) -> Status:
        """Status of the measurement; a ratio without a number is missing one of its parts."""
        if self.measurement:
            return self.measurement.status
        return Status.MISSING if self.ours is None else Status.RIGHT

    @property
    def remark(self) -> str:
        """Why there is no time, and what else is to be said."""
        reason = self.measurement.reason if self.measurement else ""
        asked = self.measurement.details.get("heuristics") if self.measurement else None
        plans = f"the fastest plan of heuristics {', '.join(asked)}" if asked and self.ours is not None else ""
        return "; ".join(text for text in (reason, self.note, plans) if text)


class Experiment(Protocol):
    """What `lab run` runs."""

    @property
    def name(self) -> str:
        """On the command line: S2."""

    @property
    def title(self) -> str:
        """Title of the publication."""

    @property
    def teaches(self) -> str:
        """A sentence."""

    @property
    def takes(self) -> Sequence[str]:
        """The lists of a `Choice` that it looks at."""

    def method(self, rig: BenchRig) -> str:
        """Describe how its numbers are found, for readers of records."""

    def run(self, rig: BenchRig, choice: Choice, tell: Tell) -> tuple[Row, ...]:
        """Measure everything chosen; `tell` is told before each case. A broken device ends it, told in the rows."""


@dataclass(frozen=True)
class CaseExperiment:
    """An experiment that is a list of cases, and ratios between them."""

    name: str
    title: str
    teaches: str
    cases: Callable[[Choice], Sequence[Case]]
    ratios: Callable[[Sequence[Row]], Sequence[Row]] = lambda rows: ()  # noqa: ARG005
    rounds: int | None = None  # the published number of samples, for --full; None: not stated
    takes: Sequence[str] = ("sizes", "strides", "channels", "outputs")

    def method(self, rig: BenchRig) -> str:
        """Return the rig's method."""
        return rig.method

    def run(self, rig: BenchRig, choice: Choice, tell: Tell) -> tuple[Row, ...]:
        """Measure every case, small problems first, and return rows in the order of the cases."""
        cases = with_own(self.cases(choice), choice.own)
        effort = rig.effort
        if choice.full and self.rounds:
            effort = replace(effort, samples=self.rounds)
        tell(0, len(cases), "compiling")
        rig.build((case.variant, case.parameters, case.problem) for case in cases if case.variant not in BASELINES)
        found: dict[int, Row] = {}
        for done, index in enumerate(sorted(range(len(cases)), key=lambda index: _work_of(cases[index]))):
            case = cases[index]
            tell(done, len(cases), f"{case.table} {case.size} {case.method}")
            try:
                measurement = _measured(rig, case, effort)
            except BrokenDeviceError as error:
                measurement = Measurement(Status.FAILED, str(error))
            found[index] = row_of(self.name, case, measurement, rig)
        tell(len(cases), len(cases), "done")
        rows = tuple(found[index] for index in range(len(cases)))
        return (*rows, *self.ratios(rows))


def experiments() -> tuple[Experiment, ...]:
    """Return all experiments of the package, by name."""
    return tuple(sorted(_found(), key=lambda experiment: experiment.name))


def row_of(seed: str, case: Case, measurement: Measurement, rig: BenchRig) -> Row:
    """Return a measured case beside the published number of its name."""
    theirs = published().get((seed, case.table, case.size, case.method, case.parameter))
    seconds, card = measurement.seconds(case.scope), CARDS.get(seed)
    return Row(
        seed=seed,
        table=case.table,
        size=case.size,
        method=case.method,
        parameter=case.parameter,
        ours=None if seconds is None else 1e3 * seconds,
        theirs=theirs,
        ours_percent=None if seconds is None else rig.percent(case.problem, seconds),
        theirs_percent=card.percent(case.problem, theirs / 1e3) if card and theirs else None,
        variant=case.variant,
        parameters=case.parameters,
        problem=case.problem,
        scope=case.scope,
        measurement=measurement,
        note=case.note,
    )


def ratio_row(seed: str, size: str, method: str, over: Row | None, under: Row | None, note: str) -> Row:
    """Return the row of a speed-up claim: time of `over` by that of `under`."""
    theirs = published().get((seed, "claim", size, method, "ratio_not_ms"))
    above, below = (row.ours if row else None for row in (over, under))
    ours = above / below if above and below else None
    missing = [row.remark or f"no time of {row.method}" for row in (over, under) if row and row.ours is None]
    reason = "" if ours else "; ".join(missing) or "its sizes were not run"
    text = "; ".join(part for part in (note, reason) if part)
    return Row(seed, "claim", size, method, "ratio_not_ms", ours, theirs, "ratio", note=text)


def find_row(rows: Sequence[Row], **keys: Any) -> Row | None:
    """Return the first row with these values."""
    return next((row for row in rows if all(getattr(row, name) == value for name, value in keys.items())), None)


def with_own(cases: Sequence[Case], own: Sequence[Variant]) -> list[Case]:
    """Return the cases, and each user variant, conversion included, once for every problem of every table."""
    named = {case.variant for case in cases}
    groups: dict[tuple[str, Problem], list[Case]] = {}
    for case in cases:
        groups.setdefault((case.table, case.problem), []).append(case)
    for group in groups.values():
        first = group[0]
        parameter = " ".join(part for part in first.parameter.split() if not part.startswith("block="))
        for variant in own:
            if variant.name not in named:
                names = (first.table, first.size, variant.name, parameter)
                group.append(Case(*names, first.problem, variant.name, scope="total"))
    return [case for group in groups.values() for case in group]


def _measured(rig: BenchRig, case: Case, effort: Effort) -> Measurement:
    if case.variant in BASELINES:
        return rig.baseline(case.variant, case.problem, effort)
    return rig.measure(case.variant, case.parameters, case.problem, effort)


def _work_of(case: Case) -> tuple[int, str]:
    """Return a sort key: small problems first; those of one problem together."""
    return case.problem.flop, repr(case.problem)


def _found() -> Iterator[Experiment]:
    package = importlib.import_module("vgg16gpu_lab.experiments")
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        experiment: Experiment | None = getattr(importlib.import_module(module.name), "EXPERIMENT", None)
        if experiment is not None:
            yield experiment
