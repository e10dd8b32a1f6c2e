"""The upper rungs: the product's own plans, with one thing after another taken away, and its engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.graph.ops import Array, Shape
from vgg16gpu.compiler.planner.plan import make_plan
from vgg16gpu.compiler.planner.selection import PlanOptions
from vgg16gpu.devices.base import Device, Transfer, step_by_step
from vgg16gpu.program.launch import KernelLaunch
from vgg16gpu.program.types import Arena
from vgg16gpu.runtime.engine import Engine
from vgg16gpu.runtime.executor import Executor
from vgg16gpu_lab.ladder.layers import unfused


class PlannedNet:
    """The planner's float32 kernels (FFMA) for a GPU, on any device. Raises ModelError, DeviceError, KernelError.

    fused: ReLU and pool in the convolution. split: blocks may share a sum. graph: all launches as one CUDA graph.
    """

    def __init__(
        self, graph: Graph, shape: Shape, device: Device, *, fused: bool = True, split: bool = True, whole: bool = True
    ) -> None:
        facts = replace(device.facts, kind="cuda", shares_sums=split)
        plan = make_plan(graph if fused else unfused(graph, relu=True), facts, [shape], PlanOptions(kernels="ffma"))
        self._device = device
        self._executor = Executor.load(plan, device if whole else cast(Device, _OneByOne(device)))

    def run(self, x: Array) -> Array:
        """Return the scores (1, classes) of one image (1, C, H, W)."""
        return self._executor.run(1, np.ascontiguousarray(x)).outputs[0].copy()

    def device_seconds(self, repeats: int) -> list[float] | None:
        """Return seconds on the device of each of `repeats` runs, input and output there."""
        return self._device.measure(self._executor.launcher(1), repeats)

    def close(self) -> None:
        """Free everything."""
        self._executor.close()


class EngineNet:
    """The engine as users have it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def run(self, x: Array) -> Array:
        """Return the scores (1, classes) of one image (1, C, H, W)."""
        outputs = self._engine.run(self._engine.graph.input.to_file(x))
        return outputs[0] if isinstance(outputs, tuple) else outputs

    def device_seconds(self, repeats: int) -> list[float] | None:
        """Return seconds on the device of each of `repeats` runs, input and output there."""
        return self._engine.device.measure(self._engine.executor.launcher(1), repeats)

    def close(self) -> None:
        """Free everything."""
        self._engine.close()


class _OneByOne:
    """A device on which every step is launched by itself: no graph."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def bind(self, steps: Sequence[KernelLaunch], bases: Mapping[Arena, int], **_: bool) -> Callable[[], None]:
        """Return what enqueues the steps in order."""
        return self._device.bind(steps, bases, as_graph=False)

    def round_trip(self, upload: Transfer, launch: Callable[[], None], download: Transfer) -> Callable[[], None]:
        """Return what copies in, launches, and copies out, one after the other."""
        return step_by_step(self._device, upload, launch, download)
