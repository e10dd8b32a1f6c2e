"""A run whose kernels say when their blocks begin and end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from testbench.timeline.stamps import WORDS, BlockTimes, Stamps, block_times
from vgg16gpu.bench.measure.environment import environment
from vgg16gpu.bench.records.record import Content
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.compiler.model import Model
from vgg16gpu.devices.kernel_source import read_source
from vgg16gpu.io.synthetic import typical_inputs
from vgg16gpu.program.launch import Kernel, KernelLaunch
from vgg16gpu.program.types import Arena, Pointer
from vgg16gpu.runtime.engine import Engine

REPEATS: Final = 50  # runs, of which the one of median length is shown
_MACRO: Final = ("TIMELINE", 1)
_PARAMETER: Final = " TIMELINE_PARAMETER"
_SEED: Final = 1


@dataclass(frozen=True)
class Wanted:
    """What is to be drawn."""

    model: Model
    device: str
    precisions: tuple[str, ...]
    kernels: str
    size: tuple[int, int] | None
    batch: int
    outputs: tuple[str, ...] | None = None
    repeats: int = REPEATS


@dataclass(frozen=True, eq=False)
class Launch:
    """One kernel of a run. blocks: None for one whose source says nothing."""

    label: str
    kernel: str
    names: tuple[str, ...]
    blocks: BlockTimes | None


@dataclass(frozen=True, eq=False)
class Timeline:
    """A run of median length. plain_us: the median of as many runs of the ordinary kernels, on the device."""

    precision: str
    device: str
    batch: int
    launches: tuple[Launch, ...]
    plain_us: float
    environment: Content

    @property
    def span_us(self) -> float:
        """From the first block that began to the last that ended."""
        return max(float(np.nanmax(one.blocks.times)) for one in self.launches if one.blocks)


def measure(wanted: Wanted, precision: str) -> Timeline:
    """Build an engine, and run its instrumented kernels. Raises what Engine raises."""
    with Engine(
        wanted.model,
        device=wanted.device,
        precision=precision,
        kernels=wanted.kernels,
        batch=wanted.batch,
        size=wanted.size,
        outputs=wanted.outputs,
    ) as engine:
        engine.run(_input(engine))
        steps = engine.program.all_steps()
        with engine.turn() as executor:
            plain = float(np.median(engine.device.measure(executor.launcher(wanted.batch), wanted.repeats))) * 1e6
        launches = _launches(steps, _stamps(engine, steps, wanted.repeats))
        told = environment(engine.device)
        return Timeline(precision, engine.device.facts.name, wanted.batch, launches, plain, told)


def _input(engine: Engine) -> Array:
    """As the model's file has it."""
    shape = engine.program.input.shape
    if len(shape) == 4:
        level, spread = [0.5] * shape[1], [0.25] * shape[1]
        return engine.graph.input.to_file(typical_inputs(shape[0], shape[1:], level, spread, _SEED))
    return np.random.default_rng(_SEED).standard_normal(shape).astype(np.float32)


def _is_told(kernel: Kernel) -> bool:
    """Whether the source of a kernel has stamps: they stand in the definition of its name."""
    _, *kernels = read_source(kernel.source).split('extern "C" __global__')
    return any(f"{kernel.name}(" in text and _PARAMETER in text.partition(") {")[0] for text in kernels)


def _stamped(steps: Sequence[KernelLaunch]) -> tuple[list[KernelLaunch], list[slice | None], int]:
    """The same steps, instrumented; where the blocks of each lie; how many there are."""
    found: list[KernelLaunch] = []
    places: list[slice | None] = []
    count = 0
    for step in steps:
        if not _is_told(step.kernel):
            found.append(step)
            places.append(None)
            continue
        blocks = step.grid.x * step.grid.y * step.grid.z
        kernel = replace(step.kernel, defines=(*step.kernel.defines, _MACRO))
        place = Pointer(Arena.STAGING, 8 * WORDS * count)
        found.append(replace(step, kernel=kernel, arguments=(*step.arguments, place)))
        places.append(slice(count, count + blocks))
        count += blocks
    return found, places, count


def _stamps(engine: Engine, steps: Sequence[KernelLaunch], repeats: int) -> list[Stamps | None]:
    """The words of each launch, in the run of median length."""
    device = engine.device
    stamped, places, count = _stamped(steps)
    device.build({step.kernel for step in stamped})
    nbytes = 8 * WORDS * max(count, 1)
    room = device.allocate(nbytes)
    try:
        with engine.turn() as executor:
            launch = executor.bind(stamped, beside=room)
            runs = []
            for _ in range(repeats + 1):
                device.zero(room, nbytes)  # who waits for others is another block in every run
                launch()
                device.synchronize()
                words = np.empty((max(count, 1), WORDS), np.uint64)
                device.copy_out(words.view(np.uint8).reshape(-1), room)
                device.synchronize()
                runs.append(words)
            executor.unbind(launch)
    finally:
        device.free(room)
    chosen = sorted(runs[1:], key=_span)[repeats // 2]  # the first one loads
    return [None if place is None else chosen[place] for place in places]


def _span(words: Stamps) -> int:
    nanoseconds = words[:, 0:10:2]
    happened = nanoseconds[nanoseconds > 0]
    return int(happened.max() - happened.min()) if happened.size else 0


def _launches(steps: Sequence[KernelLaunch], stamps: Sequence[Stamps | None]) -> tuple[Launch, ...]:
    times = iter(block_times([words for words in stamps if words is not None]))
    return tuple(
        Launch(step.label, step.kernel.label, step.names, None if words is None else next(times))
        for step, words in zip(steps, stamps, strict=True)
    )
