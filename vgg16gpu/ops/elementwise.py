"""ReLU and per-channel scale and shift on their own: the Python side of kernels/elementwise.cu."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vgg16gpu.facts import DeviceFacts
from vgg16gpu.graph import BatchNorm, Relu, Shape
from vgg16gpu.ops.base import Lowering, WeightArena, linear, scalars
from vgg16gpu.program import Kernel, Pointer, Step, Value

SOURCE = "elementwise.cu"


def relu_steps(
    op: Relu, x: Value, y: Value, pointers: Sequence[Pointer], workspace: Pointer, facts: DeviceFacts
) -> tuple[Step, ...]:
    """One launch."""
    del pointers, workspace, facts
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
            names=op.names,
            label="relu",
        ),
    )


def batch_norm_weights(op: BatchNorm, x_shape: Shape, arena: WeightArena) -> tuple[Pointer, ...]:
    """Per channel scale / sqrt(variance + epsilon), and the shift that goes with it."""
    scale = op.scale.astype(np.float64) / np.sqrt(op.variance.astype(np.float64) + op.epsilon)
    shift = op.shift - op.mean * scale
    channels = x_shape[1]
    stored = [arena.add_channels(vector.astype(np.float32), channels) for vector in (scale, shift)]
    return stored[0], stored[1]


def batch_norm_steps(
    op: BatchNorm, x: Value, y: Value, pointers: Sequence[Pointer], workspace: Pointer, facts: DeviceFacts
) -> tuple[Step, ...]:
    """One launch."""
    del workspace, facts
    vectors = math.prod(y.stored_shape) // 4
    grid, block = linear(vectors)
    return (
        Step(
            kernel=Kernel(SOURCE, "scale_shift_f32"),
            grid=grid,
            block=block,
            arguments=(y.pointer, x.pointer, *pointers, *scalars(vectors, x.pitch)),
            flop=2 * math.prod(y.shape),
            nbytes=x.nbytes + y.nbytes,
            names=op.names,
            label="batch norm",
        ),
    )


LOWERINGS = (Lowering(Relu, relu_steps), Lowering(BatchNorm, batch_norm_steps, batch_norm_weights))
