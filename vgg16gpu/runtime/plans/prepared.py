"""One program of several inputs on a device, and the same on FFMA for images out of the range of pairs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Generic, NamedTuple, TypeVar

from vgg16gpu.compiler.graph.ops import Array, Graph, Shape
from vgg16gpu.compiler.planner.options import PlanOptions
from vgg16gpu.compiler.planner.plan import make_plan
from vgg16gpu.devices.base import Device
from vgg16gpu.runtime.executor import Executor
from vgg16gpu.runtime.on_device.direct import Verdict
from vgg16gpu.runtime.on_device.placed import PlacedRuns
from vgg16gpu.runtime.on_device.views import DeviceView
from vgg16gpu.runtime.outputs import OutOfRangeError
from vgg16gpu.runtime.plans.kept import KeptPlans

_log = logging.getLogger(__name__)

Key = TypeVar("Key", bound=Hashable)
Done = TypeVar("Done")


class Wanted(NamedTuple):
    """A program that is to be made. shapes: of its inputs, the first of them first; what: for messages."""

    graph: Graph
    shapes: dict[str, Shape]
    what: str
    cotangents: tuple[str, ...] = ()  # of a gradient, all of them, in the order of the outputs

    @property
    def others(self) -> tuple[str, ...]:
        """The inputs after the first."""
        return tuple(self.shapes)[1:]


class Prepared(NamedTuple):
    """A program on the device."""

    executor: Executor
    placed: PlacedRuns
    wanted: Wanted
    is_busy: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes on the device, without weights."""
        return self.executor.plan.activations_nbytes

    def close(self) -> None:
        """Give back what it has on the device."""
        self.executor.close()


class PreparedPrograms(Generic[Key]):
    """Programs by a key, made when they are asked for. One thread at a time; close it.

    samples: makes typical inputs of a shape, which fp32 on tensor cores needs; without it that is computed by FFMA.
    """

    def __init__(
        self,
        device: Device,
        options: PlanOptions,
        samples: Callable[[Shape], Array] | None,
        wanted: Callable[[Key], Wanted],
    ) -> None:
        self._device, self._options, self._samples, self._wanted = device, options, samples, wanted
        self._kept: KeptPlans[tuple[Key, bool], Prepared] = KeptPlans(device)

    def at(self, key: Key, *, is_exact: bool = False) -> Prepared:
        """The program of a key; is_exact: on FFMA. Raises ModelError, DeviceError and KernelError."""
        if kept := self._kept.find((key, is_exact)):
            return kept
        wanted = self._wanted(key)
        plan = make_plan(wanted.graph, self._device.facts, wanted.shapes, self._chosen(wanted, is_exact))
        executor = self._kept.load(plan, wanted.what)
        return self._kept.keep((key, is_exact), Prepared(executor, PlacedRuns(executor), wanted))

    def _chosen(self, wanted: Wanted, is_exact: bool) -> PlanOptions:
        if is_exact:
            return replace(self._options, kernels="ffma")
        samples, shape = self._samples, next(iter(wanted.shapes.values()))
        return self._options if samples is None else replace(self._options, samples=lambda: samples(shape))

    def run(self, key: Key, inputs: Mapping[str, Array], count: int) -> tuple[Array, ...]:
        """The outputs for arrays of the planned shapes, whose first `count` images matter. Raises as `at` does."""
        return self._in_range(key, lambda program: program.executor.run_once(inputs, count))

    def run_on_device(
        self,
        key: Key,
        inputs: Mapping[str, DeviceView],
        outs: Sequence[DeviceView],
        verdict: Verdict | None,
        *,
        singly: bool,
    ) -> None:
        """The same for arrays on the device; the outputs go to `outs`. verdict, singly: as for `PlacedRuns.run`."""
        if verdict:
            self.at(key).placed.run(inputs, outs, verdict, singly=singly)
        else:
            self._in_range(key, lambda program: program.placed.run(inputs, outs, singly=singly))

    def _in_range(self, key: Key, run: Callable[[Prepared], Done]) -> Done:
        """A run that waits; of fp32 once more on FFMA, if values of an image left the range of pairs."""
        prepared = self.at(key)
        try:
            return run(prepared)
        except OutOfRangeError:
            if self._options.precision != "fp32":  # float16 itself
                raise
        _log.info("%s is computed again in float32 arithmetic: values left the range of pairs", prepared.wanted.what)
        return run(self.at(key, is_exact=True))

    def close(self) -> None:
        """Give everything back. Safe to call twice."""
        self._kept.close()
