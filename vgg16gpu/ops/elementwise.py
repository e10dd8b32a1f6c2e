"""ReLU and per-channel scale and shift on their own: the Python side of kernels/elementwise.cu."""

from __future__ import annotations

import math

import numpy as np

from vgg16gpu.graph import BatchNorm, Relu
from vgg16gpu.ops.base import Constants, Layer, Lowering, Places, WeightArena, linear, scalars
from vgg16gpu.program import Kernel, Step, Value

SOURCE = "elementwise.cu"


def relu_steps(layer: Layer, x: Value, y: Value, constants: Constants, places: Places) -> tuple[Step, ...]:
    """One launch."""
    del constants, places
    vectors = math.prod(y.stored_shape) // 4
    grid, block = linear(vectors)
    return (
        Step(
            kernel=Kernel(SOURCE, "relu_f32"),
            grid=grid,
            block=block,
            arguments=(y.pointer, x.pointer, *scalars(vectors)),
            flop=math.prod(y.shape),
            nbytes=x.nbytes + y.nbytes,
            names=layer.op.names,
            label="relu",
        ),
    )


def batch_norm_weights(layer: Layer, arena: WeightArena) -> Constants:
    """Per channel scale / sqrt(variance + epsilon), and the shift that goes with it."""
    op: BatchNorm = layer.op
    scale = op.scale.astype(np.float64) / np.sqrt(op.variance.astype(np.float64) + op.epsilon)
    shift = op.shift - op.mean * scale
    return tuple(arena.add_channels(vector.astype(np.float32), vector.size) for vector in (scale, shift))


def batch_norm_steps(layer: Layer, x: Value, y: Value, constants: Constants, places: Places) -> tuple[Step, ...]:
    """One launch."""
    del places
    vectors = math.prod(y.stored_shape) // 4
    grid, block = linear(vectors)
    return (
        Step(
            kernel=Kernel(SOURCE, "scale_shift_f32"),
            grid=grid,
            block=block,
            arguments=(y.pointer, x.pointer, *constants, *scalars(vectors, x.pitch)),
            flop=2 * math.prod(y.shape),
            nbytes=x.nbytes + y.nbytes,
            names=layer.op.names,
            label="batch norm",
        ),
    )


LOWERINGS = (Lowering(Relu, relu_steps), Lowering(BatchNorm, batch_norm_steps, batch_norm_weights))
