"""The arithmetic of an op, whoever does it."""

from __future__ import annotations

import math

from vgg16gpu.compiler.graph.ops import Conv, Gemm, GeneralConv, MatMul, Op, Shape
from vgg16gpu.compiler.graph.shapes import matmul_operands, output_shape


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
