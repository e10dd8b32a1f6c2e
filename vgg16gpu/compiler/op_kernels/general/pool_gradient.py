"""What pooling hands back to its input: the Python side of kernels/general/pool_gradient.cu."""

from __future__ import annotations

import math

from vgg16gpu.compiler.graph.gradient_ops import PoolGradient
from vgg16gpu.compiler.op_kernels.base import MultiOpKernel, NoWeights, OpContext, OpMemory, linear, no_weights, scalars
from vgg16gpu.program.launch import Kernel, KernelLaunch
from vgg16gpu.program.types import TensorDesc

SOURCE = "pool_gradient.cu"
VARIANTS = ((("AVERAGE", 0),), (("AVERAGE", 1),))  # tools/ptxas.py


def steps(
    layer: OpContext[PoolGradient], x: tuple[TensorDesc, ...], y: TensorDesc, held: NoWeights, places: OpMemory
) -> tuple[KernelLaunch, ...]:
    """Return one launch. x: the gradient of the pool's result, and the pool's input; y: the gradient of that input."""
    del held, places
    op, (gradient, inp) = layer.op, x
    batch, height, width, pitch = y.stored_shape
    _, rows, columns, _ = gradient.stored_shape
    window, pads = op.window, op.window.padding(height, width)
    grid, block = linear(math.prod(y.stored_shape) // 4)
    return (
        KernelLaunch(
            kernel=Kernel(SOURCE, "pool_gradient_f32", (("AVERAGE", int(op.kind == "average")),)),
            grid=grid,
            block=block,
            arguments=(
                *(y.pointer, gradient.pointer, inp.pointer),
                *scalars(batch * height * width, height, width, pitch, rows, columns),
                *scalars(*window.kernel, *window.strides, *window.dilations, *pads, int(op.count_include_pad)),
            ),
            flop=math.prod(gradient.shape) * math.prod(window.kernel),
            nbytes=gradient.nbytes + inp.nbytes + y.nbytes,
            names=op.names,
            label=f"gradient of {op.kind} pool {window.kernel[0]}x{window.kernel[1]}",
        ),
    )


OP_KERNEL = MultiOpKernel(PoolGradient, steps, no_weights)
