"""Files of integers: QuantizeLinear and DequantizeLinear, or QLinearConv and QGemm."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, helper, numpy_helper

from tests.support.onnx_models import random_input
from tests.support.replicas.base import FLOAT, Array, answers
from tests.support.replicas.zoo_files import mxnet


def ranges(proto: ModelProto) -> dict[str, tuple[float, float]]:
    """Least and largest of every run-time value on some inputs."""
    proto = copy.deepcopy(proto)
    names = [node.output[0] for node in proto.graph.node]
    del proto.graph.output[:]
    proto.graph.output.extend(helper.make_tensor_value_info(name, FLOAT, None) for name in names)
    data = next(v for v in proto.graph.input if v.name not in {t.name for t in proto.graph.initializer})
    x = random_input([dim.dim_value or 1 for dim in data.type.tensor_type.shape.dim], 5)
    values = {data.name: x, **dict(zip(names, answers(proto, x), strict=True))}
    return {name: (float(min(v.min(), 0)), float(max(v.max(), 0))) for name, v in values.items()}


@dataclass
class Quantiser:
    """Turns a plain VGG into one of integers. Activations are uint8, weights int8; `steps` of every quantised value."""

    proto: ModelProto
    per_channel: bool = False  # weights; biases in int32 then
    steps: dict[str, tuple[float, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.graph = self.proto.graph
        self.ranges = ranges(self.proto)
        self.initial = {tensor.name: numpy_helper.to_array(tensor) for tensor in self.graph.initializer}
        self.made: list[NodeProto] = []

    def constant(self, name: str, values: npt.ArrayLike) -> str:
        """An initializer, once."""
        if name not in {tensor.name for tensor in self.graph.initializer}:
            self.graph.initializer.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def step(self, name: str) -> tuple[str, str]:
        """Scale and zero point of an activation, as initializers."""
        if name not in self.steps:
            low, high = self.ranges[name]
            scale = np.float32((high - low) / 255)
            self.steps[name] = float(scale), round(-low / float(scale))
        scale, zero = self.steps[name]
        scale_name = self.constant(f"{name}_scale", np.float32(scale))
        return scale_name, self.constant(f"{name}_zero_point", np.uint8(zero))

    def weight(self, name: str) -> tuple[str, str, str]:
        """Integers, scale and zero point of a weight, one step or one for each output."""
        values = self.initial[name]
        axes = tuple(range(1, values.ndim)) if self.per_channel else None
        scale = (np.abs(values).max(axis=axes) / 127).astype(np.float32)
        wide = scale.reshape(-1, *[1] * (values.ndim - 1)) if self.per_channel else scale
        quantised = np.clip(np.rint(values / wide), -127, 127).astype(np.int8)
        names = f"{name}_quantized", f"{name}_scale", f"{name}_zero_point"
        for part, value in zip(names, (quantised, scale, np.zeros(scale.shape, np.int8)), strict=True):
            self.constant(part, value)
        return names

    def node(self, op: str, inputs: Sequence[str], output: str, name: str, **attributes: Any) -> str:
        """A further node."""
        self.made.append(helper.make_node(op, inputs, [output], name, **attributes))
        return output

    def quantise(self, x: str) -> str:
        """QuantizeLinear of an activation."""
        return self.node("QuantizeLinear", [x, *self.step(x)], f"{x}_QuantizeLinear_Output", f"{x}_QuantizeLinear")

    def dequantise(self, x: str, scale: str, zero: str, name: str, **attributes: Any) -> str:
        """DequantizeLinear."""
        output, node = f"{name}_DequantizeLinear_Output", f"{name}_DequantizeLinear"
        return self.node("DequantizeLinear", [x, scale, zero], output, node, **attributes)

    def finish(self) -> ModelProto:
        """The new nodes, and only those initializers that they read."""
        del self.graph.node[:]
        self.graph.node.extend(self.made)
        read = {name for node in self.made for name in node.input}
        kept = [tensor for tensor in self.graph.initializer if tensor.name in read]
        del self.graph.initializer[:]
        self.graph.initializer.extend(kept)
        inputs = [value for value in self.graph.input if value.name not in self.initial]
        del self.graph.input[:]
        self.graph.input.extend(inputs)
        self.proto.ir_version = 8
        return self.proto


def qdq(opset: int = 12, per_channel: bool = False) -> ModelProto:
    """The zoo's vgg16-12-qdq: QuantizeLinear and DequantizeLinear before each Conv, pool and Gemm, and of the weights.

    Per channel, as onnxruntime's own tools write it, biases are int32 with the product of both scales.
    """
    quantiser = Quantiser(mxnet(opset), per_channel)
    carried: dict[str, str] = {}
    for node in list(quantiser.graph.node):
        inputs = list(node.input)
        if node.op_type in ("Conv", "Gemm", "MaxPool", "Flatten"):
            x = inputs[0]
            if x not in carried:
                carried[x] = quantiser.dequantise(quantiser.quantise(x), *quantiser.step(x), x)
            inputs[0] = carried[x]
        if node.op_type in ("Conv", "Gemm"):
            inputs[1:] = qdq_weights(quantiser, node)
        copied = copy.deepcopy(node)
        del copied.input[:]
        copied.input.extend(inputs)
        quantiser.made.append(copied)
    return quantiser.finish()


def qdq_weights(quantiser: Quantiser, node: NodeProto) -> list[str]:
    """The operands behind the first one of a Conv or Gemm."""
    x, weight, bias = node.input
    integers, scale, zero = quantiser.weight(weight)
    axis = {"axis": 0} if quantiser.per_channel else {}
    operands = [quantiser.dequantise(integers, scale, zero, weight, **axis)]
    if not quantiser.per_channel:
        return [*operands, bias]
    scales = next(numpy_helper.to_array(t) for t in quantiser.graph.initializer if t.name == scale)
    product = (scales * np.float32(quantiser.steps[x][0])).astype(np.float32)
    values = np.rint(quantiser.initial[bias] / product).astype(np.int32)
    names = [
        quantiser.constant(f"{bias}_quantized", values),
        quantiser.constant(f"{bias}_quantized_scale", product),
        quantiser.constant(f"{bias}_quantized_zero_point", np.zeros(product.shape, np.int32)),
    ]
    return [*operands, quantiser.dequantise(*names, f"{bias}_quantized", axis=0)]


def dequantised(proto: ModelProto) -> ModelProto:
    """What a QuantizeLinear/DequantizeLinear model says without rounding its activations."""
    proto = copy.deepcopy(proto)
    initial = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    for node in proto.graph.node:
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            continue
        if node.input[0] in initial:
            values, scale, zero = (initial[name] for name in node.input)
            shape = (-1, *[1] * (values.ndim - 1)) if scale.ndim else ()
            exact = (values.astype(np.int32) - zero.astype(np.int32).reshape(shape)) * scale.reshape(shape)
            proto.graph.initializer.append(numpy_helper.from_array(exact.astype(np.float32), f"{node.name}_values"))
            node.input[0] = f"{node.name}_values"
        del node.input[1:], node.attribute[:]
        node.op_type = "Identity"
    return proto


def qlinear() -> ModelProto:
    """The zoo's vgg16-12-int8: QLinearConv, which includes the ReLU, and QGemm of onnxruntime's own domain."""
    proto = mxnet(12)
    quantiser = Quantiser(proto)
    nodes = list(proto.graph.node)
    after = {node.input[0]: node for node in nodes}
    x = quantiser.quantise("data")
    step = quantiser.step("data")
    for node in nodes:
        if node.op_type in ("MaxPool", "Flatten"):
            x = quantiser.node(
                node.op_type, [x], f"{node.output[0]}_quantized", f"{node.name}_quant", **attributes_of(node)
            )
        elif node.op_type in ("Conv", "Gemm"):
            follower = after.get(node.output[0])
            y = follower.output[0] if follower is not None and follower.op_type == "Relu" else node.output[0]
            integers, scale, zero = quantiser.weight(node.input[1])
            product = quantiser.steps[step_name(step)][0] * float(tensor_of(quantiser, scale))
            bias = np.rint(quantiser.initial[node.input[2]] / product).astype(np.int32)
            sums = quantiser.constant(f"{node.input[2]}_quantized", bias)
            out = quantiser.step(y)
            if node.op_type == "Conv":
                operands = [x, *step, integers, scale, zero, *out, sums]
                more = attributes_of(node)
                x = quantiser.node("QLinearConv", operands, f"{y}_quantized", f"{node.name}_quant", **more)
            else:
                operands = [x, *step, integers, scale, zero, sums, *out]
                more = {"alpha": 1.0, "transB": 1, "domain": "com.microsoft"}
                x = quantiser.node("QGemm", operands, f"{y}_quantized", f"{node.name}_quant", **more)
            step = out
    quantiser.node("DequantizeLinear", [x, *step], proto.graph.output[0].name, "output_DequantizeLinear")
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return quantiser.finish()


def step_name(step: tuple[str, str]) -> str:
    """The value that has this step."""
    return step[0].removesuffix("_scale")


def tensor_of(quantiser: Quantiser, name: str) -> Array:
    """An initializer's values."""
    return next(numpy_helper.to_array(tensor) for tensor in quantiser.graph.initializer if tensor.name == name)


def attributes_of(node: NodeProto) -> dict[str, Any]:
    """Its attributes by name."""
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
