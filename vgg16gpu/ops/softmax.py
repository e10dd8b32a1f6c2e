"""Softmax over the last axis: the Python side of kernels/softmax.cu."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vgg16gpu.facts import DeviceFacts
from vgg16gpu.graph import Softmax
from vgg16gpu.ops.base import BLOCK, Lowering, scalars
from vgg16gpu.program import Dim3, Kernel, Pointer, Step, Value


def steps(
    op: Softmax, x: Value, y: Value, pointers: Sequence[Pointer], workspace: Pointer, facts: DeviceFacts
) -> tuple[Step, ...]:
    """One launch."""
    del pointers, workspace, facts
    batch, features = x.shape
    return (
        Step(
            kernel=Kernel("softmax.cu", "softmax_f32"),
            grid=Dim3(batch),
            block=Dim3(BLOCK),
            arguments=(y.pointer, x.pointer, *scalars(features, x.pitch, y.pitch)),
            flop=50 * math.prod(x.shape),
            nbytes=x.nbytes + y.nbytes,
            names=op.names,
            label="softmax",
        ),
    )


LOWERING = Lowering(Softmax, steps)
