"""Convolutions of any group, dilation and weights: the Python side of kernels/conv/conv_general.cu."""

from __future__ import annotations

import math

from vgg16gpu.compiler.graph.ops import GeneralConv
from vgg16gpu.compiler.op_kernels.activation import CLIPS, activated, activation, activation_label
from vgg16gpu.compiler.op_kernels.base import MultiOpKernel, NoWeights, OpContext, OpMemory, linear, no_weights, scalars
from vgg16gpu.compiler.op_kernels.strided import view
from vgg16gpu.program.launch import Kernel, KernelLaunch, StridedIndexer
from vgg16gpu.program.types import Layout, TensorDesc

SOURCE = "conv_general.cu"
VARIANTS = ((), (CLIPS,))  # tools/ptxas.py


def steps(
    layer: OpContext[GeneralConv], x: tuple[TensorDesc, ...], y: TensorDesc, held: NoWeights, places: OpMemory
) -> tuple[KernelLaunch, ...]:
    """Return one launch."""
    del held, places
    op = layer.op
    inp, weight, *bias = x
    filters, channels, *kernel = weight.shape
    last = y.layout is Layout.NHWC
    grid, block = linear(math.prod(y.stored_shape))
    return (
        KernelLaunch(
            kernel=activated(Kernel(SOURCE, "conv_general_f32"), op),
            grid=grid,
            block=block,
            arguments=(
                *(y.pointer, inp.pointer, weight.pointer, bias[0].pointer if bias else weight.pointer),
                _walk(op, inp, weight, y),
                *scalars(math.prod(y.stored_shape), filters, filters // op.group, int(last), len(bias)),
                *activation(op),
            ),
            flop=2 * math.prod(y.shape) * channels * math.prod(kernel),
            nbytes=sum(value.nbytes for value in x) + y.nbytes,
            names=op.names,
            label=_label(op),
        ),
    )


def _walk(op: GeneralConv, inp: TensorDesc, weight: TensorDesc, y: TensorDesc) -> StridedIndexer:
    """Return the rows that the kernel's header names."""
    batch, filters, rows, columns = y.shape
    _, _, height, width = inp.shape
    window, pads = op.window, op.window.padding(height, width)
    return StridedIndexer(
        (
            (batch, y.pitch if y.layout is Layout.NHWC else filters, rows, columns),
            (batch, weight.shape[1], height, width),
            view(inp).strides,
            view(weight).strides,
            (0, 0, *window.kernel),
            (0, 0, *window.strides),
            (0, 0, *window.dilations),
            (0, 0, pads.top, pads.left),
        )
    )


def _label(op: GeneralConv) -> str:
    rows, columns = op.window.kernel
    groups = f", {op.group} groups" if op.group > 1 else ""
    return f"conv {rows}x{columns}{groups}{activation_label(op)}"


OP_KERNEL = MultiOpKernel(GeneralConv, steps, no_weights, any_layout=True)
