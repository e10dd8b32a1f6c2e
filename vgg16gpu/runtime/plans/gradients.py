"""Gradients on a device: a plan for each shape of batches, which computes forward and backward in one run."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Final

import numpy as np

from vgg16gpu.compiler.graph.gradient import gradient_graph
from vgg16gpu.compiler.graph.graph import Graph, infer_shapes
from vgg16gpu.compiler.graph.ops import Array, Shape
from vgg16gpu.compiler.planner.selection import PlanOptions
from vgg16gpu.devices.base import Device
from vgg16gpu.errors import InputError, ModelError
from vgg16gpu.program.launch import CompiledModel
from vgg16gpu.program.types import DeviceFacts
from vgg16gpu.runtime.arrays import Images, as_array
from vgg16gpu.runtime.on_device.runner import ErrorSink
from vgg16gpu.runtime.on_device.views import StridedView
from vgg16gpu.runtime.outputs import check_flags
from vgg16gpu.runtime.plans.plan_cache import CachedPlan, PlanCache
from vgg16gpu.runtime.plans.program_cache import ProgramCache, ProgramSpec, plan_of

_KEPT: Final = 256  # shapes of batches
PRECISIONS: Final = ("fp32", "fp16", "bf16")  # in which there are gradients


def gradient_options(precision: str, kernels: str) -> PlanOptions:
    """What plans of gradients are made for. Raises ModelError for int8."""
    if precision not in PRECISIONS:
        raise ModelError(
            f"gradients are computed in {', '.join(PRECISIONS)}, and precision {precision} is asked for; use one of "
            "these"
        )
    return PlanOptions(precision, kernels)


def gradient_plan(
    graph: Graph,
    shape: Shape,
    facts: DeviceFacts,
    precision: str,
    kernels: str,
    samples: Callable[[Shape], Array] | None,
) -> CompiledModel:
    """That of the gradient of a batch of this shape, which nobody keeps; as `Gradients` plans it. Raises ModelError."""
    return plan_of(_spec(graph, shape, precision), facts, gradient_options(precision, kernels), samples)


class Gradients:
    """Vector-Jacobian products of a graph's outputs to its input. One thread at a time; close it.

    In fp16 and bf16 convolutions and products round what they read, and sums are float32. In fp16, and in fp32 where
    convolutions are made of pairs of float16, the gradient of an image is brought to their range before each, and back
    behind it, by a power of two. A batch with an image whose values leave the range of pairs is computed again by FFMA.

    The model's values are computed again in each run, so that nothing is kept from call to call. Plans are kept by the
    shape of a batch: the last ones. They share weights with each other, and with an engine's plans that are kept beside
    them: of what both have in the same form one copy lies on the device, pairs of float16 among it where their scales
    are equal. Those of the backward run come in addition. A batch for whose plan there is no room is cut into halves,
    and these.
    """

    def __init__(
        self,
        graph: Graph,
        device: Device,
        precision: str,
        kernels: str,
        samples: Callable[[Shape], Array] | None,
        kept: PlanCache[Hashable, CachedPlan] | None = None,
    ) -> None:
        """samples, kept: as for `ProgramCache`. Raises ModelError for int8."""
        options = gradient_options(precision, kernels)
        self._graph = graph
        self._output_shapes = lru_cache(maxsize=_KEPT)(partial(_output_shapes, graph))
        self._programs: ProgramCache[Shape] = ProgramCache(
            device, options, samples, lambda shape: _spec(graph, shape, precision), kept
        )

    def prepare(self, shapes: Iterable[Shape]) -> None:
        """Build for batches of these shapes, or what they are cut into.

        Raises ModelError, NoRoomError, DeviceError, KernelError.
        """
        for batch, *sample in shapes:
            self._fitting(batch, tuple(sample))

    def vjp(self, x: Images, cotangents: object, runs: Iterable[tuple[int, int]]) -> Array:
        """The gradient to x, (N, ...) float32 as the kernels read it; runs: (first row, batch size built) of each run.

        cotangents: an array in the shape of the output for x, or one for each output. Raises InputError.
        """
        if x.dtype != np.float32:
            raise InputError("x is uint8, whole numbers without a gradient; give float32, normalised")
        numbers = np.asarray(x, np.float32)
        given = _checked(cotangents, self._output_shapes(x.shape), self._graph.outputs)
        parts = [
            self._run(batch, numbers[first : first + batch], [y[first : first + batch] for y in given])
            for first, batch in self._cut(len(x), x.shape[1:], runs)
        ]
        return np.concatenate(parts) if parts else np.empty(x.shape, np.float32)

    def vjp_on_device(
        self,
        x: StridedView,
        cotangents: Sequence[StridedView],
        target: StridedView,
        runs: Iterable[tuple[int, int]],
        verdict: ErrorSink | None = None,
        *,
        singly: bool = False,
    ) -> None:
        """As `vjp`, for arrays on the device as the kernels read them; the gradient goes to `target`.

        verdict, singly: for one that nobody waits for, as for `DeviceRunner.enqueue`.
        """
        types = [(y.element_type, y.shape) for y in cotangents]
        _check_shapes(types, self._output_shapes(x.shape), self._graph.outputs)
        for first, batch in self._cut(x.shape[0], x.shape[1:], runs):
            program = self._programs.at((batch, *x.shape[1:]))
            arrays = {self._graph.input.name: x, **dict(zip(program.spec.cotangents, cotangents, strict=True))}
            inputs = [arrays[name].rows(first, first + batch) for name in program.spec.shapes]
            outs = [target.rows(first, first + batch)]
            if verdict:
                here = verdict._replace(first=first)
                program.runner.enqueue(batch, inputs, outs, here, singly=singly)
            else:
                check_flags([program.runner.run(batch, inputs, outs)], allows_nonfinite=True)

    @property
    def second_passes(self) -> int:
        """Images whose values left the range of pairs, in runs that waited; an engine's beside these, too."""
        return self._programs.second_passes

    def close(self) -> None:
        """Give everything back. Safe to call twice."""
        self._programs.close()

    def _fitting(self, batch: int, sample: Shape) -> int:
        """Return how many samples of a batch there is room for at once; all of one whose size the file says."""
        if self._graph.input.shape[0] is not None:
            self._programs.at((batch, *sample))
            return batch
        return self._programs.fitting(batch, lambda rows: (rows, *sample))

    def _cut(self, count: int, sample: Shape, runs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """The runs, each as many as there have to be for the memory."""
        for first, batch in runs:
            rows = self._fitting(batch, sample)
            yield from ((begin, rows) for begin in range(first, min(first + batch, count), rows))

    def _run(self, batch: int, x: Array, cotangents: Sequence[Array]) -> Array:
        program = self._programs.at((batch, *x.shape[1:]))
        arrays = {self._graph.input.name: x, **dict(zip(program.spec.cotangents, cotangents, strict=True))}
        filled = {name: _filled(arrays[name], batch) for name in program.spec.shapes}
        (found,) = program.executor.run_once(filled, len(x))
        return found[: len(x)]


def _output_shapes(graph: Graph, shape: Shape) -> list[Shape]:
    """Return the shape of each output for a batch of this shape."""
    shapes = infer_shapes(graph, shape)
    return [shapes[name] for name in graph.outputs]


def _spec(graph: Graph, shape: Shape, precision: str) -> ProgramSpec:
    found = gradient_graph(graph, shape, precision)
    inputs = {item.name: found.cotangents[item.name] for item in found.graph.others}
    shapes = {graph.input.name: shape, **inputs}
    return ProgramSpec(found.graph, shapes, f"the gradient of a batch of shape {shape}", tuple(found.cotangents))


def _checked(given: object, shapes: Sequence[Shape], names: Sequence[str]) -> list[Array]:
    """A float32 array for each output, of its shape."""
    cotangents = given if isinstance(given, list | tuple) else [given]
    arrays = [as_array(array, "the gradient of an output", "float32") for array in cotangents]
    _check_shapes([(array.dtype.name, array.shape) for array in arrays], shapes, names)
    return [array.astype(np.float32, copy=False) for array in arrays]


def _check_shapes(given: Sequence[tuple[str, Shape]], shapes: Sequence[Shape], names: Sequence[str]) -> None:
    """Raise InputError for other gradients than one of floats for each output. given: types and shapes."""
    if len(given) != len(shapes):
        raise InputError(f"{len(given)} gradients are given; the model has {len(shapes)} outputs: {', '.join(names)}")
    for (element_type, found), shape, name in zip(given, shapes, names, strict=True):
        if "float" not in element_type or found != shape:
            raise InputError(f"the gradient of output '{name}' is {element_type} {found}; give float32 {shape}")


def _filled(array: Array, batch: int) -> Array:
    """With rows of zeros behind, so many that there are `batch`."""
    if len(array) == batch:
        return array
    return np.concatenate([array, np.zeros((batch - len(array), *array.shape[1:]), np.float32)])
