"""Our own engine as a contender."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vgg16gpu.bench.measure.timing import Method, wall
from vgg16gpu.compiler.graph.ops import Array
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
        """The first output."""
        outputs = self._engine.run(self._x)
        return outputs[0] if isinstance(outputs, tuple) else outputs

    def repeats(self, scores: Array) -> bool:
        """Whether launching again, without a new input, gives the same first output: nothing lies over the input."""
        for _ in range(2):
            self._launch()
        program = next(program for program in self._engine.plan.programs if program.batch == len(self._x))
        return np.array_equal(self._engine.executor.read(program.outputs[0]), scores)

    def measure(self, method: Method, runs: int) -> list[float]:
        """Seconds of each run; the device-resident methods use the input that the last `run` left on the device."""
        device = self._engine.device
        match method:
            case Method.ISOLATED:
                return device.measure(self._launch, runs)
            case Method.BACK_TO_BACK:
                return [device.measure_back_to_back(self._launch, runs)]
            case Method.HOST_TO_HOST:
                return [wall(lambda: self._engine.run(self._x)) for _ in range(runs)]
