"""Images of any size: a plan for each size that comes, kept on the device while there is room."""

from __future__ import annotations

import logging
import time

from vgg16gpu.compiler.compile import SizePlanner
from vgg16gpu.compiler.graph.input_size import fits
from vgg16gpu.compiler.graph.ops import Shape
from vgg16gpu.compiler.graph.shapes import infer_shapes
from vgg16gpu.errors import InputError, ModelError
from vgg16gpu.program.launch import CompiledModel
from vgg16gpu.runtime.forms import OpenShape
from vgg16gpu.runtime.plans.engine_plans import EnginePlans, load_sized
from vgg16gpu.runtime.plans.sized import ShapeProfile

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
