"""Whether each image of a batch is computed by itself: only then may an engine fill a batch as it likes."""

from __future__ import annotations

from collections.abc import Mapping

from vgg16gpu.compiler.graph.ops import (
    AxisSoftmax,
    Concat,
    Elementwise,
    Gather,
    GeneralBatchNorm,
    GeneralConv,
    Graph,
    MatMul,
    Op,
    Pad,
    Reshape,
    Shape,
    Slice,
    Transpose,
)


def cross_batch_op(graph: Graph, shapes: Mapping[str, Shape]) -> Op | None:
    """The first op whose result does not have a row for each row of its operands, computed from that row alone.

    `shapes` of all values, for any batch. Constants are the same for all rows, so they must not have rows themselves.
    """
    return next((op for op in graph.ops if not _keeps_rows(op, graph, shapes)), None)


def _keeps_rows(op: Op, graph: Graph, shapes: Mapping[str, Shape]) -> bool:
    x, y = shapes[op.x], shapes[op.y]
    match op:
        case Transpose():
            return op.permutation[0] == 0
        case Reshape():
            return bool(x) and bool(y) and x[0] == y[0] and op.target[0] in (0, -1)
        case Slice():
            return op.sizes[0] is None and (op.starts[0], op.steps[0]) == (0, 1)
        case Pad():
            return (op.before[0], op.after[0]) == (0, 0)
        case Gather() | Concat() | AxisSoftmax():
            return op.axis > 0
        case Elementwise():
            return _broadcasts_rows(op, graph, shapes)
        case MatMul():
            return _multiplies_rows(op, graph, shapes)
        case GeneralConv() | GeneralBatchNorm():
            return all(name in graph.constants for name in op.others)
    return True


def _broadcasts_rows(op: Elementwise, graph: Graph, shapes: Mapping[str, Shape]) -> bool:
    y = shapes[op.y]
    return all(
        _is_one_row(shapes[name], y) if name in graph.constants else len(shapes[name]) == len(y) for name in op.operands
    )


def _multiplies_rows(op: MatMul, graph: Graph, shapes: Mapping[str, Shape]) -> bool:
    a, b, *others = op.operands
    rank, right = len(shapes[a]), len(shapes[b])
    if a in graph.constants or rank == 1 or (op.transpose_a and rank == 2):
        return False
    if any(name not in graph.constants or not _is_one_row(shapes[name], shapes[op.y]) for name in others):
        return False
    if b in graph.constants:
        return right < rank or right == 2
    return right == rank > 2


def _is_one_row(shape: Shape, y: Shape) -> bool:
    """Whether what is broadcast to y is the same for all of its rows."""
    return len(shape) < len(y) or shape[0] == 1
