"""Rules of quantised models: QuantizeLinear and DequantizeLinear of run-time values.

In the graph an integer value is the real number that it means, so rounding is an op, FakeQuantize, and DequantizeLinear
is none. Operators that compute with the integers themselves are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from vgg16gpu.compiler.graph.ops import FakeQuantize, Identity, Op
from vgg16gpu.compiler.onnx.file import Constant
from vgg16gpu.compiler.onnx.folding.budget import FoldError
from vgg16gpu.compiler.onnx.folding.qdq import BYTES, check_attributes, zero_point
from vgg16gpu.compiler.onnx.node import EXPORT_AGAIN, Integers, NodeView, Rule, UnknownShapeError, UnsupportedNodeError

QDQ_REMEDY: Final = "export the QuantizeLinear/DequantizeLinear (QDQ) form of the model, or the float32 model"
ON_INTEGERS: Final = frozenset(  # operators whose operands are integers
    ["ConvInteger", "DynamicQuantizeLinear", "MatMulInteger", "QLinearConv", "QLinearMatMul"]
)
CARRIERS: Final = frozenset(  # operators that may have integers between QuantizeLinear and DequantizeLinear
    ["Clip", "Flatten", "Identity", "MaxPool", "Reshape", "Squeeze", "Transpose", "Unsqueeze"]
)
_PER_TENSOR: Final = "quantise run-time values to int8 or uint8, per tensor, or export the float32 model"


def quantize_linear(node: NodeView) -> Op:
    """Import QuantizeLinear of a run-time value: rounding, saturation, and back to real numbers."""
    zero = node.constant(2)
    kind = _checked(node, zero)
    integers = Integers(_scale(node), _zero(zero), kind)
    node.result.integers = integers
    limits = np.iinfo(kind)
    low, high = float(limits.min - integers.zero), float(limits.max - integers.zero)
    return FakeQuantize(node.x, node.y, (node.y,), scale=integers.scale, low=low, high=high)


def dequantize_linear(node: NodeView) -> Op:
    """Import DequantizeLinear of a QuantizeLinear with the same scale and zero point. Raises UnsupportedNodeError."""
    if node.is_unknown(0):
        raise UnknownShapeError
    found = node.first.integers
    if found is None:
        raise UnsupportedNodeError(f"its operand '{node.x}' is float32", EXPORT_AGAIN)
    zero = node.constant(2)
    _check_attributes(node)
    if (_scale(node), _zero(zero)) != found[:2] or (zero is not None and zero.dtype != found.dtype):
        raise UnsupportedNodeError(
            f"its scale or zero point is not that with which '{node.x}' is quantised", QDQ_REMEDY
        )
    return Identity(node.x, node.y, (node.y,))


def clip_integers(node: NodeView, found: Integers) -> Op:
    """Clip of what QuantizeLinear gives, which makes its range narrower: fewer than 8 bits, or -127 for -128.

    Numbers that are rounded already stay what they are, so it is another rounding, with these limits.
    """
    limits = np.iinfo(found.dtype)
    low, high = _limit(node, 1, found, limits.min), _limit(node, 2, found, limits.max)
    return FakeQuantize(
        node.x, node.y, (node.y,), scale=found.scale, low=float(low - found.zero), high=float(high - found.zero)
    )


def _limit(node: NodeView, index: int, found: Integers, missing: int) -> int:
    array = node.constant(index)
    if array is None:
        return missing
    if array.size != 1 or array.dtype != found.dtype:
        raise UnsupportedNodeError(
            f"its bound is {array.dtype} of shape {array.shape}, one {found.dtype} is needed", QDQ_REMEDY
        )
    return int(array.reshape(-1)[0])


def _checked(node: NodeView, zero: Constant | None) -> np.dtype[np.int8]:
    """Return the type of the integers. Raises UnsupportedNodeError."""
    _check_attributes(node)
    try:
        return zero_point(node.attributes, zero).dtype
    except FoldError as error:
        raise UnsupportedNodeError(str(error), _PER_TENSOR) from error


def _check_attributes(node: NodeView) -> None:
    try:
        check_attributes(node.attributes)
    except FoldError as error:
        raise UnsupportedNodeError(str(error), _PER_TENSOR) from error


def _scale(node: NodeView) -> float:
    scale = node.weight(1, "scale")
    if scale.size != 1:
        raise UnsupportedNodeError(f"its scale has shape {scale.shape}, one for a part each", _PER_TENSOR)
    number = float(scale.reshape(-1)[0])
    if not (np.isfinite(number) and number > 0):
        raise UnsupportedNodeError(f"its scale is {number}", EXPORT_AGAIN)
    return number


def _zero(zero: Constant | None) -> int:
    if zero is None:
        return 0
    if zero.size != 1 or zero.dtype not in BYTES:
        raise UnsupportedNodeError(f"its zero point is {zero.dtype} of shape {zero.shape}", _PER_TENSOR)
    return int(zero.reshape(-1)[0])


RULES: Final[Mapping[str, Rule]] = {
    "DequantizeLinear": dequantize_linear,
    "QuantizeLinear": quantize_linear,
}
