"""Functions of single numbers, and sums of them, that files compute from constants: limits and norms of weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vgg16gpu.compiler.onnx.file import Constant
from vgg16gpu.compiler.onnx.folding.budget import FoldError, FoldingBudget
from vgg16gpu.compiler.onnx.folding.qdq import Attributes

Folding = Callable[[Attributes, Sequence[Constant | None], FoldingBudget], Constant]


def clip(attributes: Attributes, operands: Sequence[Constant | None], memory: FoldingBudget) -> Constant:
    """Clip, of whole numbers too: attributes before opset 11, operands since; what is left out bounds nothing."""
    data, low, high = (*operands, None, None)[:3]
    if data is None:
        raise FoldError("it has nothing to clip")
    low, high = attributes.get("min", low), attributes.get("max", high)
    memory.take(data.shape, data.dtype)
    result = data.copy()
    for limit, function in ((low, np.maximum), (high, np.minimum)):
        if limit is not None:
            bound = np.asarray(limit, data.dtype if isinstance(limit, float) else None)
            if bound.size != 1 or bound.dtype != data.dtype:
                raise FoldError(f"its bound is {bound.dtype} of shape {bound.shape} for {data.dtype}")
            function(result, bound.reshape(()), out=result)
    return result


def of_one(function: Callable[[Constant], Any]) -> Folding:
    """Return the folding of a function of each number."""

    def compute(attributes: Attributes, operands: Sequence[Constant | None], memory: FoldingBudget) -> Constant:
        del attributes
        (data,) = _floats(operands)
        memory.take(data.shape, data.dtype)
        return np.asarray(function(data), data.dtype)

    return compute


def of_several(function: Callable[[Constant, Constant], Any]) -> Folding:
    """Return the folding of a function of two numbers over any number of operands in turn, broadcast to each other."""

    def compute(attributes: Attributes, operands: Sequence[Constant | None], memory: FoldingBudget) -> Constant:
        del attributes
        result, *others = _floats(operands)
        for other in others:
            memory.take(np.broadcast_shapes(result.shape, other.shape), result.dtype)
            result = np.asarray(function(result, other), result.dtype)
        return result

    return compute


def reduction(function: Callable[..., Any]) -> Folding:
    """Return the folding of a sum, mean, norm or extreme along axes: an attribute or the second operand; or all."""

    def compute(attributes: Attributes, operands: Sequence[Constant | None], memory: FoldingBudget) -> Constant:
        data, axes = (*operands, None)[:2]
        (data,) = _floats([data])
        found = attributes.get("axes") if axes is None else axes.tolist()
        if not found and attributes.get("noop_with_empty_axes", 0):
            return data
        memory.take(data.shape, data.dtype)  # squares, perhaps
        axis = tuple(int(each) for each in found) if found else None
        return np.asarray(function(data, axis=axis, keepdims=bool(attributes.get("keepdims", 1))), data.dtype)

    return compute


def norm_1(data: Constant, **options: Any) -> Any:
    """Return the sum of magnitudes."""
    return np.abs(data).sum(**options)


def norm_2(data: Constant, **options: Any) -> Any:
    """Return the root of the sum of squares."""
    return np.sqrt(np.square(data).sum(**options))


def _floats(operands: Sequence[Constant | None]) -> list[Constant]:
    """Return the operands. Raises FoldError if one is not float: integers may stand for open dimensions."""
    found = [operand for operand in operands if operand is not None]
    if not found or any(operand.dtype.kind != "f" for operand in found):
        raise FoldError(f"it computes with {', '.join(str(operand.dtype) for operand in found) or 'nothing'}")
    return found
