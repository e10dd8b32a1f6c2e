"""Programs of several inputs on a device, a gradient say or a loss: made when they are asked for, and kept."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar

from vgg16gpu.compiler.graph.ops import Array, Graph, Shape
from vgg16gpu.compiler.planner.options import PlanOptions
from vgg16gpu.compiler.planner.plan import make_plan
from vgg16gpu.devices.base import Device
from vgg16gpu.program.device_properties import DeviceFacts
from vgg16gpu.program.plans import Plan
from vgg16gpu.program.values import Element
from vgg16gpu.runtime.executor import Executor
from vgg16gpu.runtime.on_device.placed import PlacedRuns
from vgg16gpu.runtime.plans.kept import KeptPlans

Key = TypeVar("Key", bound=Hashable)
_NONE: Mapping[str, Element] = MappingProxyType({})


class Wanted(NamedTuple):
    """A program that is to be made. shapes: of its inputs, the first of them first; what: for messages.

    cotangents: of a gradient, all of them, in the order of the outputs. given: as in `PlanOptions`.
    """

    graph: Graph
    shapes: Mapping[str, Shape]
    what: str
    cotangents: tuple[str, ...] = ()
    given: Mapping[str, Element] = _NONE

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


def plan_of(wanted: Wanted, facts: DeviceFacts, options: PlanOptions, samples: Callable[[Shape], Array] | None) -> Plan:
    """Its plan. samples: as for `PreparedPrograms`. Raises ModelError."""
    options = replace(options, given=wanted.given)
    if samples is not None:
        shape = next(iter(wanted.shapes.values()))
        options = replace(options, samples=lambda: samples(shape))
    return make_plan(wanted.graph, facts, wanted.shapes, options)


class PreparedPrograms(Generic[Key]):
    """Programs by a key. One thread at a time; close it.

    wanted: says what the program of a key is. samples: makes typical inputs of a shape, which fp32 on tensor cores
    needs; without it that is computed by FFMA.
    """

    def __init__(
        self,
        device: Device,
        options: PlanOptions,
        samples: Callable[[Shape], Array] | None,
        wanted: Callable[[Key], Wanted],
    ) -> None:
        self._device, self._options, self._samples, self._wanted = device, options, samples, wanted
        self._kept: KeptPlans[Key, Prepared] = KeptPlans(device)

    def find(self, key: Key) -> Prepared | None:
        """The program of a key, if it is kept."""
        return self._kept.find(key)

    def at(self, key: Key) -> Prepared:
        """The program of a key. Raises ModelError, DeviceError and KernelError."""
        if kept := self._kept.find(key):
            return kept
        wanted, plan = self.planned(key)
        executor = self._kept.load(plan, wanted.what)
        return self._kept.keep(key, Prepared(executor, PlacedRuns(executor), wanted))

    def planned(self, key: Key) -> tuple[Wanted, Plan]:
        """What the program of a key is, and its plan, which nobody keeps. Raises ModelError."""
        wanted = self._wanted(key)
        return wanted, plan_of(wanted, self._device.facts, self._options, self._samples)

    @property
    def second_passes(self) -> int:
        """Images that needed one, in runs of the programs that are kept which waited."""
        return sum(prepared.executor.second_passes for prepared in self._kept.values)

    def close(self) -> None:
        """Give everything back. Safe to call twice."""
        self._kept.close()
