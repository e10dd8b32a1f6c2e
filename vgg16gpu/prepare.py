"""From a file to a plan: everything that happens before a device is touched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vgg16gpu.errors import InputError, ModelError
from vgg16gpu.facts import DeviceFacts
from vgg16gpu.fit import resolve_input_shape
from vgg16gpu.graph import Graph, Shape
from vgg16gpu.loader import load
from vgg16gpu.normalise import default_mean, default_std
from vgg16gpu.ops.preprocess import Normalisation
from vgg16gpu.plan import make_plan
from vgg16gpu.program import Plan
from vgg16gpu.simplify import simplify

PRECISIONS = ("fp32",)


@dataclass(frozen=True)
class Request:
    """What a user asks of a model. The fields mean what they mean for `Engine`."""

    model: str | Path
    batch: int | Sequence[int] = 1
    size: int | tuple[int, int] | None = None
    outputs: Sequence[str] | None = None
    precision: str = "fp32"
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    keep_values: bool = False


def load_graph(request: Request) -> Graph:
    """The simplified graph of the requested model. Raises ModelError."""
    if request.precision not in PRECISIONS:
        raise ModelError(f"precision {request.precision!r} is not supported; accepted: {', '.join(PRECISIONS)}")
    return simplify(load(request.model, request.outputs))


def plan_graph(graph: Graph, request: Request, facts: DeviceFacts) -> Plan:
    """The plan of a loaded graph on a device with these facts. Raises ModelError and InputError."""
    batches = (request.batch,) if isinstance(request.batch, int) else tuple(request.batch)
    if not batches or any(not isinstance(batch, int) or not 1 <= batch <= 65535 for batch in batches):
        raise InputError(f"batch {request.batch!r}: give one size, or several, each between 1 and 65535")
    shapes = [resolve_input_shape(graph, batch, request.size) for batch in sorted(set(batches))]
    normalisation = _normalisation(request, shapes[0])
    return make_plan(graph, facts, shapes, normalisation=normalisation, keep_values=request.keep_values)


def _normalisation(request: Request, input_shape: Shape) -> Normalisation | None:
    if len(input_shape) != 4:
        return None
    channels = input_shape[1]
    mean = default_mean(channels) if request.mean is None else tuple(request.mean)
    std = default_std(channels) if request.std is None else tuple(request.std)
    if len(mean) != channels or len(std) != channels or not all(value > 0 for value in std):
        raise InputError(f"mean {mean} and std {std}: give one value for each of {channels} channels, std above zero")
    return Normalisation(mean, std)
