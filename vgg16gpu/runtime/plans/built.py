"""What an engine is built as: a model's plans on a device, what it takes and what it gives."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from vgg16gpu.compiler.compile import EngineOptions, SizePlanner, sampler
from vgg16gpu.compiler.graph.ops import Shape
from vgg16gpu.compiler.model import Model, ModelSource
from vgg16gpu.devices import Opened, open_device
from vgg16gpu.devices.base import Counters
from vgg16gpu.devices.stages import stage
from vgg16gpu.errors import InputError
from vgg16gpu.program.launch import CompiledModel, LaunchPlan
from vgg16gpu.runtime.arrays import AssumedPixels, OpenShape
from vgg16gpu.runtime.closing import Closing
from vgg16gpu.runtime.executor import Executor
from vgg16gpu.runtime.plans.opening import Size, Timings, form_of, kept_plans, sides_of
from vgg16gpu.runtime.plans.sizes import ShapeProfile, SizeUse

if TYPE_CHECKING:
    from vgg16gpu.compiler.declared import Declared
    from vgg16gpu.compiler.quantization.scheme import Scales
    from vgg16gpu.runtime.on_device.pending import AsyncStatus
    from vgg16gpu.runtime.plans.gradients import Gradients
    from vgg16gpu.runtime.plans.sizes import DynamicShapes, EnginePlans

_log = logging.getLogger("vgg16gpu.runtime.engine")  # whose lines these are for who filters the log


class BuiltEngine(Closing):
    """All of `Engine` but its runs: see there."""

    def __init__(
        self,
        model: ModelSource,
        *,
        device: str | Opened = "auto",
        precision: str = "fp32",
        batch: int | Sequence[int] = 1,
        size: Size = None,
        outputs: Sequence[str] | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        allow_nonfinite: bool = False,
        keep_values: bool = False,
        kernels: str = "auto",
        scales: Scales | None = None,
        memory: int | None = None,
        gradient: bool = False,
        planner: SizePlanner | None = None,
    ) -> None:
        started = time.perf_counter()
        sides = sides_of(size)
        options = EngineOptions(batch, sides, outputs, precision, mean, std, keep_values, kernels, scales)
        with stage("model"):
            self.model = Model.of(model)
            self.graph = options.graph(self.model)
        self.precision = precision
        self.device, self.device_choice = device if isinstance(device, Opened) else open_device(device)
        self._pending: AsyncStatus | None = None  # before the first run on an array on the device
        self._gradients: Gradients | None = None
        self._lock = threading.Lock()
        self._sized: ShapeProfile | None = None  # the one used last; None once closed
        self._any: DynamicShapes | None = None
        self._kept: EnginePlans | None = None  # of several plans, those of gradients among them
        self.allows_nonfinite = allow_nonfinite
        self._keeps_values = keep_values
        self._last_batch: int | None = None
        try:
            with stage("plan"):
                planner = planner or SizePlanner(self.model, options, self.device.facts)
                self._kept, self._any = kept_plans(self.model, planner, self.device, size, memory, gradient=gradient)
                plan = planner.plan(sides)
            planned = time.perf_counter()
            self._last = self._sized = self._loaded(planner, plan)
            self._form = form_of(self.graph, plan.programs[-1], is_any=self._any is not None)
            self._assumed = AssumedPixels(self.model, self.graph, plan.programs[-1].input.shape, mean, std)
            if gradient:
                from vgg16gpu.runtime.plans.gradients import Gradients  # noqa: PLC0415 - who only infers does without
                from vgg16gpu.runtime.plans.plan_cache import NoRoomError  # noqa: PLC0415 - as above

                samples = sampler(self.model, options, self.graph)
                self._gradients = Gradients(self.graph, self.device, precision, kernels, samples, self._kept)
                try:
                    self._gradients.prepare([program.input.shape for program in plan.programs])
                except NoRoomError:
                    if self._any is None:
                        raise
                    _log.info("the gradient of the size that is planned first has no room; smaller ones may")
        except BaseException:
            self.close()
            raise
        executor = self._last.executor
        self.timings = Timings(planned - started, executor.compile_seconds, executor.upload_seconds)
        took = time.perf_counter() - started
        asked = f"{self.model.name}: batch {', '.join(map(str, self._last.sizes))}, {precision}"
        _log.info("%s, built in %.3g s on %s", asked, took, self.device_choice)
        if self._any:
            _log.info("it takes images of any size that the model fits, %s; size=... fixes one", self.inputs[0])
        self._at_build = Counters(**vars(self.device.counters))

    def __repr__(self) -> str:
        sizes = ", ".join(map(str, self._last.sizes))
        takes, gives = (", ".join(map(str, values)) for values in (self.inputs, self.outputs))
        closed = "" if self._sized else ", closed"
        what = f"{self.model.name} on {self.device.facts.name}, {self.precision}, batch {sizes}{closed}"
        return f"Engine({what}; {takes} -> {gives})"

    @property
    def inputs(self) -> tuple[Declared, ...]:
        """The input, as `run` takes it: float32 in the file's own shape, N images."""
        value = self.program.input
        return (_float32(value.name, (None, *self._form.accepted[np.dtype(np.float32)])),)

    @property
    def outputs(self) -> tuple[Declared, ...]:
        """The outputs, as `run` returns them: float32, a row for each image where the model has one."""
        whole, shapes = self._last.whole, [(None, *y.shape[1:]) for y in self.program.outputs]
        if self._any:
            shapes = [(None, *shape[1:]) for shape in self._any.output_shapes(self.program.input.shape)]
        named = zip(self.program.outputs, shapes, strict=True)
        return tuple(_float32(y.name, whole.get(i, rows)) for i, (y, rows) in enumerate(named))

    @property
    def plan(self) -> CompiledModel:
        """What is computed where; of the size that ran last, at first of the model's own or the usual one."""
        return self._last.plan

    @property
    def program(self) -> LaunchPlan:
        """What a run of the largest batch size does; prints as a table. Of the same size as `plan`."""
        return self._last.program

    @property
    def sizes(self) -> SizeUse:
        """Which sizes of images are planned on the device now, and how many have been."""
        with self._lock:
            sized = self._require_open()
            if self._kept is None:
                return sized.use
            from vgg16gpu.runtime.plans.sizes import use_of  # noqa: PLC0415 - as `kept_plans`

            return use_of(self._kept)

    @property
    def counters(self) -> Counters:
        """What runs have done on the device since the engine was built."""
        return self.device.counters.since(self._at_build)

    @property
    def second_passes(self) -> int:
        """How many images had to be computed again on exact kernels: values had left the range of pairs of float16.

        Those of runs with wait=False count once `check`, or a run that waits, has looked.
        """
        waited = self._kept.second_passes if self._kept else self.executor.second_passes
        return waited + (self._pending.second_passes if self._pending else 0)

    @property
    def executor(self) -> Executor:
        """`plan` on the device, for measurements. Raises InputError once the engine is closed."""
        return self._require_open().executor

    def close(self) -> None:
        """Free everything on the device. Safe to call twice."""
        with self._lock:
            sized, self._sized = self._sized, None
            if self._pending:
                self._pending.close()
            try:
                if self._kept:
                    self._kept.close()
                elif sized:
                    sized.executor.close()
            finally:
                self.device.close()

    @contextmanager
    def turn(self) -> Iterator[Executor]:
        """The executor, which no other thread has meanwhile. Raises InputError once the engine is closed."""
        with self._lock:
            yield self._require_open().executor

    def _require_open(self) -> ShapeProfile:
        if self._sized is None:
            raise InputError("the engine is closed; build a new one")
        return self._sized

    def _loaded(self, planner: SizePlanner, plan: CompiledModel) -> ShapeProfile:
        if self._kept:
            from vgg16gpu.runtime.plans.sizes import load_sized  # noqa: PLC0415 - as `kept_plans`

            return load_sized(self._kept, planner, plan)
        return ShapeProfile(self.graph.input, plan, self.precision, Executor.load(plan, self.device))

    def _at(self, dtype: np.dtype[Any], shape: Shape) -> ShapeProfile:
        """The plan for a batch of this shape, as the kernels read it. Raises InputError, also once closed."""
        sized = self._require_open()
        if self._any:
            sized = self._last = self._sized = self._any.at(self._form.sides(dtype.name, shape))
            sized.form.check_rows(dtype, shape)
        return sized


def _float32(name: str, shape: OpenShape) -> Declared:
    from vgg16gpu.compiler.declared import Declared  # noqa: PLC0415 - an engine runs without being asked

    return Declared(name, np.dtype(np.float32), shape)
