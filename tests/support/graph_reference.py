"""Graphs of any ops in float64 numpy: several inputs, any rank. What `reference` says of an op of a VGG holds here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tests.support import loss_reference as losses
from tests.support import reference
from vgg16gpu.compiler.graph.gradient_ops import MaskedGradient, PoolGradient
from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.graph.loss import FeatureLoss, Gram, GramGradient, RowSum
from vgg16gpu.compiler.graph.ops import (
    Arithmetic,
    AxisSoftmax,
    Clip,
    ClipGradient,
    Concat,
    Elementwise,
    FakeQuantize,
    Gather,
    GeneralBatchNorm,
    GeneralConv,
    GlobalPool,
    LeakyRelu,
    LocalResponseNorm,
    MatMul,
    Op,
    Pad,
    Pool,
    ReluGradient,
    Reshape,
    Slice,
    Transpose,
)
from vgg16gpu.compiler.graph.window import MAX_POOL_2X2, Window

Array64: TypeAlias = npt.NDArray[np.float64]


def compute(graph: Graph, inputs: Mapping[str, npt.NDArray[Any]]) -> dict[str, Array64]:
    """Every value of a graph; each has the shape that `output_shape` says."""
    values = {name: np.asarray(array, np.float64) for name, array in {**graph.constants, **inputs}.items()}
    for op in graph.ops:
        operands = [values[name] for name in op.operands]
        if isinstance(op, FeatureLoss):
            both = losses.feature_loss(op, *operands)
            values.update(zip(op.results, both[: len(op.results)], strict=True))
        elif isinstance(op, Gram | GramGradient | RowSum):
            values[op.y] = losses.apply(op, *operands)
        else:
            values[op.y] = _apply(op, *operands)
        assert values[op.y].shape == op.shape_of_y(*(operand.shape for operand in operands)), op
    return values


def _apply(op: Op, x: Array64, *others: Array64) -> Array64:
    match op:
        case GeneralConv():
            return _convolve(op, x, *others)
        case Pool() | GlobalPool():
            return _pool(op, x)
        case LocalResponseNorm():
            return _lrn(op, x)
        case PoolGradient() | MaskedGradient():
            return _map_gradient(op, x, *others)
        case Elementwise():
            return _elementwise(op, x, *others)
        case GeneralBatchNorm():
            return _general_batch_norm(op, x, *others)
        case MatMul():
            return _matmul(op, x, *others)
        case AxisSoftmax():
            return _softmax(op, x)
        case Concat():
            return np.concatenate([x, *others], op.axis)
        case Pad():
            return _padded(op, x)
        case Slice():
            sizes = [dim if size is None else size for dim, size in zip(x.shape, op.sizes, strict=True)]
            picked = [s + t * np.arange(n) for s, t, n in zip(op.starts, op.steps, sizes, strict=True)]
            return np.asarray(x[np.ix_(*picked)])
        case _:
            return _moved(op, x)


def _moved(op: Op, x: Array64) -> Array64:
    match op:
        case Transpose():
            return np.transpose(x, op.permutation)
        case Reshape():
            return np.reshape(x, op.shape_of_y(x.shape))
        case Gather():
            assert op.indices.size == 0 or op.indices.min() >= 0
            return np.asarray(np.take(x, op.indices, op.axis))
    return reference.apply(op, x)


def _windows(x: Array64, window: Window, fill: float, beyond: float | None = None) -> Array64:
    """(N, C, OH, OW, KH, KW): the map, `fill` in its padding, `beyond` in what rounding up adds behind that."""
    pads, counts = window.padding(*x.shape[2:]), window.output_size(*x.shape[2:])
    padded = np.pad(x, ((0, 0), (0, 0), (pads.top, pads.bottom), (pads.left, pads.right)), constant_values=fill)
    more = [
        max((count - 1) * stride + extent - size, 0)
        for count, stride, extent, size in zip(counts, window.strides, window.extent, padded.shape[2:], strict=True)
    ]
    edges = ((0, 0), (0, 0), (0, more[0]), (0, more[1]))
    padded = np.pad(padded, edges, constant_values=fill if beyond is None else beyond)
    view = np.lib.stride_tricks.sliding_window_view(padded, window.extent, axis=(2, 3))
    view = view[:, :, :: window.strides[0], :: window.strides[1], :: window.dilations[0], :: window.dilations[1]]
    return np.asarray(view[:, :, : counts[0], : counts[1]])


def _pool(op: Pool | GlobalPool, x: Array64) -> Array64:
    if isinstance(op, GlobalPool):
        return np.asarray((np.max if op.kind == "max" else np.mean)(x, axis=(2, 3), keepdims=True))
    if op.kind == "max":
        return np.asarray(_windows(x, op.window, -math.inf).max(axis=(4, 5)))
    counts = _windows(np.ones_like(x), op.window, 1.0 if op.count_include_pad else 0.0, 0.0)
    return np.asarray(_windows(x, op.window, 0.0).sum(axis=(4, 5)) / counts.sum(axis=(4, 5)))


def _pool_gradient(op: PoolGradient, gradient: Array64, x: Array64) -> Array64:
    """Window by window, element by element; the maximum is looked for row by row."""
    window, (height, width) = op.window, x.shape[2:]
    pads, found = window.padding(height, width), np.zeros_like(x)
    for oh, ow in np.ndindex(*gradient.shape[2:]):
        rows, columns = (
            [at * stride - before + k * step for k in range(kernel)]
            for at, stride, before, kernel, step in zip(
                (oh, ow), window.strides, (pads.top, pads.left), window.kernel, window.dilations, strict=True
            )
        )
        inside = [(h, w) for h in rows if 0 <= h < height for w in columns if 0 <= w < width]
        share = gradient[:, :, oh, ow]
        if op.kind == "average":
            high = (height + pads.bottom, width + pads.right)
            padded = sum(h < high[0] for h in rows) * sum(w < high[1] for w in columns)
            for h, w in inside:
                found[:, :, h, w] += share / (padded if op.count_include_pad else len(inside))
        elif inside:
            first = np.argmax(np.stack([x[:, :, h, w] for h, w in inside]), axis=0)
            for place, (h, w) in enumerate(inside):
                found[:, :, h, w] += np.where(first == place, share, 0)
    return found


def _map_gradient(op: PoolGradient | MaskedGradient, x: Array64, *gradients: Array64) -> Array64:
    first, *others = gradients
    if isinstance(op, PoolGradient):
        return _pool_gradient(op, x, first)
    if op.pools:
        first = _pool_gradient(PoolGradient("g", "y", ("y",), ("x",), "max", MAX_POOL_2X2), first, x)
    low, high = op.range or (0.0, math.inf)
    return np.where((x > low) & (x < high), sum(others, start=first), 0)


def _convolve(op: GeneralConv, x: Array64, weight: Array64, bias: Array64 | None = None) -> Array64:
    parts = zip(np.split(x, op.group, 1), np.split(weight, op.group, 0), strict=True)
    y = [np.einsum("nchwij,ocij->nohw", _windows(part, op.window, 0.0), w, optimize=True) for part, w in parts]
    joined = np.concatenate(y, 1) + (0 if bias is None else bias[:, None, None])
    return reference.relu(joined) if op.relu else joined


def _lrn(op: LocalResponseNorm, x: Array64) -> Array64:
    before = (op.size - 1) // 2
    squares = np.pad(x**2, ((0, 0), (before, op.size - 1 - before), (0, 0), (0, 0)))
    sums = sum(squares[:, i : i + x.shape[1]] for i in range(op.size))
    return np.asarray(x / (op.bias + op.alpha / op.size * sums) ** op.beta)


def _elementwise(op: Elementwise, x: Array64, *others: Array64) -> Array64:
    y = x
    match op:
        case Clip():
            low, high = others or (op.low, op.high)
            y = np.minimum(np.maximum(x, low), high)
        case LeakyRelu():
            y = np.where(x < 0, x * op.alpha, x)
        case FakeQuantize():
            y = np.clip(np.rint(x / op.scale), op.low, op.high) * op.scale
        case ReluGradient():
            y = np.where(x > 0, sum(others), 0)
        case ClipGradient():
            y = np.where((x > op.low) & (x < op.high), sum(others), 0)
        case Arithmetic():
            function = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}[op.function]
            for other in others:
                y = function(y, other)
        case _:
            raise NotImplementedError(type(op).__name__)
    return reference.relu(y) if op.relu else np.asarray(y)


def _general_batch_norm(op: GeneralBatchNorm, x: Array64, *parameters: Array64) -> Array64:
    shape = (-1, *[1] * (x.ndim - 2))
    scale, shift, mean, variance = (parameter.reshape(shape) for parameter in parameters)
    y = (x - mean) / np.sqrt(variance + op.epsilon) * scale + shift
    return reference.relu(y) if op.relu else np.asarray(y)


def _matmul(op: MatMul, a: Array64, b: Array64, c: Array64 | None = None) -> Array64:
    left = np.swapaxes(a, -1, -2) if op.transpose_a else a
    right = np.swapaxes(b, -1, -2) if op.transpose_b else b
    return np.asarray(op.alpha * (left @ right) + (0 if c is None else op.beta * c))


def _softmax(op: AxisSoftmax, x: Array64) -> Array64:
    axes = tuple(range(op.axis, op.last + 1))
    shifted = x - x.max(axis=axes, keepdims=True)
    total = np.exp(shifted).sum(axis=axes, keepdims=True)
    return np.asarray(shifted - np.log(total) if op.log else np.exp(shifted) / total)


def _padded(op: Pad, x: Array64) -> Array64:
    outer = [(max(b, 0), max(a, 0)) for b, a in zip(op.before, op.after, strict=True)]
    padded = np.pad(x, outer, constant_values=op.value)
    inner = [slice(max(-b, 0), n - max(-a, 0)) for b, a, n in zip(op.before, op.after, padded.shape, strict=True)]
    return np.asarray(padded[tuple(inner)])


def used(graph: Graph) -> set[str]:
    """The kinds of ops of a graph."""
    return {type(op).__name__ for op in graph.ops}
