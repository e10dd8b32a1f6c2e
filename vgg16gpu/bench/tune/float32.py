"""Which kernels a card without wgmma is to use in float32: VGG16 is timed with each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Final

import numpy as np

from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.compiler.model import Model
from vgg16gpu.compiler.vgg.architecture import Vgg
from vgg16gpu.devices.tuned import FLOAT32_KERNELS
from vgg16gpu.program.types import TileEntry
from vgg16gpu.runtime.engine import Engine

BATCH: Final = 8
ROUNDS: Final = 7  # of timing both in turn
CALLS: Final = 5  # of a round
SIDE: Final = 224  # pixels


@dataclass(frozen=True)
class Float32Finding:
    """The median seconds of `BATCH` images by the kernels that computed them."""

    seconds: Mapping[str, float]

    @property
    def entry(self) -> TileEntry:
        """Return what a table says of it: the fastest kernels, and the microseconds of all."""
        times = {f"{kernels}_us": round(1e6 * seconds) for kernels, seconds in self.seconds.items()}
        return {"kernels": min(self.seconds, key=lambda kernels: self.seconds[kernels]), **times}


def measure_float32(device: str, model: Model, side: int = SIDE) -> Float32Finding:
    """Time a network for images of `side` x `side` pixels with each of FLOAT32_KERNELS, in turns.

    device: its name. Raises DeviceError, KernelError.
    """
    seconds = {kernels: list[float]() for kernels in FLOAT32_KERNELS}
    x = np.random.default_rng(5).standard_normal((BATCH, 3, side, side), np.float32)
    with ExitStack() as stack:
        timers = {}
        for kernels in seconds:
            engine = Engine(model, device=device, precision="fp32", kernels=kernels, batch=BATCH, size=side)
            stack.enter_context(engine)
            engine.run(x)  # leaves the input on the device
            timers[kernels] = partial(engine.device.measure_back_to_back, engine.executor.launcher(BATCH))
            timers[kernels](1)
        for _ in range(ROUNDS):
            for kernels, timer in timers.items():
                seconds[kernels].append(timer(CALLS))
    return Float32Finding({kernels: median(found) for kernels, found in seconds.items()})


def random_vgg16() -> Model:
    """Return VGG16 with random weights whose values keep their size from layer to layer."""
    random, weights = np.random.default_rng(0), dict[str, Array]()
    for name, shape in (parameter for layer in Vgg().layers for parameter in layer.parameters):
        scale = np.float32(0.05 if len(shape) == 1 else np.sqrt(2 / math.prod(shape[1:])))  # of a bias, of a weight
        weights[name] = scale * random.standard_normal(shape, np.float32)
    return Model.from_torch(weights, "vgg16")
