"""Losses between features as graphs, with their gradients, and the ops that they are made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np

from vgg16gpu.compiler.graph.gradient import Backward, back_to_input, needed, unpooled
from vgg16gpu.compiler.graph.graph import Graph, GraphInput, infer_shapes
from vgg16gpu.compiler.graph.ops import Array, MultiOp, Op, Reshape, Shape, with_operands
from vgg16gpu.errors import ModelError

CHUNK: Final = 8192  # elements that one block of the kernel sums up
VALUES: Final = 16  # channels of a pixel that one of its threads holds, for unit vectors
PIXEL_ROUNDS: Final = 2  # pixels of a thread there
THREADS: Final = 256  # of a block
WARP: Final = 32
MAX_ROWS: Final = 8  # operands of a RowSum

Distance: TypeAlias = Literal["squared", "absolute", "unit"]


@dataclass(frozen=True, eq=False)
class FeatureLoss(MultiOp):
    """Partial sums (N, blocks, 1) of a loss between x and a target; with `cotangent` its gradient to x beside it.

    `distance`: the sum of squared or of absolute differences, or "unit": of squared differences of unit vectors (a
    pixel's channels divided by sqrt(1e-8 + the sum of their squares)), weighted by the third operand, (C,). All times
    `weight`.
    """

    distance: Distance = "squared"
    weight: float = 1.0
    cotangent: str | None = None

    @property
    def results(self) -> tuple[str, ...]:
        """The partial sums, and the gradient to x."""
        return (self.y,) if self.cotangent is None else (self.y, self.cotangent)

    def shape_of_y(self, *shapes: Shape) -> Shape:
        """Return (N, blocks, 1) for a feature, its target and perhaps weights. Raises ModelError for other shapes."""
        shape, target, *weights = shapes
        fits = weights == [(shape[1],)] and len(shape) == 4 if self.distance == "unit" else not weights
        if len(shape) not in (3, 4) or target not in (shape, target_shape(shape)) or not fits:
            raise ModelError(f"FeatureLoss '{self.y}': a target of shape {target} for a feature of shape {shape}")
        return shape[0], blocks(self, shape), 1


@dataclass(frozen=True, eq=False)
class RowSum(MultiOp):
    """(N,): the sum of all elements of a row of 1 to 8 operands."""

    def shape_of_y(self, *shapes: Shape) -> Shape:
        """Return (N,). Raises ModelError for operands of different N, and for more than MAX_ROWS."""
        if len(shapes) > MAX_ROWS or len({shape[:1] for shape in shapes}) != 1 or not shapes[0]:
            raise ModelError(f"RowSum '{self.y}': operands of shapes {' and '.join(map(str, shapes))}")
        return shapes[0][:1]


@dataclass(frozen=True, eq=False)
class Gram(Op):
    """(N, C, C): the products of all pairs of channels of a map (N, C, H, W), summed over pixels, over C * H * W."""

    def shape_of_y(self, *shapes: Shape) -> Shape:
        """Return (N, C, C). Raises ModelError if x is not (N, C, H, W)."""
        (shape,) = shapes
        if len(shape) != 4:
            raise ModelError(f"Gram '{self.y}': its input has shape {shape}; it needs a feature map, (N, C, H, W)")
        return shape[0], shape[1], shape[1]


@dataclass(frozen=True, eq=False)
class GramGradient(MultiOp):
    """What a Gram hands back; operands: a symmetric gradient of its result, and the map."""

    def shape_of_y(self, *shapes: Shape) -> Shape:
        """Return the shape of the map, (N, C, H, W). Raises ModelError if the gradient is not (N, C, C)."""
        gradient, shape = shapes
        if len(shape) != 4 or gradient != (shape[0], shape[1], shape[1]):
            raise ModelError(f"GramGradient '{self.y}': a gradient of shape {gradient} for the products of {shape}")
        return shape


def pixels_and_channels(shape: Shape) -> tuple[int, int]:
    """Return (pixels, channels) of a feature as the kernels see it; a Gram matrix is one pixel."""
    return (math.prod(shape[2:]), shape[1]) if len(shape) == 4 else (1, math.prod(shape[1:]))


def lanes(channels: int) -> int:
    """Return how many threads of a warp share a pixel of so many channels, for unit vectors: a power of two."""
    threads = -(-channels // VALUES)
    return min(1 << max(threads - 1, 0).bit_length(), WARP)


def pixels_of_block(channels: int) -> int:
    """Return how many pixels of so many channels one block of the kernel sums up, for unit vectors."""
    return THREADS // lanes(channels) * PIXEL_ROUNDS


def blocks(op: FeatureLoss, shape: Shape) -> int:
    """Return how many partial sums there are for an image of a feature of this shape."""
    pixels, channels = pixels_and_channels(shape)
    if op.distance == "unit":
        return -(-pixels // pixels_of_block(channels))
    return -(-pixels * channels // CHUNK)


def target_shape(shape: Shape) -> Shape:
    """Return the shape of the target for a feature of this shape."""
    return (shape[0], math.prod(shape[2:]), shape[1]) if len(shape) == 4 else shape


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
    """Return a graph from images of this shape to targets: for each term a Gram matrix (N, C, C) or a map (N, C, H, W).

    A loss reads that map with its channels last, (N, H*W, C).
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
    return Graph(graph.input, kept, tuple(outputs), (), _read(back, names), compared=frozenset(outputs))


def loss_graph(
    graph: Graph, terms: Sequence[Term], shape: Shape, *, gradient: bool, precision: str = "fp32"
) -> LossGraph:
    """Return the loss of images of this shape by a simplified graph with one input; precision: of its products.

    Raises ModelError as `gradient_graph`.
    """
    back = Backward(dict(infer_shapes(graph, shape)), dict(graph.constants), rescales=precision == "fp16")
    forward = unpooled(graph, back) if gradient else graph.ops
    found = [_compared(back, term, _feature(graph, term, back.shapes), None, gradient) for term in terms]
    ops, outputs = _joined(back, forward, [_Way(graph.input, forward, found)], gradient)
    kept, names = needed(ops, outputs)
    targets = {made.target: back.shapes[made.target] for made in found}
    others = tuple(GraphInput(name, dims) for name, dims in targets.items())
    compared = frozenset(made.feature for made in found)
    return LossGraph(Graph(graph.input, kept, outputs, others, _read(back, names), compared=compared), targets)


def pair_graph(graph: Graph, terms: Sequence[Term], shape: Shape, *, gradients: int, precision: str = "fp32") -> Graph:
    """Return the loss of images of this shape against a second input of the same shape, by a simplified graph.

    gradients: to how many of both, the images first: 0, 1 or 2. Outputs: the loss of each image, (N,), and these
    gradients. Raises ModelError as `gradient_graph`.
    """
    back = Backward(dict(infer_shapes(graph, shape)), dict(graph.constants), rescales=precision == "fp16")
    forward = unpooled(graph, back) if gradients else graph.ops
    second, twins = _twin_of(graph.input, forward if gradients > 1 else graph.ops, back)
    other = GraphInput(twins[graph.input.name], shape)
    features = [(_feature(graph, term, back.shapes), term) for term in terms]
    pairs = [_compared(back, term, name, twins[name], gradients > 0) for name, term in features]
    ways = [_Way(graph.input, forward, pairs)]
    if gradients > 1:
        turned = [_compared(back, term, twins[name], name, True) for name, term in features]
        ways.append(_Way(other, second, turned))
    # The first op reads the run-time input; the twins' maps that nobody needs are gone before those of the images come.
    ops, outputs = _joined(back, (*forward[:1], *second, *forward[1:]), ways, gradients > 0)
    kept, names = needed(ops, outputs)
    compared = frozenset(name for feature, _ in features for name in (feature, twins[feature]))
    same = {new: old for old, new in twins.items()}
    return Graph(graph.input, kept, outputs, (other,), _read(back, names), twins=same, compared=compared)


def _twin_of(source: GraphInput, ops: Sequence[Op], back: Backward) -> tuple[tuple[Op, ...], dict[str, str]]:
    """Return the same ops for another input, and the names there of the input and of every value."""
    names: dict[str, str] = {}
    for name in (source.name, *(op.y for op in ops)):
        names[name] = back.fresh(f"{name}/of target")
        back.shapes[names[name]] = back.shapes[name]
    twins = (with_operands(op, [names.get(name, name) for name in op.operands]) for op in ops)
    return tuple(replace(op, y=names[op.y], names=(names[op.y],)) for op in twins), names


@dataclass(frozen=True, eq=False)
class _Way:
    """A way there and back: what is compared of one input, by these ops."""

    source: GraphInput
    forward: Sequence[Op]
    found: Sequence[_Compared]


def _joined(
    back: Backward, forward: Sequence[Op], ways: Sequence[_Way], gradient: bool
) -> tuple[tuple[Op, ...], tuple[str, ...]]:
    """Return all ops in order, and the outputs: forward, and back if wanted; each term right before its reader.

    So a term's gradient takes room for as long as one step. Without gradients terms stand behind their features.
    """
    groups = [made.ops for way in ways for made in way.found]
    gradients = []
    for way in ways if gradient else ():
        given = [(made.feature, made.gradient) for made in way.found]
        gradients.append(back_to_input(way.source, tuple(way.forward), back, given))
    ops = [*forward] if gradient else _behind(forward, ways[0])
    waiting = {name: group for group in groups for op in group for name in op.results} if gradient else {}
    for op in back.ops:
        for name in op.operands:
            ops += [each for each in waiting.get(name, ()) if each not in ops]
        ops.append(op)
    total = _summed(back, ops, [made.parts for made in ways[0].found])
    return tuple(ops), (total, *gradients)


def _behind(forward: Sequence[Op], way: _Way) -> list[Op]:
    """Return the ops, and the terms behind the last op that they wait for, while the caches have its result."""
    places = {op.y: place for place, op in enumerate(forward, 1)}
    terms: dict[int, list[Op]] = {}
    for made in way.found:
        place = max(places.get(name, 0) for name in (made.feature, made.compared))
        terms.setdefault(place, []).extend(made.ops)
    return [*terms.get(0, ()), *(one for place, op in enumerate(forward, 1) for one in (op, *terms.get(place, ())))]


class _Compared(NamedTuple):
    """A term in the graph, by the names of its values."""

    feature: str
    target: str
    parts: str  # partial sums of the loss
    gradient: str  # of the feature; "" if it is not wanted
    compared: str  # the value like the feature that the target is of; "" if it comes from outside
    ops: tuple[Op, ...]


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


def _compared(back: Backward, term: Term, feature: str, other: str | None, gradient: bool) -> _Compared:
    """Add a term of a feature and a target: that of `other`, a value like the feature, or without one from outside."""
    ops: list[Op] = []
    is_gram = term.kind == "gram"
    compared = _add(back, ops, Gram, feature, "gram") if is_gram else feature
    shape = back.shapes[compared]
    if other is None:
        target = back.fresh(f"{compared}/target")
        back.shapes[target] = target_shape(shape)
    else:
        target = _add(back, ops, Gram, other, "gram") if is_gram else other
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
    if cotangent and is_gram:
        cotangent = _add(back, ops, GramGradient, cotangent, "of map", (feature,))
    return _Compared(feature, target, parts, cotangent or "", other or "", tuple(ops))


def _summed(back: Backward, ops: list[Op], parts: list[str]) -> str:
    """Append ops that sum all partial sums of an image; return the result's name."""
    while True:
        first, *others = parts[:MAX_ROWS]
        parts = [_add(back, ops, RowSum, first, "sum", tuple(others)), *parts[MAX_ROWS:]]
        if len(parts) == 1:
            return parts[0]


def _add(back: Backward, ops: list[Op], kind: Callable[..., Op], x: str, what: str, /, *rest: Any) -> str:
    """Append an op that reads x; return the name of its result."""
    y = back.fresh(f"{x}/{what}")
    ops.append(kind(x, y, (y,), *rest))
    back.shapes[y] = ops[-1].shape_of_y(*(back.shapes[name] for name in ops[-1].operands))
    return y


def _read(back: Backward, names: set[str]) -> dict[str, Array]:
    """Return the constants among these names."""
    return {name: array for name, array in back.constants.items() if name in names}
