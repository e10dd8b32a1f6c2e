"""The judge: every canonical op in float64 numpy, written for clarity."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.graph.ops import BatchNorm, Clip, Conv, Flatten, Gemm, Identity, Op, Pool, Relu, Softmax
from vgg16gpu.compiler.graph.window import MAX_POOL_2X2, Pads, Window

Array64: TypeAlias = npt.NDArray[np.float64]


def evaluate(graph: Graph, x: npt.NDArray[Any]) -> dict[str, Array64]:
    """Every value that the graph stores, the input included, in float64."""
    values = {graph.input.name: np.asarray(x, np.float64)}
    for op in graph.ops:
        values[op.y] = apply(op, values[op.x])
    return values


def apply(op: Op, x: Array64) -> Array64:
    """op.y for one input."""
    match op:
        case Conv():
            y = convolve(x, op.weight, op.bias, op.window)
            y = relu(y) if op.relu else y
            return max_pool(y, MAX_POOL_2X2) if op.pool else y
        case Pool(kind="max"):
            return max_pool(x, op.window)
        case Pool():
            return average_pool(x, op.window, op.count_include_pad)
        case Gemm():
            y = x.reshape(len(x), -1) @ op.weight.T.astype(np.float64)
            y = y if op.bias is None else y + op.bias
            return relu(y) if op.relu else y
        case BatchNorm():
            return batch_norm(x, op)
        case Relu():
            return relu(x)
        case Clip(others=()):
            y = np.clip(x, op.low, op.high)
            return relu(y) if op.relu else y
        case Flatten():
            return x.reshape(len(x), -1)
        case Softmax():
            exponentials = np.exp(x - x.max(axis=-1, keepdims=True))
            return np.asarray(exponentials / exponentials.sum(axis=-1, keepdims=True))
        case Identity():
            return x
    raise NotImplementedError(type(op).__name__)


def relu(x: Array64) -> Array64:
    return np.asarray(np.where(x < 0, 0, x))  # keeps NaN


def convolve(x: Array64, weight: npt.NDArray[Any], bias: npt.NDArray[Any] | None, window: Window) -> Array64:
    """(N, C, H, W) with (OC, C, KH, KW) -> (N, OC, OH, OW)."""
    y = np.asarray(np.einsum("nchwij,ocij->nohw", windows(x, window, 0.0), weight.astype(np.float64), optimize=True))
    return y if bias is None else np.asarray(y + bias.astype(np.float64)[:, None, None])


def max_pool(x: Array64, window: Window) -> Array64:
    return np.asarray(windows(x, window, -np.inf).max(axis=(-2, -1)))


def average_pool(x: Array64, window: Window, count_include_pad: bool) -> Array64:
    counts = windows(np.ones_like(x), window, 1.0 if count_include_pad else 0.0).sum(axis=(-2, -1))
    return np.asarray(windows(x, window, 0.0).sum(axis=(-2, -1)) / counts)


def batch_norm(x: Array64, op: BatchNorm) -> Array64:
    scale, shift, mean, variance = (
        parameter.astype(np.float64)[:, None, None] for parameter in (op.scale, op.shift, op.mean, op.variance)
    )
    return np.asarray((x - mean) / np.sqrt(variance + op.epsilon) * scale + shift)


def windows(x: Array64, window: Window, fill: float) -> Array64:
    """(N, C, H, W) -> (N, C, OH, OW, KH, KW), a view of the padded map."""
    top, left, bottom, right = Pads(*window.pads)
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=fill)
    view = np.lib.stride_tricks.sliding_window_view(padded, window.kernel, axis=(2, 3))
    return view[:, :, :: window.strides[0], :: window.strides[1]]
