"""Time our engine, whole and layer by layer."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from vgg16gpu.bench.measure.ceilings import Ceilings
from vgg16gpu.bench.measure.timing import Method, wall
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.program.launch import KernelLaunch, LaunchPlan
from vgg16gpu.runtime.engine import Engine

NAME = "vgg16gpu"


class EngineContender:
    """An engine on the inputs `x`, as many as one of its batch sizes."""

    name = NAME
    methods: Sequence[Method] = tuple(Method)
    unchecked = ""
    tf32 = False

    def __init__(self, engine: Engine, x: Array, precision: str) -> None:
        self.variant = f"{engine.device.facts.kind}, {precision}"
        self._engine = engine
        self._x = x
        self._launch = engine.executor.launcher(len(x))

    def scores(self) -> Array:
        """Compute the first output."""
        outputs = self._engine.run(self._x)
        return outputs[0] if isinstance(outputs, tuple) else outputs

    def repeats(self, scores: Array) -> bool:
        """Return whether a second launch gives the same first output: then no value overwrites the input."""
        for _ in range(2):
            self._launch()
        program = next(program for program in self._engine.plan.programs if program.batch == len(self._x))
        return np.array_equal(self._engine.executor.read(program.outputs[0]), scores)

    def measure(self, method: Method, runs: int) -> list[float]:
        """Return seconds of each run; device-resident methods use the input that the last `run` left on the device."""
        device = self._engine.device
        match method:
            case Method.ISOLATED:
                return device.measure(self._launch, runs)
            case Method.BACK_TO_BACK:
                return [device.measure_back_to_back(self._launch, runs)]
            case Method.HOST_TO_HOST:
                return [wall(lambda: self._engine.run(self._x)) for _ in range(runs)]


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
        """Percent of the ceiling; 100 is as fast as the device goes."""
        return 100 * self.floor_s / self.median_s


@dataclass(frozen=True)
class LayerEffort:
    """How long each step is measured, and how long the device rests before it, in seconds."""

    seconds: float = 0.3
    pause: float = 0.0


def description(kind: str) -> str:
    """Describe how the layers of a device of this kind are timed."""
    return _DESCRIPTIONS[kind].format(most=_MOST_LAUNCHES[kind], ms=1e3 * _SAMPLE_SECONDS)


def measure_layers(
    engine: Engine, program: LaunchPlan, floor: Callable[[KernelLaunch], float], effort: LayerEffort
) -> tuple[LayerTime, ...]:
    """Measure the steps of `program`, the input step first. An input must lie on the device (run once before).

    In program order, so that every step reads what the one before it has stored. `floor` is a step's least time.
    """
    steps = program.all_steps()
    return tuple(_measure(engine, step, floor(step), effort) for step in steps)


def floors(ceilings: Ceilings, precision: str) -> Callable[[KernelLaunch], float]:
    """Return the function of a step's least seconds in this precision on a device with these ceilings."""
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
    """Return the seconds of each of `samples` rows of launches; the first one warms up."""
    return engine.device.measure(engine.executor.bind((step,) * launches), samples)
