"""Softmax over the last axis: the Python side of kernels/softmax.cu."""

from __future__ import annotations

import math

from vgg16gpu.graph import Softmax
from vgg16gpu.ops.base import BLOCK, Constants, Layer, Lowering, Places, scalars
from vgg16gpu.program import Dim3, Kernel, Step, Value


def steps(layer: Layer, x: Value, y: Value, constants: Constants, places: Places) -> tuple[Step, ...]:
    """One launch."""
    del constants, places
    batch, features = x.shape
    return (
        Step(
            kernel=Kernel("softmax.cu", "softmax_f32"),
            grid=Dim3(batch),
            block=Dim3(BLOCK),
            arguments=(y.pointer, x.pointer, *scalars(features, x.pitch, y.pitch)),
            flop=50 * math.prod(x.shape),
            nbytes=x.nbytes + y.nbytes,
            names=layer.op.names,
            label="softmax",
        ),
    )


LOWERING = Lowering(Softmax, steps)
