"""What each ONNX operator means here: one small function per operator, from a node to canonical ops.

A rule accepts every spelling of opsets 7 to 25 that means the canonical op and raises `RefusalError` for all else.
Operator definitions: https://onnx.ai/onnx/operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from vgg16gpu.compiler.graph.ops import Op
from vgg16gpu.compiler.onnx.node import NodeView
from vgg16gpu.compiler.onnx.rules import integers, moves, products, values, windows

Rule: TypeAlias = Callable[[NodeView], Op | tuple[Op, ...]]

RULES: Final[Mapping[str, Rule]] = {
    "Add": values.arithmetic("add"),
    "AveragePool": windows.average_pool,
    "BatchNormalization": windows.batch_norm,
    "Cast": values.cast,
    "Clip": values.clip,
    "Concat": moves.concat,
    "Conv": windows.conv,
    "DequantizeLinear": integers.dequantize_linear,
    "Div": values.arithmetic("div"),
    "Dropout": values.dropout,
    "Flatten": moves.flatten,
    "Gather": moves.gather,
    "Gemm": products.gemm,
    "GlobalAveragePool": windows.global_average_pool,
    "GlobalMaxPool": windows.global_max_pool,
    "Identity": values.identity,
    "LRN": windows.lrn,
    "LeakyRelu": values.leaky_relu,
    "LogSoftmax": values.log_softmax,
    "MatMul": products.matmul,
    "MaxPool": windows.max_pool,
    "Mul": values.arithmetic("mul"),
    "Pad": moves.pad,
    "QuantizeLinear": integers.quantize_linear,
    "ReduceMean": windows.reduce_mean,
    "Relu": values.relu,
    "Reshape": moves.reshape,
    "Slice": moves.slice_,
    "Softmax": values.softmax,
    "Squeeze": moves.squeeze,
    "Sub": values.arithmetic("sub"),
    "Sum": values.arithmetic("add"),
    "Transpose": moves.transpose,
    "Unsqueeze": moves.unsqueeze,
}
