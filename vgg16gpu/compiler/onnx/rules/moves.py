"""Rules of operators that bring elements to other places and compute nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from vgg16gpu.compiler.graph.ops import Concat, Flatten, Gather, Identity, Op, Pad, Reshape, Slice, Transpose
from vgg16gpu.compiler.onnx.folding.fold import OPEN_BATCH, OPEN_SIZE, OpenShape
from vgg16gpu.compiler.onnx.node import EXPORT_AGAIN, MisfitError, NodeView, Rule, UnsupportedNodeError, positive_axis

_FIXED_SIZES: Final = "export with the batch and the image size fixed"
_FLAT_RANKS: Final = (2, 4)  # of what Flatten takes: matrices and feature maps


def flatten(node: NodeView) -> Op:
    """Flatten at any axis."""
    axis = node.attributes.get("axis", 1)
    if node.is_unknown(0) and axis == 1:
        return Flatten(node.x, node.y, (node.y,))
    rank = len(node.shape)
    if not -rank <= axis <= rank:
        raise UnsupportedNodeError(f"axis is {axis} for {rank} dimensions", EXPORT_AGAIN)
    from_front = axis + rank if axis < 0 else axis
    if from_front == 1:
        return _rows(node)
    if node.fixed is None:
        if from_front == 0:
            raise UnsupportedNodeError(
                f"axis is {axis}", "only axis 1, which keeps the batch, is supported while sizes are open"
            )
        return _rows_of_images(node, from_front)
    rows = math.prod(node.fixed[:from_front])
    return Reshape(node.x, node.y, (node.y,), (rows, math.prod(node.fixed[from_front:])))


def _rows_of_images(node: NodeView, axis: int) -> Op:
    """Import (N, ...) -> (N * rows, F), N open, as (N, rows, F), until a Reshape joins an image's rows again."""
    rows, features = _product(node.shape[1:axis]), _product(node.shape[axis:])
    if rows is None or node.shape[0] is not None:
        raise UnsupportedNodeError(f"axis is {axis} of {_readable(node.shape)}", f"use axis 1, or {_FIXED_SIZES}")
    node.result.rows = rows
    return Reshape(node.x, node.y, (node.y,), (0, rows, -1 if features is None else features))


def _joined(node: NodeView, target: list[int]) -> Op:
    """Import (N * rows, F) -> (N, ...), which joins the rows of each image. Raises UnsupportedNodeError."""
    features = _product(node.shape[1:])
    kept, rest = target[:1] in ([-1], [OPEN_BATCH]), target[1:]
    if not kept or not rest or min(rest) < 1 or math.prod(rest) != features:
        raise UnsupportedNodeError(
            f"it turns {node.first.rows} rows for each image into {_readable(target)}, which is not one row",
            _FIXED_SIZES,
        )
    return Reshape(node.x, node.y, (node.y,), (0, *rest))


def _rows(node: NodeView) -> Op:
    """Import (N, ...) -> (N, F)."""
    if len(node.shape) in _FLAT_RANKS:
        return Flatten(node.x, node.y, (node.y,))
    return Reshape(node.x, node.y, (node.y,), (0, -1))


def reshape(node: NodeView) -> Op:
    """Reshape; (N, ...) -> (N, F) is Flatten. What the model leaves open must fit at every size."""
    target = node.constant(1)
    if target is None or target.ndim != 1 or target.dtype != np.int64:
        raise UnsupportedNodeError("its shape operand is not a list of int64", EXPORT_AGAIN)
    shape, allowzero = [int(dim) for dim in target], node.flag("allowzero")
    if node.is_unknown(0):
        return Reshape(node.x, node.y, (node.y,), tuple(shape))
    if node.first.rows is not None:
        return _joined(node, shape)
    if _flattens(shape, node.shape, allowzero):
        return _rows(node)
    if node.fixed is not None:
        return _fixed_reshape(node, shape, node.fixed, allowzero)
    rest = _rest(shape, node.shape, allowzero)
    if rest is None:
        raise UnsupportedNodeError(
            f"it turns {_readable(node.shape)} into {_readable(shape)}, which is not one row per image",
            f"use torch.flatten(x, 1), or {_FIXED_SIZES}",
        )
    return Reshape(node.x, node.y, (node.y,), (0, *rest))


def _flattens(target: list[int], shape: OpenShape, allowzero: bool) -> bool:
    """Return whether a reshape of `shape` to `target` is (N, ...) -> (N, F) at every size that the model allows."""
    if not shape or len(target) != 2 or target.count(-1) > 1 or (allowzero and 0 in target):
        return False
    features = _product(shape[1:])
    rows, columns = target
    # 0 copies the input's dimension: the batch in the first place, only one of several in the second.
    same_rows = rows in (0, OPEN_BATCH if shape[0] is None else shape[0])
    same_columns = (columns == 0 and len(shape) == 2) or (features is not None and columns == features)
    return (same_rows and (same_columns or columns == -1)) or (rows == -1 and same_columns)


def _fixed_reshape(node: NodeView, target: list[int], shape: tuple[int, ...], allowzero: bool) -> Op:
    """Import a reshape of a fixed shape, to numbers alone. Raises MisfitError for another number of elements."""
    known = [
        shape[index] if dim == 0 and not allowzero and index < len(shape) else dim for index, dim in enumerate(target)
    ]
    size, rest = math.prod(shape), math.prod(dim for dim in known if dim != -1)
    if known.count(-1) == 1 and rest > 0 and size % rest == 0:
        known[known.index(-1)] = size // rest
    if min(known, default=1) < 0 or math.prod(known) != size:
        op = Reshape(node.x, node.y, (node.y,), tuple(target))
        raise MisfitError(
            f"it turns {_readable(shape)} into {_readable(target)}, which has another number of elements", op
        )
    return Reshape(node.x, node.y, (node.y,), tuple(known))


def _rest(target: list[int], shape: OpenShape, allowzero: bool) -> list[int] | None:
    """Return the target of a reshape of an open shape without its first dimension; None if the first one changes."""
    if len(target) < 2 or target.count(-1) > 1 or (allowzero and 0 in target) or min(target[1:]) < -1:
        return None
    rows, rest = target[0], target[1:]
    if any(dim == 0 and index >= len(shape) for index, dim in enumerate(rest, 1)):
        return None
    copied = [shape[index] if dim == 0 else dim for index, dim in enumerate(rest, 1)]
    features = _product(shape[1:])
    same = features is not None and _product(copied) == features
    if -1 in rest:
        same = features is None or features % (_product([dim for dim in copied if dim != -1]) or 1) == 0
    kept = rows in (0, OPEN_BATCH if shape[0] is None else shape[0]) or (rows == -1 and same)
    return rest if kept and same else None


def _product(dims: Sequence[int | None]) -> int | None:
    known = [dim for dim in dims if dim is not None]
    return math.prod(known) if len(known) == len(dims) else None


def _readable(shape: Sequence[int | None]) -> str:
    words = {None: "open", OPEN_SIZE: "open", OPEN_BATCH: "batch"}
    return f"({', '.join(str(words.get(dim, dim)) for dim in shape)})"


def squeeze(node: NodeView) -> Op:
    """Squeeze: dimensions of one element are left out; the axes are an attribute before opset 13, an operand since."""
    axes, rank = node.axes(1, 13), len(node.shape)
    if axes is None and node.fixed is None:
        raise UnsupportedNodeError("it names no axes and leaves out what is 1", f"name the axes, or {_FIXED_SIZES}")
    gone = [dim for dim in range(rank) if node.shape[dim] == 1] if axes is None else _unique(axes, rank)
    for dim in gone:
        if node.shape[dim] != 1:
            raise UnsupportedNodeError(f"it leaves out dimension {dim} of {_readable(node.shape)}", EXPORT_AGAIN)
    return _reordered(node, [dim for dim in range(rank) if dim not in gone])


def unsqueeze(node: NodeView) -> Op:
    """Unsqueeze: dimensions of one element are put in."""
    axes = node.axes(1, 13)
    if axes is None:
        raise UnsupportedNodeError("it has no axes", EXPORT_AGAIN)
    rank = len(node.shape) + len(axes)
    added, left = _unique(axes, rank), iter(range(len(node.shape)))
    return _reordered(node, [None if dim in added else next(left) for dim in range(rank)])


def _unique(axes: Sequence[int], rank: int) -> list[int]:
    found = [positive_axis(axis, rank) for axis in axes]
    if len(set(found)) < len(found):
        raise UnsupportedNodeError(f"axes {list(axes)} name one dimension twice", EXPORT_AGAIN)
    return found


def _reordered(node: NodeView, places: list[int | None]) -> Op:
    """Import a reshape to the dimensions of x at `places`, None for one element. Raises UnsupportedNodeError."""
    if len(places) == 2 and places[0] == 0 and len(node.shape) in _FLAT_RANKS:
        return Flatten(node.x, node.y, (node.y,))
    dims = [1 if place is None else node.shape[place] for place in places]
    target = [
        0 if dim is None and place == index else dim
        for index, (place, dim) in enumerate(zip(places, dims, strict=True))
    ]
    if target.count(None) > 1:
        raise UnsupportedNodeError(f"it moves several open dimensions of {_readable(node.shape)}", _FIXED_SIZES)
    return Reshape(node.x, node.y, (node.y,), tuple(-1 if dim is None else dim for dim in target))


def transpose(node: NodeView) -> Op:
    """Transpose; without perm the dimensions are reversed."""
    rank = len(node.shape)
    permutation = tuple(node.attributes.get("perm", range(rank)[::-1]))
    if sorted(permutation) != list(range(rank)):
        raise UnsupportedNodeError(f"perm is {list(permutation)} for {rank} dimensions", EXPORT_AGAIN)
    return Transpose(node.x, node.y, (node.y,), permutation)


def concat(node: NodeView) -> Op:
    """Concat of run-time values and constants."""
    axis = node.axis(1, len(node.shape))
    names = tuple(node.value(index) for index in range(len(node.operands)))
    if len(names) == 1:
        return Identity(names[0], node.y, (node.y,))
    return Concat(names[0], node.y, (node.y,), names[1:], axis)


def slice_(node: NodeView) -> Op:
    """Slice: attributes before opset 10, operands since."""
    shape, rank = node.shape, len(node.shape)
    if node.opset < 10:
        starts, ends = tuple(node.attributes.get("starts", ())), tuple(node.attributes.get("ends", ()))
        axes, steps = node.axes(3, 10), None
    else:
        starts, ends = node.integers(1, "starts") or (), node.integers(2, "ends") or ()
        axes, steps = node.axes(3, 10), node.integers(4, "steps")
    axes = tuple(range(len(starts))) if axes is None else tuple(_unique(axes, rank))
    steps = (1,) * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps) or max(axes, default=0) >= rank or 0 in steps:
        raise UnsupportedNodeError(f"its lists {starts}, {ends}, {axes}, {steps} do not fit each other", EXPORT_AGAIN)
    firsts, strides, sizes = [0] * rank, [1] * rank, list[int | None]([None] * rank)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        dim = shape[axis]
        if dim is not None:
            picked = range(*slice(start, end, step).indices(dim))
            if picked != range(dim):
                firsts[axis], strides[axis], sizes[axis] = picked.start if picked else 0, step, len(picked)
        elif (start, step) != (0, 1) or end < 2**31 - 1:
            raise UnsupportedNodeError(
                f"it takes {start}:{end}:{step} of dimension {axis}, which is open", _FIXED_SIZES
            )
    return Slice(node.x, node.y, (node.y,), tuple(firsts), tuple(strides), tuple(sizes))


def gather(node: NodeView) -> Op:
    """Gather with constant indices."""
    indices, axis = node.constant(1), node.axis(0, len(node.shape))
    if indices is None or indices.dtype not in (np.int32, np.int64):
        raise UnsupportedNodeError("its indices are not whole numbers", EXPORT_AGAIN)
    dim, numbers = node.shape[axis], indices.astype(np.int64)
    if dim is None:
        raise UnsupportedNodeError(f"it picks from dimension {axis}, which is open", _FIXED_SIZES)
    if numbers.size and not -dim <= numbers.min() <= numbers.max() < dim:
        raise UnsupportedNodeError(f"an index is not in -{dim} to {dim - 1}", EXPORT_AGAIN)
    return Gather(node.x, node.y, (node.y,), axis, np.where(numbers < 0, numbers + dim, numbers))


def pad(node: NodeView) -> Op | tuple[Op, ...]:
    """Pad with a constant: attributes before opset 11, operands since, axes since 18."""
    mode = node.attributes.get("mode", b"constant").decode("utf-8", "replace")
    if mode != "constant":
        raise UnsupportedNodeError(f"mode is '{mode}'", "only constant padding is supported")
    rank = len(node.shape)
    pads = tuple(node.attributes.get("pads", ())) if node.opset < 11 else node.integers(1, "pads") or ()
    found = node.integers(3, "axes") if node.opset >= 18 else None
    axes = list(range(rank)) if found is None else _unique(found, rank)
    if len(pads) != 2 * len(axes):
        raise UnsupportedNodeError(f"it has {len(pads)} pads for {len(axes)} dimensions", EXPORT_AGAIN)
    before, after = [0] * rank, [0] * rank
    for axis, front, back in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        before[axis], after[axis] = front, back
    if node.opset >= 11 and node.operand(2) is not None and not node.is_constant(2):
        return _pad_with_value(node, before, after)
    value = node.attributes.get("value", 0.0)
    if node.opset >= 11:
        array = None if node.operand(2) is None else node.weight(2, "value")
        value = 0.0 if array is None else array.reshape(-1)[0]
    return Pad(node.x, node.y, (node.y,), tuple(before), tuple(after), float(value))


def _pad_with_value(node: NodeView, before: list[int], after: list[int]) -> tuple[Op, ...]:
    """Import padding with a run-time number: a Concat puts it behind x's elements, a Gather picks from both."""
    shape = node.fixed
    if shape is None or not node.is_number(2):
        raise UnsupportedNodeError(
            f"its value '{node.names[2]}' is computed at run time", f"make it a constant, or {_FIXED_SIZES}"
        )
    size = math.prod(shape)
    padded = [front + dim + back for front, dim, back in zip(before, shape, after, strict=True)]
    if min(padded, default=1) < 1:
        raise UnsupportedNodeError(f"of {_readable(shape)} nothing is left", EXPORT_AGAIN)
    node.scope.memory.take(padded, np.dtype(np.int64))
    indices = np.full(padded, size, np.int64)
    inner = tuple(
        slice(max(front, 0), max(front, 0) + dim + min(front, 0) + min(back, 0))
        for front, dim, back in zip(before, shape, after, strict=True)
    )
    kept = tuple(
        slice(max(-front, 0), dim + min(back, 0)) for front, dim, back in zip(before, shape, after, strict=True)
    )
    indices[inner] = np.arange(size, dtype=np.int64).reshape(shape)[kept]
    flat, value, both = (node.scope.fresh(node.y) for _ in range(3))
    return (
        Reshape(node.x, flat, (flat,), (-1,)),
        Reshape(node.value(2), value, (value,), (1,)),
        Concat(flat, both, (both,), (value,), 0),
        Gather(both, node.y, (node.y,), 0, indices),
    )


RULES: Final[Mapping[str, Rule]] = {
    "Concat": concat,
    "Flatten": flatten,
    "Gather": gather,
    "Pad": pad,
    "Reshape": reshape,
    "Slice": slice_,
    "Squeeze": squeeze,
    "Transpose": transpose,
    "Unsqueeze": unsqueeze,
}
