"""Where the graph's layout and the device's meet: the Python side of kernels/layout/layout.cu."""

from __future__ import annotations

import math

from vgg16gpu.compiler.graph.ops import Flatten, Identity, Shape
from vgg16gpu.compiler.op_kernels.activation import input_limits, taking
from vgg16gpu.compiler.op_kernels.base import (
    BLOCK,
    HostInput,
    NoWeights,
    OpContext,
    OpKernel,
    OpMemory,
    ceil_div,
    no_weights,
    scalars,
)
from vgg16gpu.compiler.op_kernels.layout import preprocess
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch
from vgg16gpu.program.types import Layout, Pointer, TensorDesc

SOURCE = "layout.cu"
MAX_INPUT_BLOCKS = 64  # per image


def input_blocks(shape: Shape, kind: str) -> int:
    """Return the input kernels' blocks per image; few on a CPU, as a thread costs as much as many pixels."""
    block_pixels = BLOCK * (16 if kind == "cpu" else 1)
    return min(MAX_INPUT_BLOCKS, ceil_div(math.prod(shape[2:]), block_pixels))


def take_in(source: HostInput, y: TensorDesc, status: Pointer, kind: str) -> KernelLaunch:
    """Convert the host's input to float32 NHWC; NaN and Inf are noted in the status words. kind: of device."""
    blocks = input_blocks(y.shape, kind)
    if source.normalisation:
        return preprocess.from_bytes(source.pointer, y, source.normalisation, blocks, source.limits)
    batch, channels, *spatial = y.shape
    return KernelLaunch(
        kernel=taking(Kernel(SOURCE, "nchw_to_nhwc_f32"), source.limits),
        grid=Dim3(blocks, batch),
        block=Dim3(BLOCK),
        arguments=(
            *(y.pointer, source.pointer, status),
            *scalars(math.prod(spatial), channels, y.pitch),
            *input_limits(source.limits),
        ),
        nbytes=4 * math.prod(y.shape) + y.nbytes,
        names=(y.name,),
        label="input to NHWC",
    )


def from_nhwc(x: TensorDesc, y: TensorDesc, names: tuple[str, ...], label: str) -> KernelLaunch:
    """Convert a value from NHWC to the order of the ONNX graph. y may have another rank, or a padded pitch."""
    batch, channels, *spatial = x.shape
    row = math.prod(y.stored_shape[1:]) if y.layout is Layout.PLAIN else y.pitch
    return KernelLaunch(
        kernel=Kernel(SOURCE, "nhwc_to_nchw_f32"),
        grid=Dim3(ceil_div(row, BLOCK), batch),
        block=Dim3(BLOCK),
        arguments=(y.pointer, x.pointer, *scalars(math.prod(spatial), channels, x.pitch, row)),
        nbytes=x.nbytes + y.nbytes,
        names=names,
        label=label,
    )


def flatten_steps(
    layer: OpContext[Flatten], x: TensorDesc, y: TensorDesc, held: NoWeights, places: OpMemory
) -> tuple[KernelLaunch, ...]:
    """Return one launch."""
    del held, places
    return (from_nhwc(x, y, layer.op.names, "flatten"),)


def identity_steps(
    layer: OpContext[Identity], x: TensorDesc, y: TensorDesc, held: NoWeights, places: OpMemory
) -> tuple[KernelLaunch, ...]:
    """Return one launch: a copy, left only where outputs name a value twice."""
    del held, places
    flat = TensorDesc(x.name, (1, math.prod(x.stored_shape)), Layout.PLAIN, x.pointer)
    return (from_nhwc(flat, TensorDesc(y.name, flat.shape, Layout.PLAIN, y.pointer), layer.op.names, "copy"),)


OP_KERNELS = (OpKernel(Flatten, flatten_steps, no_weights), OpKernel(Identity, identity_steps, no_weights))
