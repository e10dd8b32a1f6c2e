"""One size of images of an engine: its plan on the device, and what runs of it are cut into."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from vgg16gpu.compiler.graph.ops import Array, GraphInput, Shape
from vgg16gpu.errors import Error
from vgg16gpu.program.launch import CompiledModel, LaunchPlan
from vgg16gpu.runtime import on_device
from vgg16gpu.runtime.executor import Executor
from vgg16gpu.runtime.forms import InputForm
from vgg16gpu.runtime.outputs import OutputRows, joined
from vgg16gpu.runtime.plans.batch_sizes import costs, cover

if TYPE_CHECKING:
    from vgg16gpu.runtime.double_buffer import Pipeline
    from vgg16gpu.runtime.on_device.direct import DirectRuns


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
    `costs`, `covers`: of batch sizes, and which of them a number of images is run in; `is_captured`: a CUDA graph has
    runs of it, which may be replayed at any time.
    """

    def __init__(self, given: GraphInput, plan: CompiledModel, precision: str, executor: Executor) -> None:
        self.plan = plan
        self.executor = executor
        self.form = InputForm.of(given, self.program)
        self.sizes = tuple(program.batch for program in plan.programs)
        # Only at batch 1, as larger batches of such a model are refused.
        self.whole = {i: y.shape for i, y in enumerate(self.program.outputs) if self.program.is_whole(y)}
        self.costs = costs(plan, precision)
        self.covers: dict[int, tuple[int, ...]] = {}
        self.is_captured = False
        self._idle: dict[tuple[str, int, bool], list[Pipeline]] = {}  # by element type, largest batch, is_direct
        self._pipelines: list[Pipeline] = []  # all
        self._in_use: list[Pipeline] = []

    @cached_property
    def direct(self) -> DirectRuns:
        """The executor's runs on arrays on the device."""
        return on_device.DirectRuns(self.executor)

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
        """Whether a stream has batches of this size under way, or a CUDA graph has runs of it."""
        return self.is_captured or bool(self._in_use)

    @property
    def second_passes(self) -> int:
        """How many images have been computed again on exact kernels."""
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

    def batches(self, count: int) -> Iterator[tuple[int, int]]:
        """(first image, batch size) of the runs that take the least time by the plan's estimate."""
        if count not in self.covers:
            self.covers[count] = cover(count, self.costs)
        first = 0
        for batch in self.covers[count]:
            yield first, batch
            first += batch

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
