"""QuantizeLinear and DequantizeLinear of constants: weights and biases that a file holds as integers.

A real number is (q - zero) * scale, with one scale and zero point, or one for each element of an axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from onnx import TensorProto

from vgg16gpu.compiler.onnx.file import Constant, element_type
from vgg16gpu.compiler.onnx.folding.budget import FoldError, FoldingBudget

Attributes: TypeAlias = Mapping[str, Any]

BYTES: Final = (np.dtype(np.uint8), np.dtype(np.int8))  # what values are rounded to
_OUTPUT_TYPES: Final[Mapping[int, np.dtype[Any]]] = {TensorProto.UINT8: BYTES[0], TensorProto.INT8: BYTES[1]}
_FLOATS: Final = (TensorProto.UNDEFINED, TensorProto.FLOAT, TensorProto.FLOAT16)
_SMALLEST: Final = np.finfo(np.float32).tiny


def quantise(attributes: Attributes, operands: Sequence[Constant | None], memory: FoldingBudget) -> Constant:
    """Compute QuantizeLinear of a float32 constant. Raises FoldError."""
    data, scale, zero = _three(operands)
    if data is None or scale is None or data.dtype != np.float32 or scale.dtype != np.float32:
        raise FoldError("it rounds something else than float32")
    zero = zero_point(attributes, zero)
    check_attributes(attributes)
    scale, zero = (_spread(parameter, data, attributes.get("axis", 1)) for parameter in (scale, zero))
    memory.take(data.shape, data.dtype)
    memory.take(data.shape, zero.dtype)
    limits = np.iinfo(zero.dtype)
    q = data / scale
    np.rint(q, out=q)
    q += zero
    return np.clip(q, limits.min, limits.max, out=q).astype(zero.dtype)


def dequantise(attributes: Attributes, operands: Sequence[Constant | None], memory: FoldingBudget) -> Constant:
    """Compute DequantizeLinear of integers, to float32. Raises FoldError."""
    check_attributes(attributes)
    data, scale, zero = _integers(attributes, operands)
    memory.take(data.shape, scale.dtype)
    real = np.subtract(data, zero, dtype=np.float32)  # exact: bytes, or int32 whose zero point is 0
    real *= scale
    return real


def weight_steps(attributes: Attributes, operands: Sequence[Constant | None]) -> Constant | None:
    """Return the scales of integer weights behind DequantizeLinear, with as many dimensions as the weights.

    None if a weight is outside -128 to 127, or a scale is not finite or too small.
    """
    data, scale, zero = _integers(attributes, operands)
    if data.ndim < 2 or data.dtype not in BYTES or not data.size:
        return None
    axes = tuple(dim for dim in range(data.ndim) if zero.ndim == 0 or zero.shape[dim] == 1)
    low, high = (extreme(data, axis=axes, keepdims=True).astype(np.int32) - zero for extreme in (np.min, np.max))
    usable = np.isfinite(scale).all() and (scale >= _SMALLEST).all()
    if not usable or low.min() < -128 or high.max() > 127:
        return None
    return scale.reshape(scale.shape or (1,) * data.ndim)


def zero_point(attributes: Attributes, zero: Constant | None) -> Constant:
    """Return the zero point of QuantizeLinear, whose type is that of the integers; uint8 0 if there is none."""
    wanted = attributes.get("output_dtype", TensorProto.UNDEFINED)
    if wanted != TensorProto.UNDEFINED and wanted not in _OUTPUT_TYPES:
        raise FoldError(f"it rounds to {element_type(wanted)}")
    if zero is None:
        return np.zeros((), _OUTPUT_TYPES.get(wanted, BYTES[0]))
    if zero.dtype not in BYTES or zero.dtype != _OUTPUT_TYPES.get(wanted, zero.dtype):
        raise FoldError(f"its zero point has element type {zero.dtype}")
    return zero


def check_attributes(attributes: Attributes) -> None:
    """Refuse scales of blocks, and arithmetic in other types than float32."""
    if attributes.get("block_size", 0):
        raise FoldError(f"its scales are for blocks of {attributes['block_size']} elements")
    if attributes.get("precision", TensorProto.UNDEFINED) not in _FLOATS:
        raise FoldError(f"it divides in {element_type(attributes['precision'])}")


def _integers(attributes: Attributes, operands: Sequence[Constant | None]) -> tuple[Constant, Constant, Constant]:
    """Return the operands of DequantizeLinear, scale and zero point so that they broadcast to the integers."""
    data, scale, zero = _three(operands)
    if attributes.get("output_dtype", TensorProto.UNDEFINED) not in _FLOATS:
        raise FoldError(f"its result is {element_type(attributes['output_dtype'])}")
    if data is None or scale is None or data.dtype not in (*BYTES, np.int32) or scale.dtype != np.float32:
        raise FoldError(f"it reads {'nothing' if data is None else data.dtype}, int8, uint8 or int32 are needed")
    zero = np.zeros((), data.dtype) if zero is None else zero
    if zero.dtype != data.dtype or (data.dtype == np.int32 and zero.any()):
        raise FoldError(f"its zero point is {zero.dtype} for {data.dtype}, or not 0 for int32")
    axis = attributes.get("axis", 1)
    return data, _spread(scale, data, axis), _spread(zero, data, axis)


def _three(operands: Sequence[Constant | None]) -> tuple[Constant | None, Constant | None, Constant | None]:
    data, scale, zero = (*operands, None)[:3]
    return data, scale, zero


def _spread(parameter: Constant, data: Constant, axis: int) -> Constant:
    """Reshape one number, or one for each element of an axis, so that it broadcasts to the data. Raises FoldError."""
    if parameter.size == 1:
        return parameter.reshape(())
    if not -data.ndim <= axis < data.ndim or parameter.shape != data.shape[axis : axis + 1 or None]:
        raise FoldError(f"scale or zero point of shape {parameter.shape} for axis {axis} of {data.shape}")
    shape = [1] * data.ndim
    shape[axis] = parameter.size
    return parameter.reshape(shape)
