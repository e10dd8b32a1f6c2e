"""Shapes of values: what each op makes of those that it reads."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from vgg16gpu.compiler.graph.ops import (
    MAX_POOL_2X2,
    Arithmetic,
    AxisSoftmax,
    BatchNorm,
    Clip,
    Concat,
    Conv,
    Elementwise,
    FakeQuantize,
    Flatten,
    FusedConvPair,
    Gather,
    Gemm,
    GeneralBatchNorm,
    GeneralConv,
    GlobalPool,
    Graph,
    LeakyRelu,
    LocalResponseNorm,
    MatMul,
    Op,
    Pad,
    Pool,
    Reshape,
    Shape,
    Slice,
    Softmax,
    Transpose,
    Window,
)
from vgg16gpu.errors import ModelError


def infer_shapes(graph: Graph, input_shape: Shape | Mapping[str, Shape]) -> Mapping[str, Shape]:
    """Shape of every value for a run on `input_shape`, or on the shapes of several inputs by name; of constants too.

    Raises ModelError when an op does not fit what it reads.
    """
    given = input_shape if isinstance(input_shape, Mapping) else {graph.input.name: input_shape}
    shapes = {**given, **{name: array.shape for name, array in graph.constants.items()}}
    for op in graph.ops:
        shapes[op.y] = output_shape(op, *(shapes[name] for name in op.operands))
        shapes.update((name, further_shape(op, shapes[op.x])) for name in op.results[1:])
    return shapes


def output_shape(op: Op, *shapes: Shape) -> Shape:
    """Shape of op.y for operands of these shapes. Raises ModelError, naming op and shapes, when they do not fit."""
    rule = _RULES.get(type(op))
    return rule(op, *shapes) if rule else op.shape_of_y(*shapes)


def further_shape(op: Op, shape: Shape) -> Shape:
    """Shape of what an op computes beside y, for an x of this shape: a map before its pool, else one like x."""
    match op:
        case Conv():
            return output_shape(replace(op, pool=False), shape)
        case FusedConvPair():
            return further_shape(op.second, output_shape(op.first, shape))
        case _:
            return shape


def moves(op: Op) -> bool:
    """Whether an op computes nothing and only brings elements to other places."""
    return isinstance(op, Reshape | Transpose | Slice | Pad | Concat | Gather)


def map_shape(op: Op, shape: Shape) -> tuple[int, int, int, int]:
    """The shape itself, of a feature map. Raises ModelError for another rank."""
    if len(shape) != 4:
        missing = ", so a batch dimension in front" if len(shape) == 3 else ""
        raise ModelError(f"{type(op).__name__} '{op.y}': its input has shape {shape}; it needs (N, C, H, W){missing}")
    return shape[0], shape[1], shape[2], shape[3]


def window_shape(op: Op, window: Window, height: int, width: int) -> tuple[int, int]:
    """Height and width of what a window gives that slides over a map. Raises ModelError where it does not fit."""
    rows, columns = window.output_size(height, width)
    if rows < 1 or columns < 1:
        raise ModelError(
            f"{type(op).__name__} '{op.y}': a {window.kernel[0]}x{window.kernel[1]} window does not fit "
            f"a {height}x{width} map; use a larger input image"
        )
    return rows, columns


def _chain_shape(op: FusedConvPair, shape: Shape) -> Shape:
    return output_shape(op.second, output_shape(op.first, shape))


def _pool_shape(op: Pool, shape: Shape) -> Shape:
    batch, channels, height, width = map_shape(op, shape)
    return batch, channels, *window_shape(op, op.window, height, width)


def _global_pool_shape(op: GlobalPool, shape: Shape) -> Shape:
    return *map_shape(op, shape)[:2], 1, 1


def _flat_shape(op: Flatten, shape: Shape) -> Shape:
    del op
    return shape[0], math.prod(shape[1:])


def _softmax_shape(op: Softmax, shape: Shape) -> Shape:
    if len(shape) != 2:
        raise ModelError(f"Softmax '{op.y}': its input has shape {shape}; only (N, F) is supported")
    return shape


def _axis_softmax_shape(op: AxisSoftmax, shape: Shape) -> Shape:
    if not 0 <= op.axis <= op.last < len(shape):
        raise ModelError(f"Softmax '{op.y}': its input of shape {shape} has no dimension {op.last}")
    return shape


def _batch_norm_shape(op: BatchNorm, shape: Shape) -> Shape:
    channels = map_shape(op, shape)[1]
    if channels != op.scale.size:
        raise ModelError(
            f"BatchNormalization '{op.y}': {op.scale.size} scales for {channels} channels; the model is broken"
        )
    return shape


def _conv_shape(op: Conv, shape: Shape) -> Shape:
    batch, channels, height, width = map_shape(op, shape)
    if channels != op.weight.shape[1]:
        raise ModelError(f"Conv '{op.y}': weights for {op.weight.shape[1]} channels, input has {channels}")
    rows, columns = window_shape(op, op.window, height, width)
    if op.pool:
        rows, columns = window_shape(op, MAX_POOL_2X2, rows, columns)
    return batch, op.weight.shape[0], rows, columns


def _general_conv_shape(op: GeneralConv, shape: Shape, weight: Shape, bias: Shape | None = None) -> Shape:
    batch, channels, height, width = map_shape(op, shape)
    if len(weight) != 4 or weight[2:] != op.window.kernel or weight[0] % op.group:
        raise ModelError(f"Conv '{op.y}': weights of shape {weight} for {op.window.kernel} windows, {op.group} groups")
    if channels != weight[1] * op.group:
        raise ModelError(f"Conv '{op.y}': weights for {weight[1] * op.group} channels, input has {channels}")
    if bias is not None and bias != weight[:1]:
        raise ModelError(f"Conv '{op.y}': a bias of shape {bias} for {weight[0]} output channels")
    return batch, weight[0], *window_shape(op, op.window, height, width)


def _gemm_shape(op: Gemm, shape: Shape) -> Shape:
    features = math.prod(shape[1:]) if op.flattens else shape[-1]
    if (len(shape) != 2 and not op.flattens) or features != op.weight.shape[1]:
        raise ModelError(
            f"Gemm '{op.y}': weights for {op.weight.shape[1]} features, its input {shape} has {features}; "
            "the input image has the wrong size for this model"
        )
    return shape[0], op.weight.shape[0]


def matmul_operands(op: MatMul, a: Shape, b: Shape) -> tuple[Shape, Shape]:
    """The shapes that numpy.matmul multiplies: transposed as the op says, vectors as matrices of one row or column."""
    left = (*a[:-2], a[-1], a[-2]) if op.transpose_a else a
    right = (*b[:-2], b[-1], b[-2]) if op.transpose_b else b
    return left if len(left) > 1 else (1, *left), right if len(right) > 1 else (*right, 1)


def _matmul_shape(op: MatMul, a: Shape, b: Shape, c: Shape | None = None) -> Shape:
    if not a or not b:
        raise ModelError(f"MatMul '{op.y}': shapes {a} and {b}; a scalar is no matrix")
    left, right = matmul_operands(op, a, b)
    if left[-1] != right[-2]:
        raise ModelError(
            f"MatMul '{op.y}': {a} times {b}; {left[-1]} columns meet {right[-2]} rows: "
            "the input has the wrong size for this model"
        )
    try:
        batch = np.broadcast_shapes(left[:-2], right[:-2])
        product = (*batch, *left[-2:-1][: len(a) > 1], *right[-1:][: len(b) > 1])
        if c is not None and np.broadcast_shapes(product, c) != product:
            raise ValueError
    except ValueError:
        raise ModelError(f"MatMul '{op.y}': shapes {a}, {b} and {c} do not fit each other") from None
    return product


def broadcast_shape(op: Elementwise, *shapes: Shape) -> Shape:
    """What all of these are broadcast to. Raises ModelError."""
    try:
        return tuple(int(dim) for dim in np.broadcast_shapes(*shapes))
    except ValueError:
        what = op.function if isinstance(op, Arithmetic) else type(op).__name__
        raise ModelError(
            f"{what} '{op.y}': shapes {' and '.join(map(str, shapes))} cannot be broadcast to each other"
        ) from None


def _general_batch_norm_shape(op: GeneralBatchNorm, shape: Shape, *parameters: Shape) -> Shape:
    if len(shape) < 2 or any(parameter != shape[1:2] for parameter in parameters):
        raise ModelError(
            f"BatchNormalization '{op.y}': parameters of shapes {', '.join(map(str, parameters))} for an input of "
            f"shape {shape}; it needs (N, C, ...), and (C,) for each parameter"
        )
    return shape


def _transposed(op: Transpose, shape: Shape) -> Shape:
    if sorted(op.permutation) != list(range(len(shape))):
        raise ModelError(f"Transpose '{op.y}': {op.permutation} is no order of the dimensions of {shape}")
    return tuple(shape[dim] for dim in op.permutation)


def _sliced(op: Slice, shape: Shape) -> Shape:
    return tuple(dim if size is None else size for dim, size in zip(shape, op.sizes, strict=True))


def _padded(op: Pad, shape: Shape) -> Shape:
    padded = tuple(b + dim + a for b, dim, a in zip(op.before, shape, op.after, strict=True))
    if min(padded, default=1) < 1:
        raise ModelError(f"Pad '{op.y}': of {shape} nothing is left")
    return padded


def _gathered(op: Gather, shape: Shape) -> Shape:
    return (*shape[: op.axis], *op.indices.shape, *shape[op.axis + 1 :])


def _reshaped(op: Reshape, shape: Shape) -> Shape:
    if any(dim == 0 and index >= len(shape) for index, dim in enumerate(op.target)):
        raise ModelError(f"Reshape '{op.y}': it copies a dimension that {shape} does not have; the model is broken")
    known = [shape[index] if dim == 0 else dim for index, dim in enumerate(op.target)]
    size, rest = math.prod(shape), math.prod(dim for dim in known if dim != -1)
    if -1 in known and rest and size % rest == 0:
        known[known.index(-1)] = size // rest
    if -1 in known or math.prod(known) != size:
        raise ModelError(
            f"Reshape '{op.y}': {shape} cannot become {op.target}; the input has the wrong size for this model"
        )
    return tuple(known)


def _concatenated(op: Concat, *shapes: Shape) -> Shape:
    first, axis = shapes[0], op.axis
    for shape in shapes[1:]:
        if len(shape) != len(first) or (*shape[:axis], *shape[axis + 1 :]) != (*first[:axis], *first[axis + 1 :]):
            raise ModelError(f"Concat '{op.y}': shapes {first} and {shape} differ beside dimension {axis}")
    return (*first[:axis], sum(shape[axis] for shape in shapes), *first[axis + 1 :])


_RULES: Final[Mapping[type[Op], Callable[..., Shape]]] = {
    AxisSoftmax: _axis_softmax_shape,
    BatchNorm: _batch_norm_shape,
    Concat: _concatenated,
    Conv: _conv_shape,
    FusedConvPair: _chain_shape,
    Arithmetic: broadcast_shape,
    LeakyRelu: broadcast_shape,
    Clip: broadcast_shape,
    FakeQuantize: broadcast_shape,
    GeneralBatchNorm: _general_batch_norm_shape,
    Flatten: _flat_shape,
    Gather: _gathered,
    Gemm: _gemm_shape,
    GeneralConv: _general_conv_shape,
    GlobalPool: _global_pool_shape,
    LocalResponseNorm: map_shape,
    MatMul: _matmul_shape,
    Pad: _padded,
    Pool: _pool_shape,
    Reshape: _reshaped,
    Slice: _sliced,
    Softmax: _softmax_shape,
    Transpose: _transposed,
}
