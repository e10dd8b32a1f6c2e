"""Count the FLOP and the parameters of each op."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vgg16gpu.compiler.graph.ops import Conv, Gemm, GeneralConv, Graph, MatMul, Op, Shape, op_arrays
from vgg16gpu.compiler.graph.shapes import infer_shapes, matmul_operands, output_shape


def flop(op: Op, *shapes: Shape) -> int:
    """2 per multiply-add of the products of an op whose operands have these shapes; 0 for an op without products.

    A convolution counts every output that it computes, pooled or not. Padded channels do not count.
    """
    match op:
        case Conv():
            return 2 * shapes[0][0] * math.prod(op.window.output_size(*shapes[0][2:])) * op.weight.size
        case Gemm():
            return 2 * shapes[0][0] * op.weight.size
        case GeneralConv():
            return 2 * math.prod(output_shape(op, *shapes)) * math.prod(shapes[1][1:])
        case MatMul():
            return 2 * math.prod(output_shape(op, *shapes)) * matmul_operands(op, shapes[0], shapes[1])[0][-1]
        case _:
            return 0


@dataclass(frozen=True)
class OpCost:
    """One op of a graph. `flop` is 2 per multiply-add of its products, for the whole batch."""

    op: str
    name: str
    shape: Shape
    parameters: int
    flop: int


def op_costs(graph: Graph, shape: Shape) -> list[OpCost]:
    """The ops of a graph with the shape each computes, its parameters and its FLOP. `shape`: of the input."""
    shapes = infer_shapes(graph, shape)
    return [
        OpCost(
            type(op).__name__, op.y, shapes[op.y], _parameters(op, graph), flop(op, *(shapes[x] for x in op.operands))
        )
        for op in graph.ops
    ]


def _parameters(op: Op, graph: Graph) -> int:
    held = sum(array.size for array in op_arrays(op))
    return held + sum(graph.constants[name].size for name in set(op.operands) if name in graph.constants)
