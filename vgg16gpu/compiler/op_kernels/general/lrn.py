"""Local response normalisation: the Python side of kernels/general/lrn.cu."""

from __future__ import annotations

import math

from vgg16gpu.compiler.graph.ops import LocalResponseNorm
from vgg16gpu.compiler.op_kernels.base import NoWeights, OpContext, OpKernel, OpMemory, linear, no_weights, scalars
from vgg16gpu.program.launch import Kernel, KernelLaunch, Scalar
from vgg16gpu.program.types import TensorDesc


def steps(
    layer: OpContext[LocalResponseNorm], x: TensorDesc, y: TensorDesc, held: NoWeights, places: OpMemory
) -> tuple[KernelLaunch, ...]:
    """Return one launch."""
    del held, places
    op = layer.op
    count = math.prod(y.stored_shape)
    grid, block = linear(count)
    numbers = (Scalar(number, "f") for number in (op.alpha, op.beta, op.bias))
    return (
        KernelLaunch(
            kernel=Kernel("lrn.cu", "lrn_f32"),
            grid=grid,
            block=block,
            arguments=(y.pointer, x.pointer, *scalars(count, x.shape[1], x.pitch, op.size), *numbers),
            flop=(2 * op.size + 100) * math.prod(y.shape),
            nbytes=x.nbytes + y.nbytes,
            names=op.names,
            label="local response normalisation",
        ),
    )


OP_KERNEL = OpKernel(LocalResponseNorm, steps, no_weights)
