"""Max and average pooling, by windows or of whole maps: the Python side of kernels/general/pool.cu."""

from __future__ import annotations

import math

from vgg16gpu.compiler.graph.ops import GlobalPool, Pool
from vgg16gpu.compiler.op_kernels.base import (
    BLOCK,
    NoWeights,
    OpContext,
    OpKernel,
    OpMemory,
    linear,
    no_weights,
    scalars,
)
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch
from vgg16gpu.program.types import TensorDesc

SOURCE = "pool.cu"
VARIANTS = ((("AVERAGE", 0),), (("AVERAGE", 1),))  # tools/ptxas.py


def steps(
    layer: OpContext[Pool], x: TensorDesc, y: TensorDesc, held: NoWeights, places: OpMemory
) -> tuple[KernelLaunch, ...]:
    """Return one launch."""
    del held, places
    op = layer.op
    batch, rows, columns, pitch = y.stored_shape
    _, channels, height, width = x.shape
    window, pads = op.window, op.window.padding(height, width)
    grid, block = linear(math.prod(y.stored_shape) // 4)
    return (
        KernelLaunch(
            kernel=_kernel("pool_f32", op),
            grid=grid,
            block=block,
            arguments=(
                *(y.pointer, x.pointer),
                *scalars(batch * rows * columns, channels, height, width, pitch, rows, columns),
                *scalars(*window.kernel, *window.strides, *window.dilations, *pads, int(op.count_include_pad)),
            ),
            flop=math.prod(y.shape) * math.prod(window.kernel),
            nbytes=x.nbytes + y.nbytes,
            names=op.names,
            label=f"{op.kind} pool {window.kernel[0]}x{window.kernel[1]}",
        ),
    )


def global_steps(
    layer: OpContext[GlobalPool], x: TensorDesc, y: TensorDesc, held: NoWeights, places: OpMemory
) -> tuple[KernelLaunch, ...]:
    """Return one launch."""
    del held, places
    op = layer.op
    batch, height, width, pitch = x.stored_shape
    return (
        KernelLaunch(
            kernel=_kernel("global_pool_f32", op),
            grid=Dim3(batch * pitch // 4),
            block=Dim3(BLOCK),
            arguments=(y.pointer, x.pointer, *scalars(height * width, pitch)),
            flop=math.prod(x.shape),
            nbytes=x.nbytes + y.nbytes,
            names=op.names,
            label=f"global {op.kind} pool",
        ),
    )


def _kernel(name: str, op: Pool | GlobalPool) -> Kernel:
    return Kernel(SOURCE, name, (("AVERAGE", int(op.kind == "average")),))


OP_KERNELS = (OpKernel(Pool, steps, no_weights), OpKernel(GlobalPool, global_steps, no_weights))
