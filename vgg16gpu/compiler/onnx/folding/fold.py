"""Constant folding: the little numpy that ONNX files use to compute the operands of other nodes, shapes above all.

`x.view(x.size(0), -1)` is exported as Shape, Gather, Unsqueeze, Concat and Reshape. The dimensions of x that are open
are carried through such nodes as marks: numbers that no file may contain. Arithmetic on a mark is refused unless it
leaves it as it is. Weights are brought into form here as well; nothing that depends on run-time numbers ever is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np
import onnx.helper
from onnx import TensorProto

from vgg16gpu.compiler.onnx.file import Constant, element_type
from vgg16gpu.compiler.onnx.folding import numeric
from vgg16gpu.compiler.onnx.folding import qdq as onnx_integers
from vgg16gpu.compiler.onnx.folding.budget import FoldError, FoldingBudget
from vgg16gpu.compiler.onnx.folding.qdq import Attributes

OpenShape: TypeAlias = tuple[int | None, ...]  # None: known only when a run size is chosen

OPEN_BATCH: Final = -(1 << 62)  # the model's open batch; the first dimension of every run-time value
OPEN_SIZE: Final = OPEN_BATCH - 1  # any other open dimension

_CASTS: Final = frozenset(
    getattr(TensorProto, name)
    for name in ("FLOAT", "DOUBLE", "BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")
)

Fold: TypeAlias = Callable[[Attributes, Sequence[Constant | None], FoldingBudget], Constant]


def has_marks(array: Constant) -> bool:
    """Return whether a constant stands for open dimensions."""
    return array.dtype == np.int64 and bool(_marks(array).any())


def _marks(array: Constant) -> Constant:
    return np.asarray((array == OPEN_BATCH) | (array == OPEN_SIZE))


def shape_of(attributes: Attributes, shape: OpenShape) -> Constant:
    """Return a run-time value's dimensions (Shape) as int64, marks for the open ones."""
    marked = [dim if dim is not None else OPEN_BATCH if index == 0 else OPEN_SIZE for index, dim in enumerate(shape)]
    return np.array(marked[attributes.get("start", 0) : attributes.get("end", len(shape))], np.int64)


def fold(op_type: str, attributes: Attributes, operands: Sequence[Constant | None], memory: FoldingBudget) -> Constant:
    """Compute an operator of `FOLDS` on constants. Raises FoldError."""
    try:
        with np.errstate(all="ignore"):  # numbers that are not finite show in the scores, as in any other engine
            return np.asarray(FOLDS[op_type](attributes, operands, memory))
    except FoldError:
        raise
    except (ValueError, TypeError, IndexError, KeyError, AttributeError, OverflowError, MemoryError) as error:
        raise FoldError(f"its constant operands do not fit ({error})") from error


def _present(operands: Sequence[Constant | None]) -> list[Constant]:
    return [operand for operand in operands if operand is not None]


def _concat(attributes: Attributes, operands: Sequence[Constant | None], memory: FoldingBudget) -> Constant:
    arrays = _present(operands)
    memory.take((sum(array.size for array in arrays),), arrays[0].dtype)
    return np.concatenate(arrays, axis=attributes["axis"])


def _gather(attributes: Attributes, operands: Sequence[Constant | None], memory: FoldingBudget) -> Constant:
    data, indices = _present(operands)
    axis = attributes.get("axis", 0)
    memory.take((data.size // max(data.shape[axis], 1), indices.size), data.dtype)
    return np.asarray(np.take(data, indices, axis=axis))


def _identity(attributes: Attributes, operands: Sequence[Constant | None], memory: FoldingBudget) -> Constant:
    del attributes, memory
    return _present(operands)[0]


def _reshape(attributes: Attributes, operands: Sequence[Constant | None], memory: FoldingBudget) -> Constant:
    data, target = _present(operands)
    copied = [] if attributes.get("allowzero", 0) else [index for index, dim in enumerate(target) if dim == 0]
    shape = [data.shape[index] if index in copied else int(dim) for index, dim in enumerate(target)]
    return _reshaped(data, shape, memory)


def _reshaped(data: Constant, shape: Sequence[int], memory: FoldingBudget) -> Constant:
    if not data.flags.c_contiguous:
        memory.take(data.shape, data.dtype)
    return np.reshape(data, shape)


def _flatten(attributes: Attributes, operands: Sequence[Constant | None], memory: FoldingBudget) -> Constant:
    (data,) = _present(operands)
    axis = attributes.get("axis", 1)
    if not -data.ndim <= axis <= data.ndim:
        raise FoldError(f"axis is {axis} for {data.ndim} dimensions")
    axis += data.ndim if axis < 0 else 0
    return _reshaped(data, [math.prod(data.shape[:axis]), math.prod(data.shape[axis:])], memory)


def _transpose(attributes: Attributes, operands: Sequence[Constant | None], memory: FoldingBudget) -> Constant:
    del memory
    return np.transpose(_present(operands)[0], attributes.get("perm"))


def _squeeze(attributes: Attributes, operands: Sequence[Constant | None], memory: FoldingBudget) -> Constant:
    del memory
    return np.squeeze(_present(operands)[0], _axes(attributes, operands))


def _unsqueeze(attributes: Attributes, operands: Sequence[Constant | None], memory: FoldingBudget) -> Constant:
    del memory
    return np.expand_dims(_present(operands)[0], _axes(attributes, operands) or ())


def _axes(attributes: Attributes, operands: Sequence[Constant | None]) -> tuple[int, ...] | None:
    """Return axes: an attribute before opset 13, an operand since. None for all."""
    axes = operands[1] if len(operands) > 1 else attributes.get("axes")
    return None if axes is None else tuple(int(axis) for axis in axes)


def _slice(attributes: Attributes, operands: Sequence[Constant | None], memory: FoldingBudget) -> Constant:
    del memory
    data, *lists = operands
    if data is None:
        raise FoldError("it has nothing to slice")
    if "starts" in attributes:  # before opset 10
        starts, ends, axes, steps = attributes["starts"], attributes["ends"], attributes.get("axes"), None
    else:
        starts, ends, axes, steps = ([*lists, None, None][index] for index in range(4))
    axes = np.arange(len(starts)) if axes is None else axes
    steps = np.ones(len(starts), np.int64) if steps is None else steps
    parts = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        parts[int(axis)] = slice(int(start), int(end), int(step))
    return data[tuple(parts)]


def _cast(attributes: Attributes, operands: Sequence[Constant | None], memory: FoldingBudget) -> Constant:
    """Cast numbers to another type; float16 becomes rounded float32, and marks of open dimensions stay."""
    (data,) = _present(operands)
    to = attributes["to"]
    if to == TensorProto.FLOAT16:
        memory.take(data.shape, np.dtype(np.float64))
        return data.astype(np.float16).astype(np.float32)
    if to not in _CASTS:
        raise FoldError(f"it casts to {element_type(to)}")
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(to))
    if has_marks(data):
        if dtype.kind not in "iu" or dtype.itemsize < 4:
            raise FoldError(f"it casts an open dimension to {dtype}")
        return data
    memory.take(data.shape, dtype)
    return data.astype(dtype)


def _constant_of_shape(attributes: Attributes, operands: Sequence[Constant | None], memory: FoldingBudget) -> Constant:
    (target,) = _present(operands)
    if has_marks(target):
        raise FoldError("its shape depends on a dimension that is open")
    shape = [int(dim) for dim in target]
    value = np.asarray(attributes.get("value", np.zeros(1, np.float32)))
    if min(shape, default=0) < 0 or value.size != 1:
        raise FoldError(f"a constant of shape {tuple(shape)} with {value.size} values is not possible")
    (memory.repeat if value.dtype == np.float32 else memory.take)(shape, value.dtype)
    return np.broadcast_to(value.reshape(()), shape)  # no copy: it costs nothing until somebody needs one


def _arithmetic(function: Callable[[Constant, Constant], Constant], neutral: int, *, commutes: bool) -> Fold:
    """Return an operator of two operands; a mark passes through it beside the neutral number alone."""

    def compute(attributes: Attributes, operands: Sequence[Constant | None], memory: FoldingBudget) -> Constant:
        del attributes
        first, second = _present(operands)
        if first.dtype != second.dtype:
            raise FoldError(f"its operands have element types {first.dtype} and {second.dtype}")
        shape = np.broadcast_shapes(first.shape, second.shape)
        memory.take(shape, first.dtype)
        if first.dtype != np.int64:
            return np.asarray(function(first, second))
        left, right = np.broadcast_to(first, shape), np.broadcast_to(second, shape)
        kept = _marks(left) & (right == neutral)
        taken = _marks(right) & (left == neutral) if commutes else np.zeros(shape, np.bool_)
        if ((_marks(left) & ~kept) | (_marks(right) & ~taken)).any():
            raise FoldError("it computes with a dimension that is open; export with fixed sizes")
        plain = np.asarray(function(left, right))
        if has_marks(np.where(kept | taken, 0, plain).astype(plain.dtype)):
            raise FoldError("its result is out of range")
        return np.where(kept, left, np.where(taken, right, plain)) if (kept | taken).any() else plain

    return compute


def _divide(left: Constant, right: Constant) -> Constant:
    """Divide; integers towards zero. Raises FoldError for an integer division by 0."""
    if left.dtype.kind not in "iu":
        return np.asarray(left / right)
    if not right.all():
        raise FoldError("it divides by zero")
    quotient = np.abs(left) // np.abs(right)
    return np.asarray(np.where((left < 0) != (right < 0), -quotient, quotient).astype(left.dtype))


FOLDS: Final[Mapping[str, Fold]] = {
    "Abs": numeric.of_one(np.abs),
    "Add": _arithmetic(np.add, 0, commutes=True),
    "Cast": _cast,
    "Ceil": numeric.of_one(np.ceil),
    "Clip": numeric.clip,
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "DequantizeLinear": onnx_integers.dequantise,
    "Div": _arithmetic(_divide, 1, commutes=False),
    "Exp": numeric.of_one(np.exp),
    "Flatten": _flatten,
    "Floor": numeric.of_one(np.floor),
    "Gather": _gather,
    "Identity": _identity,
    "Log": numeric.of_one(np.log),
    "Max": numeric.of_several(np.maximum),
    "Min": numeric.of_several(np.minimum),
    "Mul": _arithmetic(np.multiply, 1, commutes=True),
    "Neg": numeric.of_one(np.negative),
    "Pow": numeric.of_several(np.power),
    "QuantizeLinear": onnx_integers.quantise,
    "Reciprocal": numeric.of_one(np.reciprocal),
    "ReduceL1": numeric.reduction(numeric.norm_1),
    "ReduceL2": numeric.reduction(numeric.norm_2),
    "ReduceMax": numeric.reduction(np.max),
    "ReduceMean": numeric.reduction(np.mean),
    "ReduceMin": numeric.reduction(np.min),
    "ReduceSum": numeric.reduction(np.sum),
    "Relu": numeric.of_one(lambda data: np.maximum(data, 0)),
    "Reshape": _reshape,
    "Round": numeric.of_one(np.rint),
    "Sign": numeric.of_one(np.sign),
    "Slice": _slice,
    "Sqrt": numeric.of_one(np.sqrt),
    "Squeeze": _squeeze,
    "Sub": _arithmetic(np.subtract, 0, commutes=False),
    "Sum": numeric.of_several(np.add),
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
