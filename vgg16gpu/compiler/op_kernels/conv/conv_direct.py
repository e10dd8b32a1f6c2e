"""Convolution + bias + ReLU + 2x2 max-pool on a CPU: the Python side of kernels/conv/conv_direct.cu."""

from __future__ import annotations

from typing import Final

from vgg16gpu.compiler.graph.ops import Conv
from vgg16gpu.compiler.op_kernels.activation import CLIPS, activated, activation
from vgg16gpu.compiler.op_kernels.base import OpContext, OpKernel, OpMemory, PlainWeights, ceil_div, for_cpus, scalars
from vgg16gpu.compiler.op_kernels.conv.common import label
from vgg16gpu.compiler.op_kernels.conv.conv_igemm import matrix, weights
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch
from vgg16gpu.program.types import TensorDesc

SOURCE: Final = "conv_direct.cu"
THREAD_ROWS: Final = 32
WIDE: Final = 16  # columns of a thread


def kernel(pool: bool) -> Kernel:
    """Return the kernel with these macros."""
    return Kernel(SOURCE, "conv_direct_f32", (("THREAD_ROWS", THREAD_ROWS), ("POOL", int(pool))))


VARIANTS = tuple(
    (*kernel(pool).defines, *clips) for pool in (False, True) for clips in ((), (CLIPS,))
)  # tools/ptxas.py


def steps(
    layer: OpContext[Conv], x: TensorDesc, y: TensorDesc, held: PlainWeights, places: OpMemory
) -> tuple[KernelLaunch, ...]:
    """Return one launch. Raises ModelError for maps beyond conv_igemm's indices: all devices run a model, or none."""
    del places
    op = layer.op
    shape, window = matrix(op, x.shape), op.window
    step = KernelLaunch(
        kernel=activated(kernel(op.pool), op),
        grid=Dim3(ceil_div(shape.rows, THREAD_ROWS), ceil_div(shape.columns, WIDE)),
        block=Dim3(1),
        arguments=(
            *(y.pointer, x.pointer, *held),
            *scalars(shape.rows, x.shape[2], x.shape[3], x.pitch, *shape.map, shape.columns),
            *scalars(*window.kernel, *window.strides, window.pads.top, window.pads.left),
            *scalars(op.weight.shape[0], shape.group),
            *activation(op),
        ),
        flop=op.flop(x.shape),
        nbytes=x.nbytes + y.nbytes + 4 * (op.weight.size + op.weight.shape[0]),
        names=op.names,
        label=label(op),
    )
    return (step,)


OP_KERNEL = OpKernel(Conv, steps, weights, priority=1, supports=for_cpus)
