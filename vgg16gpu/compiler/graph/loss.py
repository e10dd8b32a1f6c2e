"""Graph -> Graph: from a model's features to a loss for each image, and its gradient to the image, in one program.

Each term compares one output of the model with a target. The op that computes a term gives its gradient in the same
pass, so a graph goes forward, through all terms, and back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from vgg16gpu.compiler.graph.backward import Backward
from vgg16gpu.compiler.graph.gradient import back_to_input, needed, unpooled
from vgg16gpu.compiler.graph.loss_ops import MAX_ROWS, Distance, FeatureLoss, Gram, GramGradient, RowSum, target_shape
from vgg16gpu.compiler.graph.ops import Array, Graph, GraphInput, Op, Reshape, Shape
from vgg16gpu.compiler.graph.shapes import infer_shapes, output_shape
from vgg16gpu.errors import ModelError

Kind: TypeAlias = Literal["squared", "absolute", "gram", "unit"]


@dataclass(frozen=True, eq=False)
class Term:
    """What one output of a model adds to the loss of an image, `weight` times the mean of one of these.

    "squared", "absolute": the differences between features and target. "gram": the squared differences of their Gram
    matrices, the products of all pairs of channels, summed over pixels, divided by C * H * W. "unit": over pixels, the
    sum of `channels`, (C,) or all 1, times the squared differences of unit vectors, see `FeatureLoss`.
    """

    output: int  # of the model, counted from 0
    kind: Kind = "squared"
    weight: float = 1.0
    channels: Array | None = None


@dataclass(frozen=True, eq=False)
class LossGraph:
    """A graph whose outputs are the loss of each image, (N,), and, if wanted, its gradient to the image.

    targets: the shape of the target of each term, by its name, a further input.
    """

    graph: Graph
    targets: Mapping[str, Shape]


def target_graph(graph: Graph, terms: Sequence[Term], shape: Shape) -> Graph:
    """What images of this shape are as targets: a Gram matrix (N, C, C), or a map, (N, C, H, W), for each term.

    A loss takes that map with its channels last, (N, H*W, C).
    """
    back = Backward(dict(infer_shapes(graph, shape)), dict(graph.constants))
    ops = list(graph.ops)
    outputs = []
    for term in terms:
        feature = _feature(graph, term, back.shapes)
        if term.kind == "gram":
            outputs.append(_add(back, ops, Gram, feature, "gram"))
        else:
            is_input = feature == graph.input.name  # which no op computes
            same = _add(back, ops, Reshape, feature, "target", back.shapes[feature]) if is_input else feature
            outputs.append(same)
    kept, names = needed(tuple(ops), tuple(outputs))
    return Graph(graph.input, kept, tuple(outputs), (), _read(back, names))


def loss_graph(
    graph: Graph, terms: Sequence[Term], shape: Shape, *, gradient: bool, precision: str = "fp32"
) -> LossGraph:
    """The loss of images of this shape by a simplified graph with one input; precision: of its products.

    Raises ModelError as `gradient_graph`.
    """
    back = Backward(dict(infer_shapes(graph, shape)), dict(graph.constants), rescales=precision == "fp16")
    forward = unpooled(graph, back) if gradient else graph.ops
    behind: dict[str, list[Op]] = {}  # a feature: what its terms compute, right behind it while the caches have it
    found = []
    for term in terms:
        feature = _feature(graph, term, back.shapes)
        found.append(_compared(back, behind.setdefault(feature, []), term, feature, gradient))
    ops = _placed(forward, behind, graph.input.name)
    outputs: tuple[str, ...] = (_summed(back, ops, [made.parts for made in found]),)
    if gradient:
        given = [(made.feature, made.gradient) for made in found]
        outputs = (*outputs, back_to_input(graph.input, forward, back, given))
    kept, names = needed((*ops, *back.ops), outputs)
    targets = {made.target: back.shapes[made.target] for made in found}
    others = tuple(GraphInput(name, dims) for name, dims in targets.items())
    return LossGraph(Graph(graph.input, kept, outputs, others, _read(back, names)), targets)


class _Compared(NamedTuple):
    """A term in the graph, by the names of its values."""

    feature: str
    target: str
    parts: str  # partial sums of the loss
    gradient: str  # of the feature; "" if it is not wanted


def _feature(graph: Graph, term: Term, shapes: Mapping[str, Shape]) -> str:
    feature = graph.outputs[term.output]
    if len(shapes[feature]) != 4:
        raise ModelError(
            f"a loss compares feature maps, and '{feature}' has shape {shapes[feature]}; name other layers"
        )
    channels = shapes[feature][1]
    if term.channels is not None and term.channels.shape != (channels,):
        raise ModelError(f"'{feature}' has {channels} channels, and {term.channels.shape} weights are given for them")
    return feature


def _compared(back: Backward, ops: list[Op], term: Term, feature: str, gradient: bool) -> _Compared:
    compared = _add(back, ops, Gram, feature, "gram") if term.kind == "gram" else feature
    shape = back.shapes[compared]
    target = back.fresh(f"{compared}/target")
    back.shapes[target] = target_shape(shape)
    others = [target]
    if term.kind == "unit":
        channels = np.ones(shape[1], np.float32) if term.channels is None else term.channels
        others.append(back.constant(channels, compared))
    cotangent = back.fresh(f"{compared}/cotangent") if gradient else None
    if cotangent:
        back.shapes[cotangent] = shape
    distance: Distance = "squared" if term.kind == "gram" else term.kind
    weight = term.weight / math.prod(shape[2:] if term.kind == "unit" else shape[1:])
    parts = _add(back, ops, FeatureLoss, compared, "loss", tuple(others), distance, weight, cotangent)
    if cotangent and compared != feature:
        cotangent = _add(back, ops, GramGradient, cotangent, "of map", (feature,))
    return _Compared(feature, target, parts, cotangent or "")


def _placed(forward: Sequence[Op], behind: Mapping[str, Sequence[Op]], source: str) -> list[Op]:
    """The ops of the model, and behind each those that read its result alone."""
    return [*behind.get(source, ()), *(one for op in forward for one in (op, *behind.get(op.y, ())))]


def _summed(back: Backward, ops: list[Op], parts: list[str]) -> str:
    """The sum of all partial sums of an image."""
    while True:
        first, *others = parts[:MAX_ROWS]
        parts = [_add(back, ops, RowSum, first, "sum", tuple(others)), *parts[MAX_ROWS:]]
        if len(parts) == 1:
            return parts[0]


def _add(back: Backward, ops: list[Op], kind: Callable[..., Op], x: str, what: str, /, *rest: Any) -> str:
    """Appends an op that reads x; the name of its result."""
    y = back.fresh(f"{x}/{what}")
    ops.append(kind(x, y, (y,), *rest))
    back.shapes[y] = output_shape(ops[-1], *(back.shapes[name] for name in ops[-1].operands))
    return y


def _read(back: Backward, names: set[str]) -> dict[str, Array]:
    """The constants among these names."""
    return {name: array for name, array in back.constants.items() if name in names}
