"""Plans of an engine: of one size of images and its batch sizes, of any size, of gradients."""

from __future__ import annotations

import itertools
import logging
import time
from bisect import bisect_left
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, TypeAlias, cast

import numpy as np

from vgg16gpu.compiler.compile import SizePlanner
from vgg16gpu.compiler.graph.graph import GraphInput, infer_shapes
from vgg16gpu.compiler.graph.input_size import fits
from vgg16gpu.compiler.graph.ops import Array, Shape
from vgg16gpu.devices.base import Bytes, Device
from vgg16gpu.devices.weights import WeightCache
from vgg16gpu.errors import Error, InputError, ModelError
from vgg16gpu.program.launch import CompiledModel, LaunchPlan
from vgg16gpu.runtime import on_device
from vgg16gpu.runtime.arrays import InputForm, OpenShape
from vgg16gpu.runtime.executor import Executor
from vgg16gpu.runtime.outputs import OutputRows, joined
from vgg16gpu.runtime.plans.plan_cache import CachedPlan, PlanCache

if TYPE_CHECKING:
    from vgg16gpu.runtime.on_device.runner import DeviceRunner
    from vgg16gpu.runtime.streaming import Pipeline


LAUNCH: Final = 10e6  # bytes: 2.5 us at 4 TB/s
RUN: Final = 80e6  # bytes: 20 us of copies, one wait and Python
# FLOP in the time of a byte, in convolutions as they are: peaks are a third higher.
FLOP: Final[Mapping[str, float]] = {"fp32": 60, "fp16": 180, "bf16": 180, "int8": 340}
FFMA_FLOP: Final = 13


def costs(plan: CompiledModel, precision: str) -> dict[int, float]:
    """The estimated time of a run at each batch size, in bytes."""
    is_plain = {*plan.families.values()} <= {"ffma"}
    flop = FFMA_FLOP if is_plain else FLOP[precision]
    return {program.batch: _cost(program, flop) for program in plan.programs}


def cover(count: int, costs: Mapping[int, float]) -> tuple[int, ...]:
    """Batch sizes, largest first, that hold `count` images (the last may not be full) at the least cost.

    costs: of each size. Of covers that cost the same the one with fewer runs.
    """
    best = min(costs, key=lambda size: costs[size] / size)
    most = max(costs)
    whole = max(count - 2 * most, 0) // best
    rest = count - whole * best
    covers: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for images in range(1, rest + 1):
        tried = []
        for size in costs:
            cost, others = covers[max(images - size, 0)]
            tried.append((cost + costs[size], (*others, size)))
        covers.append(min(tried, key=lambda found: (found[0], len(found[1]))))
    return tuple(sorted((best,) * whole + covers[rest][1], reverse=True))


def _cost(program: LaunchPlan, flop: float) -> float:
    return RUN + sum(LAUNCH + max(step.nbytes, step.flop / flop) for step in program.all_steps())


@dataclass(frozen=True)
class SizeUse:
    """What an engine has planned: `planned` are the sizes on the device (height, width), the one used last comes last.

    `made` and `dropped` count plans since the engine was built, those of gradients, too; `nbytes`: of all plans on the
    device, with weights; `gradients`: how many of them are of gradients.
    """

    planned: tuple[tuple[int, int], ...]
    made: int
    dropped: int
    nbytes: int
    gradients: int = 0


class ShapeProfile:
    """A plan for one size of images, on the device. One thread at a time.

    Attributes: `plan`; `executor`; `form`: what inputs of this size must be;
    `sizes`: of batches, smallest first; `whole`: shapes of outputs that have no row for each image, by their number;
    `costs`: of batch sizes; `is_captured`: a CUDA graph has runs of it, which may be replayed at any time.
    """

    def __init__(self, given: GraphInput, plan: CompiledModel, precision: str, executor: Executor) -> None:
        self.plan = plan
        self.executor = executor
        self.form = InputForm.of(given, self.program)
        self.sizes = tuple(program.batch for program in plan.programs)
        # Only at batch 1, as larger batches of such a model are refused.
        self.whole = {i: y.shape for i, y in enumerate(self.program.outputs) if self.program.is_whole(y)}
        self.costs = costs(plan, precision)
        self._runs: dict[int, tuple[tuple[int, int], ...]] = {}  # by the number of images
        self.is_captured = False
        self._idle: dict[tuple[str, int, bool], list[Pipeline]] = {}  # by element type, largest batch, is_direct
        self._pipelines: list[Pipeline] = []  # all
        self._in_use: list[Pipeline] = []

    @cached_property
    def runner(self) -> DeviceRunner:
        """Return what runs the plan on arrays on the device."""
        return on_device.DeviceRunner(self.executor)

    @property
    def program(self) -> LaunchPlan:
        """What a run of the largest batch size does."""
        return self.plan.programs[-1]

    @property
    def nbytes(self) -> int:
        """Bytes on the device, without weights: activations, and the frames of streams."""
        return self.plan.activations_nbytes + sum(pipeline.nbytes for pipeline in self._pipelines)

    @property
    def is_busy(self) -> bool:
        """Return whether a stream has batches of this size under way, or a CUDA graph has runs of it."""
        return self.is_captured or bool(self._in_use)

    @property
    def second_passes(self) -> int:
        """Return how many images have been computed again on exact kernels."""
        return self.executor.second_passes

    @property
    def sides(self) -> tuple[int, int] | None:
        """Height and width of its images; None for rows."""
        sides = self.program.input.shape[2:4]
        return (sides[0], sides[1]) if len(sides) > 1 else None

    @property
    def use(self) -> SizeUse:
        """Of an engine that has this plan alone."""
        return SizeUse((self.sides,) if self.sides else (), 1, 0, self.plan.device_nbytes)

    def output_shapes(self, count: int) -> list[Shape]:
        """What a run of so many images gives."""
        return [self.whole.get(i, (count, *y.shape[1:])) for i, y in enumerate(self.program.outputs)]

    def batches(self, count: int) -> tuple[tuple[int, int], ...]:
        """Return (first image, batch size) of the runs that take the least time by the plan's estimate."""
        found = self._runs.get(count)
        if found is None:
            sizes = cover(count, self.costs)
            found = self._runs[count] = tuple(zip(itertools.accumulate(sizes, initial=0), sizes, strict=False))
        return found

    def smallest(self, count: int) -> int:
        """The smallest batch size that holds so many images."""
        return self.sizes[bisect_left(self.sizes, count)]

    def joined(self, parts: Sequence[OutputRows]) -> tuple[Array, ...]:
        """The outputs for images that were run in parts."""
        if not parts:
            return tuple(np.empty(shape, np.float32) for shape in self.output_shapes(0))
        return joined(parts, self.whole)

    def pipeline(self, element_type: str, size: int, is_direct: bool) -> Pipeline:
        """Room for a stream of batches, until `give_back`; kept from an earlier one, or made now."""
        if not (idle := self._idle.setdefault((element_type, size, is_direct), [])):
            idle.append(self.executor.pipeline(element_type, size, is_direct=is_direct))
            self._pipelines += idle
        self._in_use.append(idle.pop())
        return self._in_use[-1]

    def give_back(self, pipeline: Pipeline, element_type: str, size: int, is_direct: bool) -> None:
        """The stream has ended; batches may be under way. From any thread, at any time: a stream may be forgotten."""
        self._idle.setdefault((element_type, size, is_direct), []).append(pipeline)
        self._in_use.remove(pipeline)

    def close(self) -> None:
        """Give back all on the device. Raises what freeing raises, once all has been tried."""
        failure: Error | None = None
        for close in (*(pipeline.close for pipeline in self._pipelines), self.executor.close):
            try:
                close()
            except Error as error:
                failure = error
        self._pipelines.clear()
        self._idle.clear()
        if failure:
            raise failure


_log = logging.getLogger(__name__)


class DynamicShapes:
    """Plans of one model for the sizes that come. One thread at a time."""

    def __init__(self, planner: SizePlanner, kept: EnginePlans) -> None:
        """kept: where the plans are kept, gradients beside them."""
        self._planner, self._kept = planner, kept

    def check(self, sides: tuple[int, int]) -> None:
        """Raise InputError for a size that the model does not fit: it says what fixes the size."""
        try:
            self._planner.shapes(sides)
        except ModelError as error:
            raise InputError(f"input '{self._planner.graph.input.name}': {error}") from error

    def at(self, sides: tuple[int, int]) -> ShapeProfile:
        """The plan for this size, made now if there is none.

        Raises InputError, ModelError, DeviceError, KernelError.
        """
        if isinstance(found := self._kept.find(sides), ShapeProfile):
            self._kept.pinned = sides
            return found
        self.check(sides)
        started = time.perf_counter()
        sized = self.load(self._planner.plan(sides))
        height, width = sides
        _log.info("size %dx%d planned in %.3g s", height, width, time.perf_counter() - started)
        return sized

    def load(self, plan: CompiledModel) -> ShapeProfile:
        """Bring a plan to the device, and keep it: the one that stays. Raises DeviceError and KernelError."""
        return load_sized(self._kept, self._planner, plan)

    def output_shapes(self, shape: Shape) -> list[OpenShape]:
        """The shape of each output for an input of this shape; None for what is another at another size."""
        graph = self._planner.graph
        found, (batch, channels, height, width) = infer_shapes(graph, shape), shape
        others = [
            infer_shapes(graph, larger)
            for larger in ((batch, channels, 2 * height + 1, width), (batch, channels, height, 3 * width + 2))
            if fits(graph, larger)
        ]
        every = [[each[name] for each in (found, *others)] for name in graph.outputs]
        return [tuple(dims[0] if len({*dims}) == 1 else None for dims in zip(*same, strict=True)) for same in every]


EnginePlans: TypeAlias = PlanCache[Hashable, CachedPlan]


def load_sized(kept: EnginePlans, planner: SizePlanner, plan: CompiledModel) -> ShapeProfile:
    """Bring the plan of a size to the device, and keep it. Raises DeviceError and KernelError.

    It stays until the next one of a size comes: who runs the engine holds it, whatever gradients need.
    """
    batch, *sample = plan.programs[-1].input.shape
    sides = tuple(sample[1:])
    what = f"size {'x'.join(map(str, sides))} (height x width)" if sides else "the model"
    held, kept.pinned = kept.pinned, None
    try:
        executor = kept.load(plan, f"{what} in batches of {batch}")
    except BaseException:
        kept.pinned = held
        raise
    sized = ShapeProfile(planner.graph.input, plan, planner.precision, executor)
    kept.keep(sides, sized)
    kept.pinned = sides
    return sized


def use_of(kept: EnginePlans) -> SizeUse:
    """What is kept, and what has been."""
    planned = [sized.sides for _, sized in kept.items if isinstance(sized, ShapeProfile)]
    gradients = len(kept.keys) - len(planned)
    return SizeUse(tuple(sides for sides in planned if sides), kept.made, kept.dropped, kept.nbytes, gradients)


def added_weights_nbytes(plan: CompiledModel, beside: CompiledModel) -> int:
    """Bytes of weights that a plan takes beside another on a device, which has those already that both want alike.

    Scales of float16 pairs are taken to be the same: both are fixed on the same samples.
    """
    store = WeightCache(cast("Device", _Paper()))
    found = []
    for each in (beside, plan):
        lease = store.lease(each.weights)
        lease.allocate()
        lease.settle(each.calibration)
        found.append(store.nbytes)
    return found[1] - found[0]


class _Paper:
    """In the place of a device, for who only counts."""

    def allocate(self, nbytes: int) -> int:
        """No memory: an address that nobody reads."""
        del nbytes
        return 0

    def free(self, address: int) -> None:
        """Nothing to give back."""

    def copy_out(self, target: Bytes, address: int) -> None:
        """Zeros, whatever is asked for."""
        del address
        target.fill(0)

    def synchronize(self) -> None:
        """Nothing to wait for."""
