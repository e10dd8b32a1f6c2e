"""Compute onnxruntime's quantised form of a model, from a file that it makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from vgg16gpu.checks.onnxruntime_session import open_session
from vgg16gpu.compiler.graph.ops import (
    Array,
    BatchNorm,
    Clip,
    Conv,
    Flatten,
    Gemm,
    GlobalPool,
    Graph,
    Identity,
    Op,
    Pool,
    Relu,
    Softmax,
    Transpose,
)
from vgg16gpu.compiler.graph.passes import value_ranks
from vgg16gpu.compiler.graph.window import MAX_POOL_2X2, Window
from vgg16gpu.compiler.quantization.scheme import QuantisedOp, Scale, Scales, quantise, stored_scales
from vgg16gpu.errors import ModelError

Numbers: TypeAlias = npt.NDArray[Any]
Read: TypeAlias = Callable[[TensorProto], Numbers]  # a tensor of the model, wherever its numbers lie
Edit: TypeAlias = Callable[[onnx.ModelProto, Read], None]  # changes a model in place

_CLIP_WITH_OPERANDS: Final = 11  # the opset from which limits of Clip are operands
_REMEDY: Final = "check it with --references"


def rounds_values(model: onnx.ModelProto) -> bool:
    """Return whether a model quantises what it computes, beside weights."""
    return bool(_quantised(model))


def without_rounding(model: onnx.ModelProto, read: Read) -> None:
    """Make each QuantizeLinear of a run-time value a Clip, and the DequantizeLinear behind it an Identity.

    Weights stay as the integers make them. Raises ModelError for scales that are no constants, or one for each channel,
    and for a DequantizeLinear with other numbers than the QuantizeLinear before it.
    """
    constants = _Constants(model, read)
    integers: dict[str, QuantisedRange] = {}
    for node in _quantised(model):
        if node.op_type == "QuantizeLinear":
            integers[node.output[0]] = found = constants.integers(node)
            _clip(model, node, found)
        elif node.op_type == "DequantizeLinear":
            if not integers[node.input[0]].means_same(constants.integers(node)):
                raise ModelError(
                    f"DequantizeLinear '{node.output[0]}' has another scale or zero point than the QuantizeLinear "
                    f"before it: the model without rounding is not known; {_REMEDY}"
                )
            _replace(node, "Identity", node.input[:1])
        else:  # an operator that integers pass through
            integers[node.output[0]] = found = integers[node.input[0]]
            if node.op_type == "Clip":
                _clip(model, node, constants.narrower(node, found))
    del model.graph.value_info[:]  # types of integers that are none now


def add_noise(model: onnx.ModelProto, read: Read) -> None:
    """Add noise of the size of rounding, uniform within half a step, to every run-time value that was rounded.

    Raises ModelError.
    """
    constants = _Constants(model, read)
    behind: dict[str, list[onnx.NodeProto]] = {}
    for number, node in enumerate(_quantised(model)):
        if node.op_type != "DequantizeLinear":
            continue
        half, name = float(constants.integers(node).scale) / 2, node.output[0]
        rounded, noise = f"{name}/rounded", f"{name}/noise"
        node.output[0] = rounded
        behind[rounded] = [
            helper.make_node("RandomUniformLike", [rounded], [noise], low=-half, high=half, seed=float(number)),
            helper.make_node("Add", [rounded, noise], [name]),
        ]
    nodes = [made for node in model.graph.node for made in (node, *behind.get(next(iter(node.output), ""), ()))]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


class QuantisedRange(NamedTuple):
    """What integers mean: (q - zero) * scale, q from `low` to `high`."""

    scale: Any  # of the numpy type of what is quantised
    zero: int
    low: int
    high: int

    def means_same(self, other: QuantisedRange) -> bool:
        """Return whether the same integers stand for the same numbers."""
        return bool(self.scale == other.scale) and self.zero == other.zero


class _Constants:
    """The constant operands of a model's nodes."""

    def __init__(self, model: onnx.ModelProto, read: Read) -> None:
        self._read = read
        self._tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        self._copies: dict[str, str] = {}
        for node in model.graph.node:
            if node.op_type == "Constant":
                told = {each.name: each.t for each in node.attribute}
                self._tensors |= {node.output[0]: told["value"]} if "value" in told else {}
            elif node.op_type == "Identity":
                self._copies[node.output[0]] = node.input[0]

    def integers(self, node: onnx.NodeProto) -> QuantisedRange:
        """Return what the integers of a QuantizeLinear or DequantizeLinear mean. Raises ModelError."""
        scale = self._number(node, node.input[1])
        if len(node.input) > 2 and node.input[2]:
            zero = self._number(node, node.input[2])
        else:
            told = {each.name: each.i for each in node.attribute}.get("output_dtype", 0)
            quantises = node.op_type == "QuantizeLinear" and told
            zero = np.zeros((), helper.tensor_dtype_to_np_dtype(told if quantises else TensorProto.UINT8))[()]
        limits = np.iinfo(zero.dtype)
        return QuantisedRange(scale, int(zero), int(limits.min), int(limits.max))

    def narrower(self, node: onnx.NodeProto, found: QuantisedRange) -> QuantisedRange:
        """Return the integers that a Clip of integers leaves. Raises ModelError."""
        given = [self._number(node, name) if name else None for name in (*node.input[1:], "", "")[:2]]
        low, high = (other if limit is None else int(limit) for limit, other in zip(given, found[2:], strict=True))
        return found._replace(low=low, high=high)

    def _number(self, node: onnx.NodeProto, name: str) -> Any:
        while name in self._copies:
            name = self._copies[name]
        if name not in self._tensors:
            raise ModelError(f"{node.op_type} '{node.output[0]}' reads '{name}', which is no constant; {_REMEDY}")
        array = self._read(self._tensors[name])
        if array.size != 1:
            raise ModelError(
                f"{node.op_type} '{node.output[0]}' has scales or zero points of shape {array.shape}, and one is known "
                f"for all channels; {_REMEDY}"
            )
        return array.reshape(-1)[0]


def _quantised(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """The nodes that make, pass on and read integers of run-time values, in order."""
    stored = {tensor.name for tensor in model.graph.initializer}
    run_time = {item.name for item in model.graph.input} - stored
    integers: set[str] = set()
    found = []
    for node in model.graph.node:
        if not run_time.isdisjoint(node.input):
            run_time.update(node.output)
            is_first = node.op_type == "QuantizeLinear"
            if is_first or not integers.isdisjoint(node.input[:1]):
                found.append(node)
                if node.op_type not in ("DequantizeLinear", "Shape"):
                    integers.update(node.output[:1])
    return found


def _clip(model: onnx.ModelProto, node: onnx.NodeProto, found: QuantisedRange) -> None:
    """Make a node the Clip to what the integers can mean."""
    kind = type(found.scale)
    limits = [kind(limit - found.zero) * found.scale for limit in (found.low, found.high)]
    opset = max(each.version for each in model.opset_import if each.domain in ("", "ai.onnx"))
    if opset < _CLIP_WITH_OPERANDS:
        _replace(node, "Clip", node.input[:1])
        node.attribute.extend(
            helper.make_attribute(name, float(limit)) for name, limit in zip(("min", "max"), limits, strict=True)
        )
        return
    names = [f"{node.output[0]}/{end}" for end in ("low", "high")]
    _replace(node, "Clip", [node.input[0], *names])
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(limit, kind), name) for limit, name in zip(limits, names, strict=True)
    )


def _replace(node: onnx.NodeProto, op_type: str, operands: Any) -> None:
    operands = list(operands)
    node.op_type = op_type
    del node.input[:], node.attribute[:]
    node.input.extend(operands)


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
        """The first output for (N, ...) float32 inputs, one by one."""
        return np.concatenate([self.values(x[i : i + 1])[0] for i in range(len(x))])

    def values(self, x: Array) -> tuple[Array, ...]:
        """All outputs of the graph, in order, for one (1, ...) float32 input."""
        return tuple(self._session.run(None, {self._input: x}))


def qdq_model(graph: Graph, scales: Scales) -> onnx.ModelProto:
    """The graph in ONNX's quantised form, for any batch size; outputs keep their names.

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
        """Conv or Gemm on what its integers stand for, ReLU and pooling."""
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
        """The value as its integers hold it, in float32."""
        if x not in self._rounded:
            zero = np.int8(0) if scale.signed else np.uint8(0)
            operands = [self._constant(f"{x}/step", np.float32(scale.step)), self._constant(f"{x}/zero", zero)]
            integers = self._node("QuantizeLinear", [x, *operands], f"{x}/integers")
            self._rounded[x] = self._node("DequantizeLinear", [integers, *operands], f"{x}/rounded")
        return self._rounded[x]

    def _bias(self, name: str, bias: Array, steps: Array) -> str:
        """The bias in units of the integer sums, as QLinearConv takes it; float32 where int32 is too small."""
        units = np.rint(bias / steps.astype(np.float64))
        if np.abs(units).max() >= 2**31:
            return self._constant(name, bias)
        return self._dequantised(name, units.astype(np.int32), steps)

    def _dequantised(self, name: str, integers: Any, steps: Array) -> str:
        """Integers times a step for each of the first axis."""
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
