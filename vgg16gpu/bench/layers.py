"""Where the time goes: every step of a program on its own, beside the least it could take on this device."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from vgg16gpu.bench.ceilings import Ceilings
from vgg16gpu.engine import Engine
from vgg16gpu.program import Program, Step

_WARM = "isolated, with warm caches: what fits into them is not read from memory again; median"
_DESCRIPTIONS = {
    "cuda": "each step alone, launched {launches} times in a row between two events, time divided by {launches}, gaps "
    "between launches included; " + _WARM,
    "cpu": "each step alone, wall clock of a launch; " + _WARM,
}
_LAUNCHES = {"cuda": 20, "cpu": 1}  # in one sample: a single kernel would be measured with its launch
_SECONDS = 0.3  # for each step
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


def description(kind: str) -> str:
    """How the layers of a device of this kind are timed."""
    return _DESCRIPTIONS[kind].format(launches=_LAUNCHES[kind])


def measure_layers(engine: Engine, program: Program, ceilings: Ceilings) -> tuple[LayerTime, ...]:
    """The times of the steps of `program`, the input step first. An input must lie on the device (run once before).

    In program order, so that every step reads what the one before it has stored.
    """
    return tuple(_measure(engine, step, ceilings) for step in (program.input.steps["float32"], *program.steps))


def _measure(engine: Engine, step: Step, ceilings: Ceilings) -> LayerTime:
    device = engine.device
    launches = _LAUNCHES[device.facts.kind]
    work = engine.resident.bind((step,) * launches)
    device.measure(work, 1)
    one = device.measure(work, 1)[0]
    samples = max(_LEAST, min(_MOST, int(_SECONDS / max(one, 1e-9))))
    median = statistics.median(device.measure(work, samples)) / launches
    floor = ceilings.floor(step.flop, step.nbytes)
    return LayerTime(step.label, step.kernel.label, step.names, median, samples, step.flop, step.nbytes, floor)
