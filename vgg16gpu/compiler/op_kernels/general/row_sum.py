"""Sums over rows of several operands: the Python side of kernels/general/row_sum.cu."""

from __future__ import annotations

import math

from vgg16gpu.compiler.graph.loss import MAX_ROWS, RowSum
from vgg16gpu.compiler.op_kernels.base import BLOCK, MultiOpKernel, NoWeights, OpContext, OpMemory, no_weights, scalars
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch
from vgg16gpu.program.types import TensorDesc

SOURCE = "row_sum.cu"


def steps(
    layer: OpContext[RowSum], x: tuple[TensorDesc, ...], y: TensorDesc, held: NoWeights, places: OpMemory
) -> tuple[KernelLaunch, ...]:
    """Return one launch."""
    del held, places
    missing = MAX_ROWS - len(x)
    return (
        KernelLaunch(
            kernel=Kernel(SOURCE, "row_sum_f32"),
            grid=Dim3(y.shape[0]),
            block=Dim3(BLOCK),
            arguments=(
                *(value.pointer for value in (y, *x, *missing * x[:1])),
                *scalars(*(math.prod(value.shape[1:]) for value in x), *(0,) * missing),
            ),
            flop=sum(math.prod(value.shape) for value in x),
            nbytes=sum(value.nbytes for value in x) + y.nbytes,
            names=layer.op.names,
            label="sum of losses",
        ),
    )


OP_KERNEL = MultiOpKernel(RowSum, steps, no_weights)
