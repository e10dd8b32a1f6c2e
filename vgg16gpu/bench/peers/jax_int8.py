"""A graph in int8 as XLA fuses it into cuDNN's integer convolutions: shapes and types of the model, random data.

It is there for its time alone. The form is the one that XLA turns into one cuDNN call for each convolution: int32 sums
times a constant scale, ReLU and saturation in float32, no rounding, input channels padded to a multiple of 4, weights
of fully connected layers as (out, in). A rounding, a scale that is an argument or the other order breaks the fusion.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import lax

from vgg16gpu.bench.peers.base import PeerError
from vgg16gpu.bench.peers.jax_net import MAPS, JaxArray, Network, Parameters, max_pool, padding, to_onnx
from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.graph.ops import Conv, Flatten, Gemm, Identity, Op, Pool, Relu, Softmax
from vgg16gpu.compiler.graph.window import MAX_POOL_2X2

Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.int8]]

REASON = "random int8 data and scales: there for its time, its scores mean nothing"

_SCALE = 1e-3  # of an int32 sum; constant, so that XLA fuses it
_CHANNELS = 4  # input channels are padded to a multiple
_LOWEST, _HIGHEST = -128, 127


def random_bytes(shape: tuple[int, ...], rng: np.random.Generator) -> Bytes:
    """Draw int8 numbers from -127 to 127."""
    return rng.integers(-127, 128, shape, np.int8)


def input_shape(batch: int, sample_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a batch of (C, H, W) or (F,) for `network`: (N, H, W, padded C) or (N, F)."""
    if len(sample_shape) != 3:
        return (batch, *sample_shape)
    channels, height, width = sample_shape
    return batch, height, width, _padded(channels)


def parameters(graph: Graph, rng: np.random.Generator) -> Mapping[str, tuple[Bytes, ...]]:
    """Return random weights of every op, on the host."""
    return {op.y: tuple(random_bytes(shape, rng) for shape in _weight_shapes(op)) for op in graph.ops}


def network(graph: Graph) -> Network:
    """Return the function (parameters, x) -> the first output. Raises PeerError for an op without an equivalent."""

    def run(weights: Parameters, x: JaxArray) -> JaxArray:
        values = {graph.input.name: x}
        for op in graph.ops:
            last = op.y == graph.outputs[0]
            values[op.y] = _apply(op, weights[op.y], values[op.x], last)
        return to_onnx(values[graph.outputs[0]])

    return run


def _weight_shapes(op: Op) -> list[tuple[int, ...]]:
    match op:
        case Conv():
            outputs, channels, *kernel = op.weight.shape
            return [(*kernel, _padded(channels), outputs)]
        case Gemm():
            return [op.weight.shape]
        case _:
            return []


def _apply(op: Op, weights: tuple[JaxArray, ...], x: JaxArray, last: bool) -> JaxArray:
    match op:
        case Conv():
            sums = lax.conv_general_dilated(
                x,
                weights[0],
                op.window.strides,
                padding(op.window),
                dimension_numbers=MAPS,
                preferred_element_type=jnp.int32,
            )
            y = _quantised(sums, op.relu)
            return max_pool(y, MAX_POOL_2X2, _LOWEST) if op.pool else y
        case Gemm():
            rows = x.reshape(len(x), math.prod(x.shape[1:]))
            sums = lax.dot_general(rows, weights[0], (((1,), (1,)), ((), ())), preferred_element_type=jnp.int32)
            return sums if last else _quantised(sums, op.relu)
        case Pool(kind="max"):
            return max_pool(x, op.window, _LOWEST)
        case Relu():
            return jnp.maximum(x, 0)
        case Flatten():
            return x.reshape(len(x), -1)
        case Softmax() | Identity():  # no work to speak of
            return x
        case _:
            raise PeerError(f"jax: no int8 form of {type(op).__name__} '{op.y}' is known: not compared")


def _quantised(sums: JaxArray, relu: bool) -> JaxArray:
    y = sums.astype(jnp.float32) * _SCALE
    return jnp.clip(jnp.maximum(y, 0) if relu else y, _LOWEST, _HIGHEST).astype(jnp.int8)


def _padded(channels: int) -> int:
    return -(-channels // _CHANNELS) * _CHANNELS
