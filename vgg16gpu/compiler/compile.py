"""From a file to a plan: everything that happens before a device is touched."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from vgg16gpu.compiler.choices import KERNELS, MAX_BATCH
from vgg16gpu.compiler.graph.graph import Graph, cross_batch_op, infer_shapes
from vgg16gpu.compiler.graph.input_size import resolve_input_shape
from vgg16gpu.compiler.graph.ops import Array, Shape
from vgg16gpu.compiler.model import SESSION, Model
from vgg16gpu.compiler.op_kernels.layout.preprocess import Normalisation
from vgg16gpu.compiler.planner.plan import make_plan
from vgg16gpu.compiler.planner.selection import PlanOptions
from vgg16gpu.errors import InputError, ModelError
from vgg16gpu.io.numbers import finite_numbers
from vgg16gpu.io.shown import shown
from vgg16gpu.io.synthetic import SCALES_SEED, typical_inputs
from vgg16gpu.program.launch import CompiledModel
from vgg16gpu.program.types import DeviceFacts

if TYPE_CHECKING:
    from vgg16gpu.compiler.quantization.scheme import QuantisedOp, Scales

_log = logging.getLogger(__name__)

SAMPLES = 4  # inputs that fix the scales of fp32 on tensor cores


@dataclass(frozen=True)
class EngineOptions:
    """What is asked of a model. The fields mean what they mean for `Engine`."""

    batch: int | Sequence[int] = 1
    size: int | tuple[int, int] | None = None
    outputs: Sequence[str] | None = None
    precision: str = "fp32"
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    keep_values: bool = False
    kernels: str = "auto"
    scales: Scales | None = None

    def graph(self, model: Model) -> Graph:
        """Return the model's simplified graph for these options. Raises ModelError and InputError."""
        if self.kernels not in KERNELS:
            raise ModelError(f"kernels {shown(self.kernels)} are not known; accepted: {', '.join(KERNELS)}")
        return model.graph(self.precision, self.outputs)


def compile_model(model: Model, options: EngineOptions, facts: DeviceFacts) -> CompiledModel:
    """Return the plan of a model for a device with these facts. Raises ModelError and InputError."""
    return SizePlanner(model, options, facts).plan(options.size)


class SizePlanner:
    """Plans of one model on one device, for a size of images at a time; integers for int8 are made once.

    Raises ModelError and InputError.
    """

    def __init__(self, model: Model, options: EngineOptions, facts: DeviceFacts) -> None:
        self.graph = options.graph(model)
        self.precision = options.precision
        self._model, self._options, self._facts = model, options, facts
        self._batches = batch_sizes(options.batch)

    def shapes(self, size: int | tuple[int, int] | None) -> list[Shape]:
        """Return the input's shape for each batch size. Raises InputError, and ModelError for sizes that do not fit."""
        given = None if size is None else _whole_numbers(size)
        if given is not None and len(given) not in (1, 2):
            raise InputError(f"size {shown(size)}: give one number of pixels, or height and width")
        sides = None if given is None else (given[0], given[-1])
        return [resolve_input_shape(self.graph, batch, sides) for batch in self._batches]

    def plan(self, size: int | tuple[int, int] | None) -> CompiledModel:
        """Return the plan for images of a size (one side, or height and width).

        None: the model's own size, or the usual one. Raises ModelError and InputError.
        """
        graph, options, shapes = self.graph, self._options, self.shapes(size)
        _check_rows(graph, shapes[-1])
        normalisation = _normalisation(self._model, options, graph, shapes[0])
        chosen = PlanOptions(
            options.precision,
            options.kernels,
            normalisation,
            options.keep_values,
            partial(_samples, shapes[0][1:], normalisation),
            self._integers if options.precision == "int8" else None,
        )
        return make_plan(graph, self._facts, shapes, chosen)

    @cached_property
    def _integers(self) -> Mapping[str, QuantisedOp]:
        return _integers(self._model, self._options, self.graph)


def _integers(model: Model, options: EngineOptions, graph: Graph) -> Mapping[str, QuantisedOp]:
    """Return each op's int8 data, from the model file's own scales, else those given, else the file beside it."""
    from vgg16gpu.compiler.quantization.scale_file import read_scales  # noqa: PLC0415 - other precisions do without
    from vgg16gpu.compiler.quantization.scheme import held_scales, quantise, quantised_inputs  # noqa: PLC0415 - of int8 alone

    held = held_scales(graph)
    if not held and options.scales is None and not model.is_on_disk:
        raise InputError(f"{model.name}: int8 needs scales, and no file of them lies beside it; give scales")
    if held or options.scales is None:
        return quantise(graph, held or read_scales(model.path, graph))
    if missing := [name for name in quantised_inputs(graph) if name not in options.scales]:
        raise InputError(f"scales: none for {', '.join(missing)}; give those of a calibration of this very model")
    return quantise(graph, options.scales)


def _check_rows(graph: Graph, shape: Shape) -> None:
    """Refuse batches of a model whose images cannot be computed apart: a batch is filled as it comes."""
    mixing = cross_batch_op(graph, infer_shapes(graph, shape)) if shape[0] > 1 else None
    if mixing:
        remedy = "use batch 1" if graph.input.shape[0] is None else f"{SESSION}, which run the batch of the file whole"
        raise ModelError(
            f"{type(mixing).__name__} '{mixing.y}' mixes the images of a batch, or has other rows than its input; "
            f"{remedy}"
        )


def sampler(model: Model, options: EngineOptions, graph: Graph) -> Callable[[Shape], Array]:
    """Return a function (N, ...) -> typical inputs of that shape, for graphs that read the same input as this one."""

    def samples(shape: Shape) -> Array:
        return _samples(shape[1:], _normalisation(model, options, graph, shape, logs=False))

    return samples


def _samples(shape: Shape, normalisation: Normalisation | None) -> Array:
    """Return SAMPLES typical inputs of one sample's shape: pictures, or random numbers if the input is no picture."""
    if normalisation is None:
        return np.random.default_rng(SCALES_SEED).standard_normal((SAMPLES, *shape)).astype(np.float32)
    return typical_inputs(SAMPLES, shape, normalisation.mean, normalisation.std, SCALES_SEED)


def _normalisation(
    model: Model, options: EngineOptions, graph: Graph, input_shape: Shape, *, logs: bool = True
) -> Normalisation | None:
    """Return mean and std from the options, else from the metadata or first layers; None unless the input is 4-D."""
    if len(input_shape) != 4:
        return None
    channels = input_shape[1]
    mean, std = _finite_numbers(options.mean), _finite_numbers(options.std)
    if options.mean is None or options.std is None:
        found = model.preprocess(graph, input_shape)
        if logs:
            _log.info("bytes are taken as %s", found.line(*input_shape[2:], pictures=False))
        mean = found.unit_mean if options.mean is None else mean
        std = found.unit_std if options.std is None else std
    if len(mean) != channels or len(std) != channels or not Normalisation(mean, std).is_usable:
        raise InputError(
            f"mean {shown(options.mean)} and std {shown(options.std)}: give one finite number for each of "
            f"{channels} channels, std above zero, both within the range of float32"
        )
    return Normalisation(mean, std)


def batch_sizes(batch: Any) -> list[int]:
    """Return the sizes of batches that are asked for, in their order. Raises InputError for what are none."""
    sizes = sorted(set(_whole_numbers(batch)))
    if not sizes or not all(1 <= size <= MAX_BATCH for size in sizes):
        raise InputError(f"batch {shown(batch)}: give one size, or several, each between 1 and {MAX_BATCH}")
    return sizes


def _whole_numbers(value: Any) -> tuple[int, ...]:
    """Return one integer or several, of any integer type, as a tuple; empty for anything else."""
    items = value if isinstance(value, Sequence | np.ndarray) else (value,)
    if any(isinstance(item, bool | np.bool_ | str) for item in items):
        return ()
    try:
        return tuple(operator.index(item) for item in items)
    except TypeError:
        return ()


def _finite_numbers(values: object) -> tuple[float, ...]:
    """Return a vector of finite numbers as a tuple; empty for anything else."""
    array = finite_numbers(values)
    return tuple(map(float, array)) if array is not None and array.ndim == 1 else ()
