"""Where the time goes: every step of a program on its own, beside the least it could take on this device."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from vgg16gpu.bench.measure.ceilings import Ceilings
from vgg16gpu.program.launch import KernelLaunch, LaunchPlan
from vgg16gpu.runtime.engine import Engine

_WARM = "isolated, with warm caches: what fits into them is not read from memory again; median"
_DESCRIPTIONS = {
    "cuda": "each step alone, launched up to {most} times in a row (as often as fits into {ms:g} ms) between two "
    "events, time divided by their number, gaps between launches included; a pause before each step; " + _WARM,
    "cpu": "each step alone, wall clock of a launch; " + _WARM,
}
_MOST_LAUNCHES = {"cuda": 20, "cpu": 1}  # in one sample: a single kernel would be measured with its launch
_SAMPLE_SECONDS = 2e-3  # from which on the launch does not count
_LEAST, _MOST = 3, 50  # samples


@dataclass(frozen=True)
class LayerTime:
    """One step of a program. `percent` is what the floor (the ceilings' time for its work) is of its time."""

    label: str
    kernel: str
    names: tuple[str, ...]  # ONNX values that it computes
    median_s: float
    samples: int
    flop: int
    nbytes: int
    floor_s: float

    @property
    def percent(self) -> float:
        """Of the ceiling; 100 is as fast as the device goes."""
        return 100 * self.floor_s / self.median_s


@dataclass(frozen=True)
class LayerEffort:
    """How long each step is measured, and how long the device rests before it, in seconds."""

    seconds: float = 0.3
    pause: float = 0.0


def description(kind: str) -> str:
    """How the layers of a device of this kind are timed."""
    return _DESCRIPTIONS[kind].format(most=_MOST_LAUNCHES[kind], ms=1e3 * _SAMPLE_SECONDS)


def measure_layers(
    engine: Engine, program: LaunchPlan, floor: Callable[[KernelLaunch], float], effort: LayerEffort
) -> tuple[LayerTime, ...]:
    """The times of the steps of `program`, the input step first. An input must lie on the device (run once before).

    In program order, so that every step reads what the one before it has stored. `floor` is a step's least time.
    """
    steps = program.all_steps()
    return tuple(_measure(engine, step, floor(step), effort) for step in steps)


def floors(ceilings: Ceilings, precision: str) -> Callable[[KernelLaunch], float]:
    """The least time of a step in this precision on a device with these ceilings."""
    return lambda step: ceilings.floor(step.flop, step.nbytes, precision)


def _measure(engine: Engine, step: KernelLaunch, floor: float, effort: LayerEffort) -> LayerTime:
    device = engine.device
    time.sleep(effort.pause)
    one = _seconds(engine, step, 1, 2)[-1]
    launches = max(1, min(_MOST_LAUNCHES[device.facts.kind], math.ceil(_SAMPLE_SECONDS / max(one, 1e-9))))
    samples = max(_LEAST, min(_MOST, int(effort.seconds / max(one * launches, 1e-9))))
    median = statistics.median(_seconds(engine, step, launches, 1 + samples)[1:]) / launches
    return LayerTime(step.label, step.kernel.label, step.names, median, samples, step.flop, step.nbytes, floor)


def _seconds(engine: Engine, step: KernelLaunch, launches: int, samples: int) -> list[float]:
    """Of each of `samples` rows of launches; the first one warms up."""
    return engine.device.measure(engine.executor.bind((step,) * launches), samples)
