"""From a file to a plan: everything that happens before a device is touched."""

from __future__ import annotations

import logging
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vgg16gpu.choices import KERNELS, PRECISIONS
from vgg16gpu.dequantise import dequantised, lifted
from vgg16gpu.errors import InputError, ModelError
from vgg16gpu.facts import DeviceFacts
from vgg16gpu.fit import resolve_input_shape
from vgg16gpu.graph import Array, Graph, Shape
from vgg16gpu.loader import load
from vgg16gpu.ops.preprocess import Normalisation
from vgg16gpu.plan import make_plan
from vgg16gpu.program import Plan
from vgg16gpu.quantise import QuantisedOp, Scales, held_scales, quantise, quantised_inputs
from vgg16gpu.rows import mixing_op
from vgg16gpu.scale_file import read_scales
from vgg16gpu.shapes import infer_shapes
from vgg16gpu.shipped import digits_model, is_digits
from vgg16gpu.shown import shown
from vgg16gpu.simplify import IMAGE_PASSES, simplify
from vgg16gpu.wish import Wish
from vgg16gpu.zoo.metadata import model_metadata, model_preprocess
from vgg16gpu.zoo.samples import SCALES_SEED, typical_inputs

_log = logging.getLogger(__name__)

SAMPLES = 4  # inputs that fix the scales of fp32 on tensor cores
MAX_BATCH = 65535  # blocks of a grid in y and z
_SESSION = "use vgg16gpu.session.Session or vgg16gpu.onnx_backend"


@dataclass(frozen=True)
class Request:
    """What a user asks of a model. The fields mean what they mean for `Engine`."""

    model: str | Path  # or "digits"
    batch: int | Sequence[int] = 1
    size: int | tuple[int, int] | None = None
    outputs: Sequence[str] | None = None
    precision: str = "fp32"
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    keep_values: bool = False
    kernels: str = "auto"
    scales: Scales | None = None


def load_graph(request: Request) -> Graph:
    """The simplified graph of the requested model. Raises ModelError and InputError."""
    if request.precision not in PRECISIONS:
        raise ModelError(f"precision {shown(request.precision)} is not supported; accepted: {', '.join(PRECISIONS)}")
    if request.kernels not in KERNELS:
        raise ModelError(f"kernels {shown(request.kernels)} are not known; accepted: {', '.join(KERNELS)}")
    path = model_path(request.model)
    outputs = request.outputs
    if outputs is not None and not (isinstance(outputs, Sequence) and all(isinstance(name, str) for name in outputs)):
        raise InputError(f"outputs {shown(request.outputs)}: give names of values, nodes or layers")
    graph = load(path, request.outputs)
    _check_input(path, graph)
    return simplify(lifted(graph) if request.precision == "int8" else dequantised(graph), passes=IMAGE_PASSES)


def model_path(model: object) -> Path:
    """The file that somebody means by the path of a model, or by "digits", the small net in the package.

    Raises InputError for what is neither: the bytes of a file, or a model that is read already.
    """
    if is_digits(model):
        return digits_model()
    if isinstance(model, str | Path):
        return Path(model)
    raise InputError(f"model is {shown(model)}; give the path of an ONNX file ({_SESSION} for a model in memory)")


def _check_input(model: Path, graph: Graph) -> None:
    """Refuse what is no image or row, and inputs beside it: batches are made of one input."""
    if graph.others:
        inputs = " and ".join(f"'{value.name}' {value.shape}" for value in graph.inputs)
        raise ModelError(f"{model}: has {len(graph.inputs)} run-time inputs, {inputs}; an engine takes one; {_SESSION}")
    if len(graph.input.shape) not in (2, 4):
        raise ModelError(
            f"{model}: input '{graph.input.name}' has shape {graph.input.shape}; an engine takes (N, C, H, W) or "
            f"(N, F); {_SESSION}"
        )


def has_scales(model: str | Path) -> bool:
    """Whether a model file has scales of its own, which int8 takes: then none beside it are read."""
    return bool(load_graph(Request(model, precision="int8")).integers)


def plan_graph(graph: Graph, request: Request, facts: DeviceFacts) -> Plan:
    """The plan of a loaded graph on a device with these facts. Raises ModelError and InputError."""
    batches = _whole_numbers(request.batch)
    if not batches or not all(1 <= batch <= MAX_BATCH for batch in batches):
        raise InputError(f"batch {shown(request.batch)}: give one size, or several, each between 1 and {MAX_BATCH}")
    size = None if request.size is None else _whole_numbers(request.size)
    if size is not None and len(size) not in (1, 2):
        raise InputError(f"size {shown(request.size)}: give one number of pixels, or height and width")
    sides = None if size is None else (size[0], size[-1])
    shapes = [resolve_input_shape(graph, batch, sides) for batch in sorted(set(batches))]
    _check_rows(graph, shapes[-1])
    normalisation = _normalisation(request, graph, shapes[0])
    wish = Wish(
        request.precision,
        request.kernels,
        normalisation,
        request.keep_values,
        partial(_samples, shapes[0][1:], normalisation),
        _integers(graph, request) if request.precision == "int8" else None,
    )
    return make_plan(graph, facts, shapes, wish)


def _integers(graph: Graph, request: Request) -> Mapping[str, QuantisedOp]:
    """What int8 needs of each op: by scales of the model file itself, else by those given, else by the file beside."""
    held = held_scales(graph)
    if held or request.scales is None:
        return quantise(graph, held or read_scales(model_path(request.model), graph))
    if missing := [name for name in quantised_inputs(graph) if name not in request.scales]:
        raise InputError(f"scales: none for {', '.join(missing)}; give those of a calibration of this very model")
    return quantise(graph, request.scales)


def _check_rows(graph: Graph, shape: Shape) -> None:
    """Refuse batches of a model whose images cannot be computed apart: a batch is filled as it comes."""
    mixing = mixing_op(graph, infer_shapes(graph, shape)) if shape[0] > 1 else None
    if mixing:
        remedy = "use batch 1" if graph.input.shape[0] is None else f"{_SESSION}, which run the batch of the file whole"
        raise ModelError(
            f"{type(mixing).__name__} '{mixing.y}' mixes the images of a batch, or has other rows than its input; "
            f"{remedy}"
        )


def _samples(shape: Shape, normalisation: Normalisation | None) -> Array:
    """Typical inputs of one sample's shape: pictures, or random numbers where an input is no picture."""
    if normalisation is None:
        return np.random.default_rng(SCALES_SEED).standard_normal((SAMPLES, *shape)).astype(np.float32)
    return typical_inputs(SAMPLES, shape, normalisation.mean, normalisation.std, SCALES_SEED)


def _normalisation(request: Request, graph: Graph, input_shape: Shape) -> Normalisation | None:
    """As asked, else as `infer` does it to pictures: by the file's metadata, or by what its first layers let assume."""
    if len(input_shape) != 4:
        return None
    channels = input_shape[1]
    mean, std = _finite_numbers(request.mean), _finite_numbers(request.std)
    if request.mean is None or request.std is None:
        path = model_path(request.model)
        found = model_preprocess(path, model_metadata(path), graph, input_shape)
        _log.info("bytes are taken as %s", found.line(*input_shape[2:], pictures=False))
        mean = found.unit_mean if request.mean is None else mean
        std = found.unit_std if request.std is None else std
    if len(mean) != channels or len(std) != channels or not Normalisation(mean, std).is_usable:
        raise InputError(
            f"mean {shown(request.mean)} and std {shown(request.std)}: give one finite number for each of "
            f"{channels} channels, std above zero, both within the range of float32"
        )
    return Normalisation(mean, std)


def _whole_numbers(value: Any) -> tuple[int, ...]:
    """One whole number or several, of any integer type; empty for anything else."""
    items = value if isinstance(value, Sequence | np.ndarray) else (value,)
    if any(isinstance(item, bool | np.bool_ | str) for item in items):
        return ()
    try:
        return tuple(operator.index(item) for item in items)
    except TypeError:
        return ()


def _finite_numbers(values: object) -> tuple[float, ...]:
    """A vector of finite numbers; empty for anything else."""
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        return ()
    return tuple(map(float, array)) if array.ndim == 1 and np.isfinite(array).all() else ()
