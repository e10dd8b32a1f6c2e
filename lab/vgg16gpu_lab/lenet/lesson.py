"""The tables of LeNet: every version's time, its parts, its accuracy, and the sweeps over batches and tiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

from vgg16gpu.bench.measure.timing import sample_until, summarise, wall
from vgg16gpu.checks.accuracy import layer_error
from vgg16gpu.errors import Error
from vgg16gpu.runtime.engine import Engine
from vgg16gpu_lab.experiment import Case, Choice, Row, row_of
from vgg16gpu_lab.lenet.columns import IM2COL, ColumnsOnDevice
from vgg16gpu_lab.lenet.data import Dataset
from vgg16gpu_lab.lenet.forward import (
    TOLERANCE,
    Activations,
    ForwardTimes,
    OnDevice,
    Sequential,
    Version,
    activations,
    forward_times,
    scores_of_all,
    timed,
)
from vgg16gpu_lab.lenet.net import CONVOLUTIONS, Floats, LeNet, read_lenet
from vgg16gpu_lab.measure.bench_rig import BenchRig, BrokenDeviceError
from vgg16gpu_lab.measure.measure import Effort, Measurement, Status, verdict
from vgg16gpu_lab.measure.outcome import outcome
from vgg16gpu_lab.problem import Array, Array64, Problem
from vgg16gpu_lab.published import published
from vgg16gpu_lab.variant import Parameters

QUICK_IMAGES: Final = 512  # held-out ones that are asked about
SEQUENTIAL: Final = "sequential-cpu"  # no variant: numpy on the host
COLUMNS: Final = IM2COL.name  # no variant of the rig's: the product is numpy's
_ON_HOST: Final = (SEQUENTIAL, COLUMNS)

Job: TypeAlias = tuple[str, Callable[[], Iterable[Row]]]  # what it is, and its work


@dataclass(frozen=True)
class Method:
    """A version of the network, as tables call it, and the variant that computes its convolutions."""

    name: str
    variant: str = ""
    note: str = ""
    said: str = ""  # by the report, of its correctness
    numbers: tuple[int, ...] = (0,)  # of the batches that are asked for


ENGINE: Final = Method("engine")


@dataclass(frozen=True, eq=False)
class Lesson:
    """One run: a trained net, its held-out images, and a rig to measure on."""

    seed: str
    methods: tuple[Method, ...]
    batch: int  # images, but for the sweep
    batches: tuple[int, ...]  # sizes of the sweep
    data: Dataset
    model: Path
    rig: BenchRig
    choice: Choice
    _maps: dict[int, dict[str, Activations]] = field(default_factory=dict)

    def jobs(self) -> Iterator[Job]:
        """Yield the jobs in the order of the tables."""
        for method in self.methods:
            yield f"{self.batch} {method.name}", partial(self._version_rows, method)
        yield f"{self.batch} engine", self._engine_rows
        for batch in self.batches:
            for method in self.methods:
                yield f"batch {batch} {method.name}", partial(self._sweep_rows, method, batch)
        for method in self.methods:
            if self._values(method.variant):
                yield f"tile {method.name}", partial(self._tile_rows, method)

    def build(self) -> None:
        """Compile every kernel at once."""
        self.rig.build(
            (method.variant, parameters, self._problem(method.variant, layer, self.batch))
            for method in self.methods
            if method.variant not in _ON_HOST
            for layer in CONVOLUTIONS
            for parameters in ({}, *self._values(method.variant))
        )

    @cached_property
    def net(self) -> LeNet:
        """The trained one."""
        return read_lenet(self.model)

    @cached_property
    def x(self) -> Array:
        """Every held-out image that is asked about."""
        return self.data.normalised(self.data.heldout[: QUICK_IMAGES if self.choice.quick else None])

    @cached_property
    def expected(self) -> Array64:
        """The scores of `x` in float64."""
        return np.concatenate(
            [self.net.expected(self.x[i : i + self.batch]) for i in range(0, len(self.x), self.batch)]
        )

    def _version_rows(self, method: Method) -> list[Row]:
        """Return the published table, accuracy and parts."""
        numbers = method.numbers[: 1 if self.choice.quick else None]
        if obstacle := self._obstacle(method.variant, self.batch):
            names = [f"batch={i} {part}" for i in numbers for part in (*CONVOLUTIONS, "forward")]
            return [self._row("lenet", self.batch, method, name, obstacle) for name in names]
        with self._version(method.variant, self.batch) as version:
            judged, accuracy = self._judged(method, scores_of_all(self.net, version, self.x, self.batch))
            rows = [accuracy]
            for i in numbers:
                rows += self._batch_rows(method, version, i, judged)
            return rows

    def _batch_rows(self, method: Method, version: Version, number: int, judged: Measurement) -> Iterator[Row]:
        x, found = self._images(number, self.batch), dict[str, Measurement]()
        if number not in self._maps:
            self._maps[number] = activations(self.net, x)
        for layer in CONVOLUTIONS:
            found[layer] = version.measure(layer, self._maps[number][layer], self.rig.effort)
            yield self._convolution_row("lenet", self.batch, method, layer, found[layer], f"batch={number} ")
        times = forward_times(self.net, version, x, self.rig.effort)
        forward = timed(judged, times.forward)
        yield self._row("lenet", self.batch, method, f"batch={number} forward", forward)
        medians = [measurement.seconds("total") for measurement in found.values()]
        convolutions = [median for median in medians if median is not None]
        if number == 0 and len(convolutions) == len(medians) and forward.status is Status.RIGHT:
            yield from self._part_rows(method, times, sum(convolutions))

    def _part_rows(self, method: Method, times: ForwardTimes, convolutions: float) -> Iterator[Row]:
        """Yield the parts of a forward pass, in differences of medians."""
        layers = times.layers.median_s
        parts = {"convolutions": convolutions, "copies and waiting": layers - convolutions}
        if method.variant in _ON_HOST:
            parts = {"convolutions": layers}
        parts["outside"] = times.forward.median_s - layers
        for name, seconds in parts.items():
            note = "" if seconds > 0 else "a difference of two times, less than they vary"
            ours = 1e3 * seconds if seconds > 0 else None
            yield Row(self.seed, "parts", str(self.batch), method.name, name, ours, variant=method.variant, note=note)

    def _sweep_rows(self, method: Method, batch: int) -> list[Row]:
        """Measure both convolutions and the whole pass at a batch size."""
        obstacle, x = self._obstacle(method.variant, batch), self._images(0, batch)
        if obstacle:
            return [self._row("batch", batch, method, name, obstacle) for name in (*CONVOLUTIONS, "forward")]
        with self._version(method.variant, batch) as version:
            rows, maps = [], activations(self.net, x)
            for layer in CONVOLUTIONS:
                measured = version.measure(layer, maps[layer], self.rig.effort)
                rows.append(self._convolution_row("batch", batch, method, layer, measured))
            error = layer_error(self.net.scores(x, version.convolve), self.net.expected(x))
            times = forward_times(self.net, version, x, self.rig.effort)
            forward = timed(verdict(error, f"scores of {batch} images", TOLERANCE), times.forward)
            rows.append(self._row("batch", batch, method, "forward", forward))
            return rows

    def _tile_rows(self, method: Method) -> Iterator[Row]:
        """Yield both convolutions with every tile or block."""
        for parameters in self._values(method.variant):
            text = " ".join(f"{name}={value}" for name, value in parameters.items())
            for layer in CONVOLUTIONS:
                problem = self._problem(method.variant, layer, self.batch)
                found = self._measured(method.variant, parameters, problem, self.rig.effort)
                name = f"{layer} {text}"
                case = Case("tile", str(self.batch), method.name, name, problem, method.variant, parameters, "total")
                yield row_of(self.seed, case, found, self.rig)

    def _problem(self, variant: str, layer: str, batch: int) -> Problem:
        """Return a convolution as a version computes it: with the bias, unless its kernel takes none."""
        known = self.rig.variants.get(variant)
        return self.net.shape.convolution(layer, batch, bias=known is None or known.takes_bias)

    def _values(self, variant: str) -> list[dict[str, int]]:
        """Return one parameter after the other with each of its values, or with those asked for."""
        known = self.rig.variants.get(variant)
        parameters = known.parameters if known else {}
        return [{name: value} for name, values in parameters.items() for value in self.choice.blocks or sorted(values)]

    def _engine_rows(self) -> list[Row]:
        """Measure the same net through `vgg16gpu.Engine`, and in float64."""
        foreign = self.rig.device.foreign
        device = "cpu" if foreign is None else f"cuda:{foreign.ordinal}"
        rows = [self._judged(Method("float64"), self.expected)[1]]
        try:
            with Engine(self.model, device=device, batch=self.batch) as engine:
                judged, accuracy = self._judged(ENGINE, np.asarray(engine.run(self.x)))
                run = partial(engine.run, self._images(0, self.batch))
                run()
                effort = self.rig.effort
                samples = sample_until(lambda: wall(run), effort.seconds, most=effort.samples)
                forward = timed(judged, summarise(samples))
                rows.append(accuracy)
        except Error as error:
            forward = Measurement(Status.FAILED, " ".join(str(error).split()))
        return [*rows, self._row("lenet", self.batch, ENGINE, "batch=0 forward", forward)]

    def _obstacle(self, variant: str, batch: int) -> Measurement | None:
        """Return why a variant cannot be used at a batch size: its failure in one of the convolutions."""
        if variant == SEQUENTIAL:
            return None
        if variant == COLUMNS:
            return self._columns_obstacle(batch)
        check = replace(self.rig.effort, seconds=0.0, cold=False, limit=math.inf)
        for layer in CONVOLUTIONS:
            found = self._measured(variant, {}, self._problem(variant, layer, batch), check)
            if found.status is not Status.RIGHT:
                return found
        return None

    def _columns_obstacle(self, batch: int) -> Measurement | None:
        """Return why the device has no columns for the host: no compiler, no memory."""
        try:
            ColumnsOnDevice(self.rig.device, self.net, batch).close()
        except Error as error:
            return outcome(error)
        return None

    def _measured(self, variant: str, parameters: Parameters, problem: Problem, effort: Effort) -> Measurement:
        """Measure with random numbers."""
        try:
            return self.rig.measure(variant, parameters, problem, effort)
        except BrokenDeviceError as error:
            return Measurement(Status.FAILED, str(error))

    @contextmanager
    def _version(self, variant: str, batch: int) -> Iterator[Version]:
        if variant == SEQUENTIAL:
            yield Sequential(self.net)
            return
        device = self.rig.device
        if variant == COLUMNS:
            with closing(ColumnsOnDevice(device, self.net, batch)) as columns:
                yield columns
            return
        with closing(OnDevice(device, self.net, self.rig.variants[variant], batch)) as version:
            yield version

    def _images(self, number: int, batch: int) -> Array:
        chosen = np.arange(number * batch, (number + 1) * batch) % len(self.x)
        return np.ascontiguousarray(self.x[chosen])

    def _judged(self, method: Method, scores: Floats) -> tuple[Measurement, Row]:
        """Judge the scores of `x`; return the verdict, and the row with the share of right answers."""
        count = len(scores)
        judged = verdict(layer_error(scores, self.expected), f"scores of {count} images", TOLERANCE)
        right = int((scores.argmax(1) == self.data.heldout_labels[:count]).sum())
        key = self.seed, "accuracy", str(count), method.name, "right answers"
        note = f"{right} of {count} right" + (f"; the report says {method.said}" if method.said else "")
        return judged, Row(*key, right / count, unit="ratio", variant=method.variant, measurement=judged, note=note)

    def _convolution_row(
        self, table: str, batch: int, method: Method, layer: str, found: Measurement, prefix: str = ""
    ) -> Row:
        problem, note = self._problem(method.variant, layer, batch), method.note if prefix else ""
        name = f"{prefix}{layer}"
        case = Case(table, str(batch), method.name, name, problem, method.variant, {}, "total", note)
        row = row_of(self.seed, case, found, self.rig)
        return replace(row, ours_percent=None) if method.variant in _ON_HOST else row  # the roofline is the device's

    def _row(self, table: str, batch: int, method: Method, name: str, found: Measurement) -> Row:
        """Return the row of a whole pass, which has no roofline, or of anything that has no time."""
        seconds = found.seconds()
        key = self.seed, table, str(batch), method.name, name
        ours = None if seconds is None else 1e3 * seconds
        return Row(*key, ours, published().get(key), variant=method.variant, measurement=found)
