"""Rules of operators that compute each element by itself, and of softmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, Literal

import numpy as np
from onnx import TensorProto

from vgg16gpu.compiler.graph.ops import Arithmetic, AxisSoftmax, Clip, Identity, LeakyRelu, Op, Relu, Softmax
from vgg16gpu.compiler.onnx.file import element_type
from vgg16gpu.compiler.onnx.node import FLOAT32_REMEDY, NodeView, Rule, UnsupportedNodeError
from vgg16gpu.compiler.onnx.rules.integers import clip_integers

MAX_OPERANDS = 5  # of one Arithmetic


def relu(node: NodeView) -> Op:
    """Import Relu; as a Clip from 0 unless x is a matrix or a feature map."""
    if node.rank in (None, 2, 4):
        return Relu(node.x, node.y, (node.y,))
    return Clip(node.x, node.y, (node.y,), low=0.0)


def leaky_relu(node: NodeView) -> Op:
    """Import LeakyRelu."""
    alpha = float(node.attributes.get("alpha", 0.01))
    return LeakyRelu(node.x, node.y, (node.y,), alpha=alpha)


def clip(node: NodeView) -> Op:
    """Clip: attributes before opset 11, operands since; a bound that is left out is infinite."""
    if not node.is_unknown(0) and node.first.integers:
        return clip_integers(node, node.first.integers)
    if node.opset < 11:
        low, high = (float(node.attributes.get(*item)) for item in (("min", -math.inf), ("max", math.inf)))
        return Clip(node.x, node.y, (node.y,), low=low, high=high)
    if all(node.operand(index) is None or node.is_constant(index) for index in (1, 2)):
        low, high = _bound(node, 1, -math.inf), _bound(node, 2, math.inf)
        return Clip(node.x, node.y, (node.y,), low=low, high=high)
    names = []
    for index, missing in ((1, -math.inf), (2, math.inf)):
        if node.operand(index) is None:
            names.append(node.scope.hold(node.scope.fresh(node.y), np.array(missing, np.float32)))
        elif not node.is_number(index):
            raise UnsupportedNodeError(
                f"its bound '{node.names[index]}' has shape {node.shape_of(index)}", "one number is needed"
            )
        else:
            names.append(node.value(index, "bound"))
    return Clip(node.x, node.y, (node.y,), tuple(names))


def _bound(node: NodeView, index: int, missing: float) -> float:
    if node.operand(index) is None:
        return missing
    array = node.weight(index, "bound")
    if array.size != 1:
        raise UnsupportedNodeError(f"its bound has shape {array.shape}", "one number is needed")
    return float(array.reshape(-1)[0])


def arithmetic(function: Literal["add", "sub", "mul", "div"]) -> Callable[[NodeView], Op | tuple[Op, ...]]:
    """Add, Sub, Mul, Div of two operands, and Sum of any number of them, all broadcast to each other."""

    def rule(node: NodeView) -> Op | tuple[Op, ...]:
        names = [node.value(index) for index in range(len(node.operands))]
        if node.is_constant(0) and function in ("add", "mul"):
            names.sort(key=lambda name: name in node.scope.held)  # what is computed comes first
        if len(names) == 1:
            return Identity(names[0], node.y, (node.y,))
        ops = []
        while len(names) > MAX_OPERANDS:
            y = node.scope.fresh(node.y)
            ops.append(Arithmetic(names[0], y, (y,), tuple(names[1:MAX_OPERANDS]), function))
            names = [y, *names[MAX_OPERANDS:]]
        return *ops, Arithmetic(names[0], node.y, (node.y,), tuple(names[1:]), function)

    return rule


def identity(node: NodeView) -> Op:
    """Import Identity."""
    return Identity(node.x, node.y, (node.y,))


def dropout(node: NodeView) -> Op:
    """Import Dropout at inference as x. The ratio means nothing then; the mask, from opset 12 on, is all ones."""
    training = node.constant(2)
    if training is not None and training.any():
        raise UnsupportedNodeError("training_mode is true", "export with model.eval()")
    for mask in node.used_outputs:
        if node.fixed is None or node.opset < 12:
            raise UnsupportedNodeError(
                f"its mask '{mask}' is used", "export with model.eval(), opset 12 or later, fixed sizes"
            )
        node.scope.memory.take(node.fixed, np.dtype(np.bool_))
        node.scope.values[mask].becomes_constant(np.ones(node.fixed, np.bool_))
    return identity(node)


def cast(node: NodeView) -> Op:
    """Cast between float32 and float16: values are float32 here whatever the model calls them."""
    to = node.attributes.get("to", TensorProto.UNDEFINED)
    if to not in (TensorProto.FLOAT, TensorProto.FLOAT16):
        raise UnsupportedNodeError(f"it casts to {element_type(to)}", FLOAT32_REMEDY)
    return identity(node)


def softmax(node: NodeView) -> Op:
    """Import Softmax."""
    return _softmax(node, log=False)


def log_softmax(node: NodeView) -> Op:
    """Import LogSoftmax."""
    return _softmax(node, log=True)


def _softmax(node: NodeView, *, log: bool) -> Op:
    """Import a softmax: before opset 13 over all dimensions from the axis (1) on, since over one (the last)."""
    rank = len(node.shape)
    axis = node.axis(1 if node.opset < 13 else -1, rank)
    last = rank - 1 if node.opset < 13 else axis
    if axis == 0 and node.shape[0] is None:
        raise UnsupportedNodeError("axis is 0", "an open batch cannot be mixed, use the last axis of (N, F), 1 or -1")
    if rank == 2 and axis == last == 1 and not log:
        return Softmax(node.x, node.y, (node.y,))
    return AxisSoftmax(node.x, node.y, (node.y,), axis, last, log)


RULES: Final[Mapping[str, Rule]] = {
    "Add": arithmetic("add"),
    "Cast": cast,
    "Clip": clip,
    "Div": arithmetic("div"),
    "Dropout": dropout,
    "Identity": identity,
    "LeakyRelu": leaky_relu,
    "LogSoftmax": log_softmax,
    "Mul": arithmetic("mul"),
    "Relu": relu,
    "Softmax": softmax,
    "Sub": arithmetic("sub"),
    "Sum": arithmetic("add"),
}
