"""Versions of a whole network as rows of a table: measured, or estimated where a CPU would take too long."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Final

from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu_lab.experiment import Choice, Row, Tell
from vgg16gpu_lab.ladder.rung import Net, Setting
from vgg16gpu_lab.measure.bench_rig import BenchRig
from vgg16gpu_lab.measure.measure import Measurement, Status
from vgg16gpu_lab.network.host import OnnxruntimeNet, Rounds, measure_network, work_of
from vgg16gpu_lab.network.plain_model import PlainModel
from vgg16gpu_lab.published import published

PROBE: Final = 32  # VGG16's image size by which a CPU's times are estimated, where they would take too long
MOST_SECONDS: Final = 600.0  # that the iterations of a row may take on a GPU


@dataclass(frozen=True)
class Version:
    """A row of a table, or several: one for each number of iterations."""

    method: str
    iterations: tuple[int, ...]
    open: Callable[[Setting], Net]
    variant: str
    note: str = ""
    is_named: bool = True  # whether a row's parameter says how many iterations it is of
    has_roof: bool = True  # whether it is told what part of the device's roofline it reaches
    remark: Callable[[Setting], str] = lambda _: ""  # what is to be said of it on a model

    def parameter(self, count: int) -> str:
        """Return the parameter of the row of `count` iterations."""
        return f"iterations={count}" if self.is_named else ""


@dataclass(frozen=True)
class Place:
    """Where rows belong."""

    seed: str
    table: str
    size: str

    def row(self, version: Version, found: Rounds) -> Row:
        """Return a version's row, beside what was published."""
        name = self.seed, self.table, self.size, version.method, version.parameter(found.iterations)
        ours = None if found.mean_s is None else 1e3 * found.mean_s
        return Row(*name, ours, published().get(name), variant=version.variant, measurement=found.measurement)

    def refused(self, versions: Sequence[Version], reason: str) -> Iterator[Row]:
        """Yield rows of a size that there is no network of."""
        for version in versions:
            for count in version.iterations:
                yield self.row(version, Rounds(count, Measurement(Status.REFUSED, reason)))


@dataclass(frozen=True, eq=False)
class Prepared:
    """What versions run, the inputs, and their scores by onnxruntime."""

    setting: Setting
    x: Array
    expected: Array


class NetworkRows:
    """The versions on a model; where a run takes too long its time is that of `probe`, scaled."""

    def __init__(self, model: PlainModel, probe: PlainModel | None, rig: BenchRig, choice: Choice) -> None:
        self._rig, self._choice = rig, choice
        foreign = rig.device.foreign
        self._device_name = "cpu" if foreign is None else f"cuda:{foreign.ordinal}"
        self.size = "x".join(map(str, dict.fromkeys(model.shape[2:])))
        self.given = self._prepared(model)
        self.probe = self._prepared(probe) if probe else None
        self._work = work_of(model.graph, model.shape)

    def rows(self, place: Place, versions: Sequence[Version], tell: Tell, anyway: Sequence[str] = ()) -> Iterator[Row]:
        """Yield the rows of a table; variants that are in `anyway` are run however long they take."""
        for done, version in enumerate(versions):
            tell(done, len(versions), f"{place.table} {place.size} {version.method}")
            estimated = () if version.variant in anyway else self._estimated(version)
            for found in estimated or self._measured(version):
                yield self._described(place, version, found)
        tell(len(versions), len(versions), "done")

    def _prepared(self, model: PlainModel) -> Prepared:
        expected = OnnxruntimeNet(model.model.path, model.graph.input).run(model.x)
        setting = Setting(model.model, model.graph, model.shape, self._rig.device, self._device_name)
        return Prepared(setting, model.x, expected)

    def _measured(self, version: Version) -> Sequence[Rounds]:
        given, opened = self.given, partial(version.open, self.given.setting)
        effort = self._rig.effort
        return measure_network(opened, version.iterations, given.x, given.expected, effort, most_s=self._most_s)

    @property
    def _most_s(self) -> float | None:
        """Seconds within which all iterations are made; None: as many as the effort allows."""
        if self._choice.full:
            return inf
        return MOST_SECONDS if self._rig.device.facts.kind == "cuda" and not self._choice.quick else None

    def _estimated(self, version: Version) -> Sequence[Rounds]:
        """Scale from a small image what a CPU would take too long for; return nothing where it would not."""
        if self.probe is None:
            return ()
        setting, x, expected = self.probe.setting, self.probe.x, self.probe.expected
        opened = partial(version.open, setting)
        (found,) = measure_network(opened, (1,), x[:1], expected[:1], self._rig.effort, most_s=None)
        if found.mean_s is None:  # wrong, or not to be had: at the other size, too
            return [replace(found, iterations=count) for count in version.iterations]
        scale = self._work.flop / work_of(setting.graph, setting.shape).flop
        seconds, limit = found.mean_s * scale, self._rig.effort.limit
        if seconds <= limit:
            return ()
        estimate = Measurement(Status.ESTIMATED, scaled(limit), estimate_s=seconds)
        return [Rounds(count, estimate, seconds) for count in version.iterations]

    def _described(self, place: Place, version: Version, found: Rounds) -> Row:
        percent = None
        if found.mean_s is not None and version.has_roof:
            percent = self._rig.percent(self._work, found.mean_s)
        remarks = version.note, version.remark(self.given.setting), _runs(found)
        note = "; ".join(text for text in remarks if text)
        return replace(place.row(version, found), ours_percent=percent, problem=self._work, note=note)


def scaled(limit: float) -> str:
    """Return why a time is an estimate."""
    return f"a run would take longer than {limit:g} s: that of VGG16 at {PROBE}x{PROBE}, scaled by FLOP (--full)"


def _runs(found: Rounds) -> str:
    """Return the number of runs if it is below that of the row's name; else ""."""
    times = found.measurement.compute
    few = times is not None and times.warm.samples < found.iterations
    return f"{times.warm.samples} runs of {found.iterations} (--full: all)" if times and few else ""
