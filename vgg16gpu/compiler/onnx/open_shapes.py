"""Shapes of values while a model leaves dimensions open.

An op is tried on numbers in place of the open dimensions, on two sets of them: what comes out the same is known, the
rest is open. Whether a size fits all ops of a model is for the run to say; here an op is refused that fits none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from vgg16gpu.compiler.graph.ops import (
    BatchNorm,
    Concat,
    Conv,
    Elementwise,
    Gemm,
    GeneralBatchNorm,
    GeneralConv,
    MatMul,
    Op,
    Shape,
)
from vgg16gpu.compiler.onnx.folding.fold import OpenShape
from vgg16gpu.compiler.onnx.node import EXPORT_AGAIN, MisfitError, UnsupportedNodeError
from vgg16gpu.errors import ModelError

MAX_RANK: Final = 8  # of a value on a device

# Batches are primes that no model has; sizes have many divisors, so that reshapes fit where any size does.
_BATCHES: Final = (1009, 1013)
_SIZES: Final = (5040, 7560)


def open_shape(op: Op, shapes: Sequence[OpenShape], batch_is_open: bool) -> OpenShape:
    """Return the shape of op.y as far as it is known.

    Raises UnsupportedNodeError when the op fits at no size, or not at every batch.
    """
    if any(None in shape[1:] for shape in shapes):
        _check_rank(op, len(shapes[0]))
        found = _common(op, _filled(op, shapes), batch_is_open)
    else:
        _tried(op, shapes, 1, 1)
        try:
            found = _common(op, shapes, batch_is_open)
        except MisfitError as error:
            raise UnsupportedNodeError("it does not fit every batch", "export with a fixed batch") from error
    if len(found) > MAX_RANK:
        raise UnsupportedNodeError(f"its result has {len(found)} dimensions", f"at most {MAX_RANK} are supported")
    return found


def _check_rank(op: Op, rank: int) -> None:
    needed = op.x_rank or rank
    if rank != needed:
        raise UnsupportedNodeError(f"its input has {rank} dimensions, it needs {needed}", EXPORT_AGAIN)


def _common(op: Op, shapes: Sequence[OpenShape], batch_is_open: bool) -> OpenShape:
    """Return dimensions that are the same at every batch and size, None for others. Raises UnsupportedNodeError."""
    first = _tried(op, shapes, _BATCHES[0], _SIZES[0])
    other_size = _tried(op, shapes, _BATCHES[0], _SIZES[1])
    found = [dim if dim == other else None for dim, other in zip(first, other_size, strict=True)]
    if batch_is_open:
        other_batch = _tried(op, shapes, _BATCHES[1], _SIZES[0])
        if (first[:1], other_batch[:1]) != (_BATCHES[:1], _BATCHES[1:]):
            raise UnsupportedNodeError(
                "its result does not keep the batch as its first dimension", "export with a fixed batch"
            )
        if first[1:] != other_batch[1:]:
            raise UnsupportedNodeError("it mixes the images of an open batch", "export with a fixed batch")
        found[0] = None
    return tuple(found)


def _tried(op: Op, shapes: Sequence[OpenShape], batch: int, size: int) -> Shape:
    """Return the shape of op.y for numbers in place of open dimensions. Raises UnsupportedNodeError, MisfitError."""
    try:
        return op.shape_of_y(*(_numbers(shape, batch, size) for shape in shapes))
    except ModelError as error:
        reason = str(error).partition(": ")[2]  # the list of refused nodes names the node itself
        channels = _channels(op, shapes)
        if channels is not None and shapes[0][1] not in (None, channels):
            layout = f"export the model for inputs with {channels} channels, in the layout (N, C, H, W)"
            raise UnsupportedNodeError(reason, layout) from error
        if len(shapes[0]) == 3 and op.x_rank == 4:
            raise UnsupportedNodeError(reason, "export the model with a batch dimension") from error
        raise MisfitError(reason, op) from error


def _channels(op: Op, shapes: Sequence[OpenShape]) -> int | None:
    """Return the channels that a convolution needs; None for other ops."""
    if len(shapes[0]) != 4 or not isinstance(op, Conv | GeneralConv):
        return None
    return op.weight.shape[1] if isinstance(op, Conv) else (shapes[1][1] or 0) * op.group


def _numbers(shape: OpenShape, batch: int, size: int) -> Shape:
    return tuple(dim if dim is not None else size if index else batch for index, dim in enumerate(shape))


def _filled(op: Op, shapes: Sequence[OpenShape]) -> list[OpenShape]:
    """Return the shapes with dimensions filled that the op requires: the channels of its weights, say."""
    first, *others = shapes
    match op:
        case Conv() | Gemm():
            return [_with(first, 1, op.weight.shape[1])]
        case BatchNorm():
            return [_with(first, 1, op.scale.size)]
        case GeneralConv():
            return [_with(first, 1, (others[0][1] or 0) * op.group), *others]
        case GeneralBatchNorm():
            return [_with(first, 1, others[0][0]), *others]
        case Elementwise():
            return _agreed(shapes, None)
        case Concat():
            return _agreed(shapes, op.axis - len(first))
        case MatMul() if len(first) > 1 and len(others[0]) > 1:
            left, right = len(first) - 1 - op.transpose_a, len(others[0]) - 2 + op.transpose_b
            columns, rows = first[left], others[0][right]
            return [_with(first, left, rows), _with(others[0], right, columns), *others[1:]]
        case _:
            return list(shapes)


def _with(shape: OpenShape, index: int, dim: int | None) -> OpenShape:
    """Return the shape with an open dimension filled."""
    return (*shape[:index], dim, *shape[index + 1 :]) if index < len(shape) and shape[index] is None else shape


def _agreed(shapes: Sequence[OpenShape], free: int | None) -> list[OpenShape]:
    """Open sizes as the other operands have them, dimensions counted from the end; those at `free` may differ."""
    filled = list(shapes)
    for place in range(-max(map(len, shapes)), 0):
        known = {shape[place] for shape in shapes if len(shape) >= -place} - {None, 1}
        if place != free and len(known) == 1:
            (dim,) = known
            filled = [_with(s, len(s) + place, dim) if len(s) + place > 0 else s for s in filled]
    return filled
