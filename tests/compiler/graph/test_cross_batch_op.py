"""Which ops mix the images of a batch."""

from __future__ import annotations

import numpy as np
import pytest

from vgg16gpu.compiler.graph.graph import Graph, GraphInput, cross_batch_op, infer_shapes
from vgg16gpu.compiler.graph.ops import (
    Arithmetic,
    AxisSoftmax,
    Concat,
    Gather,
    GeneralConv,
    MatMul,
    Op,
    Pad,
    Relu,
    Reshape,
    Slice,
    Transpose,
)
from vgg16gpu.compiler.graph.window import Window


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


CONSTANTS = {
    "channel": zeros(3, 1, 1),
    "one_row": zeros(1, 3, 1, 1),
    "rows": zeros(5, 3, 1, 1),
    "matrix": zeros(8, 6),
    "stack": zeros(5, 3, 8, 6),
    "bias": zeros(6),
    "filters": zeros(4, 3, 3, 3),
}


def op_of(kind: type[Op], *arguments: object, x: str = "x") -> Op:
    return kind(x, "y", ("y",), *arguments)  # type: ignore[arg-type]


ALONE = (
    op_of(Relu),
    op_of(Transpose, (0, 2, 3, 1)),
    op_of(Reshape, (0, -1)),
    op_of(Reshape, (-1, 3, 64)),
    op_of(Slice, (0, 1, 0, 0), (1, 1, 1, 1), (None, 2, None, None)),
    op_of(Pad, (0, 0, 1, 1), (0, 0, 1, 1), 0.0),
    op_of(Gather, 1, np.array([2, 0])),
    op_of(Concat, ("x",), 1),
    op_of(AxisSoftmax, 1, 3),
    op_of(Arithmetic, ("x",), "add"),
    op_of(Arithmetic, ("channel",), "mul"),
    op_of(Arithmetic, ("one_row",), "mul"),
    op_of(Arithmetic, ("x",), "sub", x="channel"),
    op_of(MatMul, ("matrix",)),
    op_of(MatMul, ("matrix", "bias")),
    op_of(MatMul, ("x",), False, True),
    op_of(GeneralConv, ("filters",), Window((3, 3))),
)
MIXING = (
    op_of(Transpose, (1, 0, 2, 3)),
    op_of(Reshape, (-1,)),
    op_of(Reshape, (-1, 64)),
    op_of(Reshape, (5, -1)),
    op_of(Slice, (1, 0, 0, 0), (1, 1, 1, 1), (2, None, None, None)),
    op_of(Slice, (-1, 0, 0, 0), (-1, 1, 1, 1), (None, None, None, None)),
    op_of(Pad, (1, 0, 0, 0), (0, 0, 0, 0), 0.0),
    op_of(Gather, 0, np.array([2, 0])),
    op_of(Concat, ("x",), 0),
    op_of(AxisSoftmax, 0, 3),
    op_of(Arithmetic, ("rows",), "mul"),
    op_of(MatMul, ("stack",)),
    op_of(MatMul, ("matrix",), False, True, x="stack"),
    op_of(GeneralConv, ("x",), Window((8, 8))),
)


def found(op: Op) -> Op | None:
    graph = Graph(GraphInput("x", (None, 3, 8, 8)), (op,), ("y",), constants=CONSTANTS)
    return cross_batch_op(graph, infer_shapes(graph, (5, 3, 8, 8)))


@pytest.mark.parametrize("op", ALONE, ids=repr)
@pytest.mark.every_case
def test_rows_stay_apart(op: Op) -> None:
    assert found(op) is None


@pytest.mark.parametrize("op", MIXING, ids=repr)
@pytest.mark.every_case
def test_rows_are_mixed(op: Op) -> None:
    assert found(op) is op
