"""A graph as a function of JAX arrays: the same ops with the same weights, maps in NHWC as XLA likes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from vgg16gpu.bench.peers.base import PeerError
from vgg16gpu.compiler.graph.graph import Graph, infer_shapes
from vgg16gpu.compiler.graph.ops import (
    Array,
    BatchNorm,
    Clip,
    Conv,
    Flatten,
    Gemm,
    Identity,
    Op,
    Pool,
    Relu,
    Shape,
    Softmax,
)
from vgg16gpu.compiler.graph.window import MAX_POOL_2X2, Pads, Window

JaxArray: TypeAlias = Any
Parameters: TypeAlias = Mapping[str, tuple[JaxArray, ...]]  # by the name of the op's output
Network: TypeAlias = Callable[[Parameters, JaxArray], JaxArray]
Outputs: TypeAlias = Callable[[Parameters, JaxArray], list[JaxArray]]

TYPES: Mapping[str, Any] = {"fp32": jnp.float32, "fp16": jnp.float16, "bf16": jnp.bfloat16}
MAPS = ("NHWC", "HWIO", "NHWC")  # input, weights, output of a convolution


def to_nhwc(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Transpose (N, C, H, W) -> (N, H, W, C); a matrix stays as it is."""
    return np.ascontiguousarray(np.moveaxis(x, 1, -1)) if x.ndim == 4 else x


def parameters(graph: Graph, sample_shape: Shape, precision: str) -> dict[str, tuple[Array, ...]]:
    """Return every op's arrays in the layout of `network`, on the host, in the type of the precision."""
    shapes = infer_shapes(graph, (1, *sample_shape))
    type_ = TYPES[precision]
    return {
        op.y: tuple(np.asarray(array, type_) for array in _arrays(op, shapes[op.x]) if array is not None)
        for op in graph.ops
    }


def network(graph: Graph, *, strict: bool) -> Network:
    """Return the function (parameters, x) -> the graph's first output. `strict` and errors: as `outputs`."""
    run = outputs(graph, strict=strict)
    return lambda weights, x: to_onnx(run(weights, x)[0])


def outputs(graph: Graph, *, strict: bool) -> Outputs:
    """Return the function (parameters, x) -> all outputs, maps in NHWC. Raises PeerError for an unknown op.

    `strict`: products of float32 are float32, where JAX takes TF32 by default.
    """
    products = lax.Precision.HIGHEST if strict else None

    def run(weights: Parameters, x: JaxArray) -> list[JaxArray]:
        values = {graph.input.name: x}
        for op in graph.ops:
            values[op.y] = _apply(op, weights[op.y], values[op.x], products)
        return [values[name] for name in graph.outputs]

    return run


def to_onnx(y: JaxArray) -> JaxArray:
    """Transpose (N, H, W, C) -> (N, C, H, W); a matrix stays as it is."""
    return jnp.moveaxis(y, -1, 1) if y.ndim == 4 else y


def padding(window: Window) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return ((top, bottom), (left, right))."""
    pads: Pads = window.pads
    return (pads.top, pads.bottom), (pads.left, pads.right)


def max_pool(x: JaxArray, window: Window, least: Any) -> JaxArray:
    """Max-pool an NHWC map; `least`, a lower bound of values, is a number: JAX derives of no other beginning."""
    return _reduce(x, np.asarray(least, x.dtype), lax.max, window)


def _arrays(op: Op, shape: Shape) -> tuple[Array | None, ...]:
    match op:
        case Conv():
            return op.weight.transpose(2, 3, 1, 0), op.bias
        case Gemm():
            return gemm_weight(op, shape).T, op.bias
        case BatchNorm():
            deviation: Array = np.sqrt(op.variance + np.float32(op.epsilon))
            factor = op.scale / deviation
            return factor, op.shift - op.mean * factor
        case _:
            return ()


def gemm_weight(op: Gemm, shape: Shape) -> Array:
    """Return (OUT, IN) weights for an input of this ONNX shape: those that flatten a map in (H, W, C) order."""
    if len(shape) != 4:
        return op.weight
    ordered = op.weight.reshape(-1, *shape[1:]).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(ordered).reshape(len(op.weight), math.prod(shape[1:]))


def _apply(op: Op, arrays: tuple[JaxArray, ...], x: JaxArray, products: Any) -> JaxArray:
    match op:
        case Conv():
            window = op.window
            y = lax.conv_general_dilated(
                x, arrays[0], window.strides, padding(window), dimension_numbers=MAPS, precision=products
            )
            y = _finish(y, arrays[1:], op.relu)
            return max_pool(y, MAX_POOL_2X2, -np.inf) if op.pool else y
        case Gemm():
            return _finish(jnp.dot(x.reshape(len(x), -1), arrays[0], precision=products), arrays[1:], op.relu)
        case Pool():
            return max_pool(x, op.window, -np.inf) if op.kind == "max" else _average_pool(op, x)
        case BatchNorm():
            return x * arrays[0] + arrays[1]
        case Relu():
            return jax.nn.relu(x)
        case Clip() if not op.others:
            return jnp.clip(x, *op.range)
        case Flatten():
            return to_onnx(x).reshape(len(x), -1)
        case Softmax():
            return jax.nn.softmax(x.astype(jnp.float32), axis=-1).astype(x.dtype)
        case Identity():
            return x
        case _:
            raise PeerError(f"jax: no equivalent of {type(op).__name__} '{op.y}' is known: not compared")


def _finish(y: JaxArray, bias: tuple[JaxArray, ...], relu: bool) -> JaxArray:
    y = y + bias[0] if bias else y
    return jax.nn.relu(y) if relu else y


def _average_pool(op: Pool, x: JaxArray) -> JaxArray:
    zero = jnp.zeros((), jnp.float32)
    total = _reduce(x.astype(jnp.float32), zero, lax.add, op.window)
    if op.count_include_pad:
        return (total / math.prod(op.window.kernel)).astype(x.dtype)
    count = _reduce(jnp.ones((1, *x.shape[1:3], 1), jnp.float32), zero, lax.add, op.window)
    return (total / count).astype(x.dtype)


def _reduce(x: JaxArray, start: JaxArray, combine: Any, window: Window) -> JaxArray:
    pads = ((0, 0), *padding(window), (0, 0))
    return lax.reduce_window(x, start, combine, (1, *window.kernel, 1), (1, *window.strides, 1), pads)
