"""Softmax and its logarithm over any dimensions: the Python side of kernels/general/softmax.cu."""

from __future__ import annotations

import math
from collections.abc import Container

from vgg16gpu.compiler.graph.ops import AxisSoftmax, Softmax
from vgg16gpu.compiler.op_kernels.base import BLOCK, NoWeights, OpContext, OpKernel, OpMemory, no_weights, scalars
from vgg16gpu.compiler.op_kernels.strided import IterationSpace, room, view
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch, StridedIndexer
from vgg16gpu.program.types import TensorDesc

SOURCE = "softmax.cu"


def steps(
    layer: OpContext[Softmax], x: TensorDesc, y: TensorDesc, held: NoWeights, places: OpMemory
) -> tuple[KernelLaunch, ...]:
    """Return one launch."""
    del held, places
    batch, features = x.shape
    return (
        KernelLaunch(
            kernel=Kernel(SOURCE, "softmax_f32"),
            grid=Dim3(batch),
            block=Dim3(BLOCK),
            arguments=(y.pointer, x.pointer, *scalars(features, x.pitch, y.pitch)),
            flop=50 * math.prod(x.shape),
            nbytes=x.nbytes + y.nbytes,
            names=layer.op.names,
            label="softmax",
        ),
    )


def axis_steps(
    layer: OpContext[AxisSoftmax], x: TensorDesc, y: TensorDesc, held: NoWeights, places: OpMemory
) -> tuple[KernelLaunch, ...]:
    """Return one launch, for values of any rank and layout."""
    del held, places
    op = layer.op
    inner = range(op.axis, op.last + 1)
    row = _part(room(y), inner)
    rows = _part(room(y), {*range(len(y.shape))} - {*inner})
    strides = view(x).strides
    return (
        KernelLaunch(
            kernel=Kernel(SOURCE, "axis_softmax_f32"),
            grid=Dim3(rows.count),
            block=Dim3(BLOCK),
            arguments=(
                *(y.pointer, x.pointer, StridedIndexer(rows.walk(strides).rows + row.walk(strides).rows)),
                *scalars(row.count, int(op.log)),
            ),
            flop=50 * math.prod(x.shape),
            nbytes=x.nbytes + y.nbytes,
            names=op.names,
            label="log softmax" if op.log else "softmax",
        ),
    )


def _part(whole: IterationSpace, dims: Container[int]) -> IterationSpace:
    """Return the space of these dimensions alone."""
    kept = [place for place, dim in enumerate(whole.order) if dim in dims]
    fields = (whole.order, whole.extents, whole.limits, whole.strides)
    return IterationSpace(*(tuple(field[place] for place in kept) for field in fields))


OP_KERNELS = (OpKernel(Softmax, steps, no_weights), OpKernel(AxisSoftmax, axis_steps, no_weights, any_layout=True))
