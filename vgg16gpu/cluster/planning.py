"""One plan for equal devices: made once, its kernels compiled once, brought to each of them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Final

from vgg16gpu.compiler.compile import EngineOptions, SizePlanner
from vgg16gpu.compiler.model import Model
from vgg16gpu.devices import Opened
from vgg16gpu.devices.stages import stage
from vgg16gpu.program.launch import CompiledModel
from vgg16gpu.program.types import DeviceFacts
from vgg16gpu.runtime.plans.opening import Size, sides_of

_KEPT: Final = 4  # plans of sizes, for engines that come a little later


class SharedPlanner(SizePlanner):
    """Plans that several engines take, from any thread; each is made once while it is among the last few."""

    def __init__(self, model: Model, options: EngineOptions, facts: DeviceFacts) -> None:
        super().__init__(model, options, facts)
        self._lock = threading.Lock()
        self._plans: OrderedDict[object, CompiledModel] = OrderedDict()

    def plan(self, size: int | tuple[int, int] | None) -> CompiledModel:
        """Return the plan of SizePlanner; the last few are kept."""
        with self._lock:
            if size not in self._plans:
                self._plans[size] = super().plan(size)
            while len(self._plans) > _KEPT:
                self._plans.popitem(last=False)
            return self._plans[size]


def shared_planners(model: Model, opened: Sequence[Opened], options: Mapping[str, Any]) -> list[SharedPlanner]:
    """Return a planner for each device, equal ones the same, with the first plan made and its kernels compiled.

    options: those of `Engine`. Raises ModelError, InputError, KernelError.
    """
    asked = asked_options(options)
    sides = asked.size
    found: dict[DeviceFacts, SharedPlanner] = {}
    planners = []
    for each in opened:
        kind = replace(each.device.facts, memory_total=0, memory_free=0)  # no plan goes by these
        if kind not in found:
            found[kind] = SharedPlanner(model, asked, each.device.facts)
            with stage("plan"):
                plan = found[kind].plan(sides)
            with stage("kernels"):
                each.device.build(plan.kernels)
        planners.append(found[kind])
    return planners


def asked_options(options: Mapping[str, Any]) -> EngineOptions:
    """Return the options of an `Engine` on which plans depend. Raises InputError."""
    size: Size = options.get("size")
    names = {each.name for each in fields(EngineOptions)} - {"size"}
    return EngineOptions(**{name: options[name] for name in names & options.keys()}, size=sides_of(size))
