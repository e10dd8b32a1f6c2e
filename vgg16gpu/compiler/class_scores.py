"""What a model's first output is to classes: how many scores it has, whether they are probabilities, what makes each.

A softmax need not stand last. Exporters and users put ops behind it that bring its results to other places (Flatten,
Squeeze, Gather, Concat) or change them little (Clip(1e-7, 1), a product with 1): the scores are probabilities all the
same. So the bounds of each value that comes from a softmax are followed to the output.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.graph.ops import (
    Arithmetic,
    AxisSoftmax,
    Clip,
    Concat,
    Elementwise,
    FakeQuantize,
    Flatten,
    Gather,
    GlobalPool,
    Identity,
    LeakyRelu,
    Op,
    Pad,
    Pool,
    Relu,
    Reshape,
    Shape,
    Slice,
    Softmax,
    Transpose,
)

MOST_CLASSES: Final = 1 << 20  # more numbers are features: each class has a name
_SLACK: Final = 1e-3  # by which probabilities may leave 0..1: who adds 1e-7 still means them


class Bounds(NamedTuple):
    """Between which numbers all elements of a value are."""

    low: float
    high: float


class ScoreIndex(NamedTuple):
    """One number of a value."""

    value: str
    place: Shape


def class_count(shape: Shape) -> int:
    """Return how many classes an output of this shape, the batch in front, has scores for; 0 where it has no classes.

    (N, K) has K, and so has what has no more elements: (N, K, 1, 1) of a network without fully connected layers.
    """
    row = shape[1:]
    count = math.prod(row)
    return count if row and count <= MOST_CLASSES and (len(row) == 1 or count == max(row)) else 0


def gives_probabilities(graph: Graph) -> bool:
    """Return whether the numbers of the first output are probabilities: what a softmax gives, in 0..1."""
    found: dict[str, Bounds] = {}
    for op in graph.ops:
        bounds = _bounds(op, graph, found)
        if bounds is not None:
            found[op.y] = bounds
    scores = found.get(graph.outputs[0])
    return scores is not None and scores.low >= -_SLACK and scores.high <= 1 + _SLACK


def before_softmax(graph: Graph, shapes: Mapping[str, Shape], element: ScoreIndex) -> ScoreIndex | None:
    """Return the element that a softmax reads and turns into this one; None where no softmax, or no single one, does.

    shapes: of all values. Only ops stand between that bring elements to other places or change them one by one.
    """
    producers = {op.y: op for op in graph.ops}
    while (op := producers.get(element.value)) is not None:
        if isinstance(op, Softmax | AxisSoftmax):
            return ScoreIndex(op.x, element.place)
        source = _source(op, graph, shapes, element.place)
        if source is None:
            return None
        element = source
    return None


def _bounds(op: Op, graph: Graph, found: Mapping[str, Bounds]) -> Bounds | None:
    """Return the bounds of an op's result if it comes from a softmax; None if it does not or the op is not known."""
    if isinstance(op, Softmax) or (isinstance(op, AxisSoftmax) and not op.log):
        return Bounds(0.0, 1.0)
    if not any(name in found for name in op.operands):
        return None
    operands = [found.get(name) or _bounds_of_constant(graph, name) for name in op.operands]
    known = [bounds for bounds in operands if bounds is not None]
    if len(known) < len(operands):
        return None
    match op:
        case Elementwise():
            bounds = _computed(op, known)
            return Bounds(max(bounds.low, 0.0), max(bounds.high, 0.0)) if bounds and op.relu else bounds
        case Relu():
            return Bounds(max(known[0].low, 0.0), max(known[0].high, 0.0))
        case Pad():
            return _joined([known[0], Bounds(op.value, op.value)])
        case Concat() | Identity() | Flatten() | Reshape() | Transpose() | Slice() | Gather() | GlobalPool():
            return _joined(known)
        case Pool(kind="max"):
            return known[0]
        case Pool():  # padded elements may count, as zeros
            return _joined([known[0], Bounds(0.0, 0.0)])
    return None


def _computed(op: Elementwise, operands: Sequence[Bounds]) -> Bounds | None:
    first, *others = operands
    match op:
        case Arithmetic():
            for other in others:
                first = _combined(op.function, first, other)
            return first if all(map(math.isfinite, first)) else None
        case Clip() if not others:
            return Bounds(*(min(max(number, op.low), op.high) for number in first))
        case FakeQuantize():
            low, high = (float(np.float32(op.scale)) * number for number in (op.low, op.high))
            return Bounds(*(min(max(number, low), high) for number in first))
        case LeakyRelu() if op.alpha >= 0:
            return Bounds(*(number if number > 0 else op.alpha * number for number in first))
    return None


def _combined(function: str, a: Bounds, b: Bounds) -> Bounds:
    if function == "add":
        return Bounds(a.low + b.low, a.high + b.high)
    if function == "sub":
        return Bounds(a.low - b.high, a.high - b.low)
    if function == "div":
        if b.low <= 0 <= b.high:
            return Bounds(-math.inf, math.inf)
        b = Bounds(1 / b.high, 1 / b.low)
    corners = [x * y for x in a for y in b]
    return Bounds(min(corners), max(corners))


def _joined(operands: Sequence[Bounds]) -> Bounds:
    return Bounds(min(item.low for item in operands), max(item.high for item in operands))


def _bounds_of_constant(graph: Graph, name: str) -> Bounds | None:
    array = graph.constants.get(name)
    if array is None or not array.size or not np.isfinite(array).all():
        return None
    return Bounds(float(array.min()), float(array.max()))


def _source(op: Op, graph: Graph, shapes: Mapping[str, Shape], index: Shape) -> ScoreIndex | None:
    """Return the one element from which an op computes element `index`, growing with it; None if there is none."""
    x = shapes[op.x]
    match op:
        case Identity() | Relu() | Clip(others=()) | FakeQuantize():
            return ScoreIndex(op.x, index)
        case Flatten() | Reshape():
            place = np.ravel_multi_index(index, shapes[op.y])
            return ScoreIndex(op.x, tuple(int(i) for i in np.unravel_index(place, x)))
        case Transpose():
            return ScoreIndex(op.x, tuple(index[op.permutation.index(dim)] for dim in range(len(x))))
        case Slice():
            return ScoreIndex(op.x, tuple(s + step * i for s, step, i in zip(op.starts, op.steps, index, strict=True)))
        case Gather():
            rank = op.indices.ndim
            picked = int(op.indices[index[op.axis : op.axis + rank]])
            return ScoreIndex(op.x, (*index[: op.axis], picked, *index[op.axis + rank :]))
        case Pad():
            moved = tuple(i - front for i, front in zip(index, op.before, strict=True))
            return ScoreIndex(op.x, moved) if all(0 <= i < dim for i, dim in zip(moved, x, strict=True)) else None
        case Concat():
            return _part(op, shapes, index)
        case Elementwise():
            return _operand(op, graph, shapes, index)
    return None


def _part(op: Concat, shapes: Mapping[str, Shape], index: Shape) -> ScoreIndex | None:
    place = index[op.axis]
    for name in op.operands:
        count = shapes[name][op.axis]
        if place < count:
            return ScoreIndex(name, (*index[: op.axis], place, *index[op.axis + 1 :]))
        place -= count
    return None


def _operand(op: Elementwise, graph: Graph, shapes: Mapping[str, Shape], index: Shape) -> ScoreIndex | None:
    """Return the element of the only run-time operand if the op grows with that operand; else None."""
    computed = [name for name in op.operands if name not in graph.constants]
    if len(computed) != 1 or not _grows(op, graph, computed[0]):
        return None
    shape = shapes[computed[0]]
    tail = index[len(index) - len(shape) :]
    return ScoreIndex(computed[0], tuple(0 if dim == 1 else i for i, dim in zip(tail, shape, strict=True)))


def _grows(op: Elementwise, graph: Graph, operand: str) -> bool:
    if not isinstance(op, Arithmetic):
        return op.x == operand
    if op.function == "add":
        return True
    if op.function == "sub":
        return op.x == operand
    factors = [graph.constants[name] for name in op.operands if name in graph.constants]
    return (op.function == "mul" or op.x == operand) and all((factor > 0).all() for factor in factors)
