"""onnxruntime as the judge of int8: a graph with the same scales, in ONNX's own quantised form, on the CPU.

The form is what onnxruntime's static quantisation writes (QDQ): QuantizeLinear and DequantizeLinear around all that is
held as integers, int8 weights with a step per output channel, int32 biases. onnxruntime fuses most of it into operators
on integers (not a Conv that reads signed and stores unsigned bytes: the first one, which it computes in float32). It
rounds biases, and takes x / step where the kernels take x * (1 / step), so a byte differs by one here and there. In a
deep net such bytes multiply until the two answers differ as much from each other as from float32's; the error of both,
over many images, is what compares.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from vgg16gpu.checks.onnxruntime_session import open_session
from vgg16gpu.compiler.graph.graph import Graph, value_ranks
from vgg16gpu.compiler.graph.ops import (
    Array,
    BatchNorm,
    Clip,
    Conv,
    Flatten,
    Gemm,
    GlobalPool,
    Identity,
    Op,
    Pool,
    Relu,
    Softmax,
    Transpose,
)
from vgg16gpu.compiler.graph.window import MAX_POOL_2X2, Window
from vgg16gpu.compiler.quantization.scheme import QuantisedOp, Scale, Scales, quantise, stored_scales
from vgg16gpu.errors import ModelError

_OPSET: Final = 17
_IR_VERSION: Final = 10


class QuantisedOracle:
    """A graph with these scales in onnxruntime, CPU, with its default optimisations.

    Raises Error when onnxruntime is missing, ModelError when it refuses the model or integers cannot hold the weights.
    """

    def __init__(self, graph: Graph, scales: Scales) -> None:
        try:
            self._session = open_session(qdq_model(graph, scales).SerializeToString())
        except ModelError as error:
            raise ModelError(f"the quantised form of the model: {error}") from error
        self._input = graph.input.name

    def scores(self, x: Array) -> Array:
        """Compute the first output for (N, ...) float32 inputs, one by one."""
        return np.concatenate([self.values(x[i : i + 1])[0] for i in range(len(x))])

    def values(self, x: Array) -> tuple[Array, ...]:
        """Compute all outputs of the graph, in order, for one (1, ...) float32 input."""
        return tuple(self._session.run(None, {self._input: x}))


def qdq_model(graph: Graph, scales: Scales) -> onnx.ModelProto:
    """Return the graph in ONNX's quantised form, for any batch size; outputs keep their names.

    Raises ModelError for weights that integers cannot hold, and for ops that a VGG does not have.
    """
    writer = _Writer(graph, scales)
    for op in graph.ops:
        writer.write(op)
    shape = ["n", *graph.input.shape[1:]]
    inputs = [helper.make_tensor_value_info(graph.input.name, TensorProto.FLOAT, shape)]
    ranks = value_ranks(graph)
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"] + [None] * (ranks[name] - 1))
        for name in graph.outputs
    ]
    proto = helper.make_graph(writer.nodes, "quantised", inputs, outputs, writer.constants)
    return helper.make_model(proto, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)


class _Writer:
    """Nodes and constants of a quantised graph."""

    def __init__(self, graph: Graph, scales: Scales) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._integers = quantise(graph, scales)
        self._stored = stored_scales(graph, scales)
        self._rounded: dict[str, str] = {}  # a value -> the same after a round trip through its integers

    def write(self, op: Op) -> None:
        """Append the nodes of one op."""
        if isinstance(op, Conv | Gemm):
            self._sum_of_products(op, self._integers[op.y])
            return
        scale = self._stored[op.x]
        x = self._round_trip(op.x, scale) if scale else op.x
        match op:
            case Pool():
                self._pool(x, op.y, op)
            case BatchNorm():
                arrays = (op.scale, op.shift, op.mean, op.variance)
                names = [self._constant(f"{op.y}/{i}", array) for i, array in enumerate(arrays)]
                self._node("BatchNormalization", [x, *names], op.y, epsilon=op.epsilon)
            case Relu() | Flatten() | Softmax():
                self._node(type(op).__name__, [x], op.y)
            case Clip() if not op.others:
                limits = [self._constant(f"{op.y}/{i}", np.float32(limit)) for i, limit in enumerate(op.range)]
                self._node("Clip", [x, *limits], op.y)
            case Transpose():
                self._node("Transpose", [x], op.y, perm=op.permutation)
            case GlobalPool():
                self._node("GlobalMaxPool" if op.kind == "max" else "GlobalAveragePool", [x], op.y)
            case Identity():
                self._node("Identity", [x], op.y)
            case _:
                raise ModelError(
                    f"{type(op).__name__} '{op.y}': there is no quantised form of this operator here to compare int8 "
                    "with; check the model in another precision"
                )

    def _sum_of_products(self, op: Conv | Gemm, integers: QuantisedOp) -> None:
        """Write Conv or Gemm on the real numbers of its integers, ReLU and pooling."""
        x = self._round_trip(op.x, integers.x)
        if isinstance(op, Gemm) and op.flattens:
            x = self._round_trip(self._node("Flatten", [x], f"{op.y}/flat"), integers.x)
        operands = [x, self._dequantised(f"{op.y}/weight", integers.weight, integers.weight_steps)]
        if op.bias is not None:
            operands.append(self._bias(f"{op.y}/bias", op.bias, integers.dequant))
        pools = isinstance(op, Conv) and op.pool
        product = op.y if not op.relu and not pools else f"{op.y}/product"
        if isinstance(op, Conv):
            self._node("Conv", operands, product, **_window(op.window))
        else:
            self._node("Gemm", operands, product, transB=1)
        if op.relu:
            product = self._node("Relu", [product], f"{op.y}/relu" if pools else op.y)
        if pools:
            product = self._round_trip(product, integers.y) if integers.y else product
            self._node("MaxPool", [product], op.y, **_window(MAX_POOL_2X2))

    def _pool(self, x: str, y: str, op: Pool) -> None:
        if op.kind == "max":
            self._node("MaxPool", [x], y, **_window(op.window))
        else:
            self._node("AveragePool", [x], y, **_window(op.window), count_include_pad=int(op.count_include_pad))

    def _round_trip(self, x: str, scale: Scale) -> str:
        """Write the value rounded to its integers, in float32; return its name."""
        if x not in self._rounded:
            zero = np.int8(0) if scale.signed else np.uint8(0)
            operands = [self._constant(f"{x}/step", np.float32(scale.step)), self._constant(f"{x}/zero", zero)]
            integers = self._node("QuantizeLinear", [x, *operands], f"{x}/integers")
            self._rounded[x] = self._node("DequantizeLinear", [integers, *operands], f"{x}/rounded")
        return self._rounded[x]

    def _bias(self, name: str, bias: Array, steps: Array) -> str:
        """Write the bias in units of the integer sums, as QLinearConv takes it; float32 where int32 is too small."""
        units = np.rint(bias / steps.astype(np.float64))
        if np.abs(units).max() >= 2**31:
            return self._constant(name, bias)
        return self._dequantised(name, units.astype(np.int32), steps)

    def _dequantised(self, name: str, integers: Any, steps: Array) -> str:
        """Write integers times a step for each of the first axis; return the name."""
        zeros = self._constant(f"{name}/zeros", np.zeros(len(steps), integers.dtype))
        operands = [self._constant(f"{name}/integers", integers), self._constant(f"{name}/steps", steps), zeros]
        return self._node("DequantizeLinear", operands, name, axis=0)

    def _constant(self, name: str, value: Any) -> str:
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value).reshape(np.shape(value)), name))
        return name

    def _node(self, op_type: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op_type, inputs, [output], name=output, **attributes))
        return output


def _window(window: Window) -> dict[str, Any]:
    return {"kernel_shape": window.kernel, "strides": window.strides, "pads": list(window.pads)}
