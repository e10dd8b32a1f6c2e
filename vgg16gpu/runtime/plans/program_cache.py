"""Programs of several inputs on a device, a gradient say or a loss: made when they are asked for, and kept."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final, Generic, NamedTuple, TypeVar

from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.graph.ops import Array, Shape
from vgg16gpu.compiler.planner.plan import make_plan
from vgg16gpu.compiler.planner.selection import PlanOptions
from vgg16gpu.devices.base import Device
from vgg16gpu.program.launch import CompiledModel
from vgg16gpu.program.types import DeviceFacts, DType
from vgg16gpu.runtime.executor import Executor
from vgg16gpu.runtime.on_device.runner import DeviceRunner
from vgg16gpu.runtime.plans.plan_cache import CachedPlan, NoRoomError, PlanCache

Key = TypeVar("Key", bound=Hashable)
_MOST: Final = 1024  # batches that were cut
_NONE: Mapping[str, DType] = MappingProxyType({})


class ProgramSpec(NamedTuple):
    """A program that is to be made. shapes: of its inputs, the first of them first; what: for messages.

    cotangents: of a gradient, all of them, in the order of the outputs. given: as in `PlanOptions`.
    """

    graph: Graph
    shapes: Mapping[str, Shape]
    what: str
    cotangents: tuple[str, ...] = ()
    given: Mapping[str, DType] = _NONE

    @property
    def others(self) -> tuple[str, ...]:
        """The inputs after the first."""
        return tuple(self.shapes)[1:]


class LoadedProgram(NamedTuple):
    """A program on the device."""

    executor: Executor
    runner: DeviceRunner
    spec: ProgramSpec

    @property
    def is_busy(self) -> bool:
        """Return whether a CUDA graph has runs of it, which may be replayed."""
        return self.runner.is_captured

    @property
    def nbytes(self) -> int:
        """Bytes on the device, without weights."""
        return self.executor.plan.activations_nbytes

    @property
    def second_passes(self) -> int:
        """Return how many images have been computed again on exact kernels."""
        return self.executor.second_passes

    def close(self) -> None:
        """Give back what it has on the device."""
        self.runner.close()
        self.executor.close()


def plan_of(
    spec: ProgramSpec, facts: DeviceFacts, options: PlanOptions, samples: Callable[[Shape], Array] | None
) -> CompiledModel:
    """Its plan. samples: as for `ProgramCache`. Raises ModelError."""
    options = replace(options, given=spec.given)
    if samples is not None:
        shape = next(iter(spec.shapes.values()))
        options = replace(options, samples=lambda: samples(shape))
    return make_plan(spec.graph, facts, spec.shapes, options)


class ProgramCache(Generic[Key]):
    """Programs by a key. One thread at a time; close it.

    spec_of: says what the program of a key is. samples: makes typical inputs of a shape, which fp32 on tensor cores
    needs; without it that is computed by FFMA. kept: where they are kept, beside others; each keeps to the bound there
    if one was asked for.
    """

    def __init__(
        self,
        device: Device,
        options: PlanOptions,
        samples: Callable[[Shape], Array] | None,
        spec_of: Callable[[Key], ProgramSpec],
        kept: PlanCache[Hashable, CachedPlan] | None = None,
    ) -> None:
        self._device, self._options, self._samples, self._spec_of = device, options, samples, spec_of
        self._kept: PlanCache[Hashable, CachedPlan] = PlanCache(device) if kept is None else kept
        self._mine = object()  # begins the keys of these among others
        self._rows: dict[Key, int] = {}  # at once, of what there was no room for as a whole
        self._last: Key | None = None  # the key that was asked for last

    def find(self, key: Key) -> LoadedProgram | None:
        """The program of a key, if it is kept."""
        self._last = key
        found = self._kept.find((self._mine, key))
        return found if isinstance(found, LoadedProgram) else None

    def at(self, key: Key) -> LoadedProgram:
        """The program of a key. Raises ModelError, NoRoomError, DeviceError and KernelError."""
        if kept := self.find(key):
            return kept
        spec, plan = self.planned(key)
        executor = self._kept.load(plan, spec.what, is_within=True)
        program = LoadedProgram(executor, DeviceRunner(executor, tuple(spec.shapes)), spec)
        self._kept.keep((self._mine, key), program)
        return program

    def touch(self, key: Key) -> None:
        """Note that the program of a key is used, where another one of these was before."""
        if key is not self._last:
            self.find(key)

    def fitting(self, count: int, key: Callable[[int], Key]) -> int:
        """Return how many of `count` images there is room for at once: all, or a half, or a half of that, ...

        The program of so many is on the device then. What has been found stays, so that images are cut in the same way
        every time. key: of the program of so many images. Raises NoRoomError where there is no room for one, and as
        `at`.
        """
        whole = key(count)
        rows = self._rows.get(whole, count)
        while True:
            try:
                self.at(key(rows))
                break
            except NoRoomError:
                if rows == 1:
                    raise
                rows = -(-rows // 2)
        if rows < count:
            if len(self._rows) >= _MOST:
                self._rows.clear()
            self._rows[whole] = rows
        return rows

    def planned(self, key: Key) -> tuple[ProgramSpec, CompiledModel]:
        """What the program of a key is, and its plan, which nobody keeps. Raises ModelError."""
        spec = self._spec_of(key)
        return spec, plan_of(spec, self._device.facts, self._options, self._samples)

    @property
    def second_passes(self) -> int:
        """Images that needed one, in runs which waited; of all that is or was kept beside these programs, too."""
        return self._kept.second_passes

    @property
    def nbytes(self) -> int:
        """Bytes on the device of all that is kept there, with weights."""
        return self._kept.nbytes

    def close(self) -> None:
        """Give everything back, also what is kept beside these programs. Safe to call twice."""
        self._kept.close()
