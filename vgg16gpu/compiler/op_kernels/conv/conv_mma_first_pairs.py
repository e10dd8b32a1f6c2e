"""The first convolution in float32 from float16 on mma.sync: the Python side of kernels/conv/conv_mma_first_pairs.cu.

It reads the run-time input as the user gives it, so that the input is stored in no other form. Pixels and weights are
three float16 each.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from vgg16gpu.compiler.graph.ops import Conv
from vgg16gpu.compiler.op_kernels.activation import CLIPS, CLIPS_INPUT, activated, activation, input_limits, taking
from vgg16gpu.compiler.op_kernels.base import (
    HostInput,
    InputKernel,
    OpContext,
    OpMemory,
    WeightPacker,
    ceil_div,
    scalars,
)
from vgg16gpu.compiler.op_kernels.conv import conv_mma_first
from vgg16gpu.compiler.op_kernels.conv.common import TAPS, is_same_3x3, label
from vgg16gpu.compiler.op_kernels.conv.conv_mma_first import MAX_CHANNELS, TILE_CHANNELS, choose_rows, fragments
from vgg16gpu.compiler.op_kernels.layout import scales
from vgg16gpu.compiler.op_kernels.mma_pairs import is_wide, stores_pairs
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch
from vgg16gpu.program.types import DType, Pointer, TensorDesc

SOURCE: Final = "conv_mma_first_pairs.cu"
WARP_CHANNELS: Final = 32
TILE_COLUMNS: Final = 16
MIN_BLOCKS: Final = 2  # on a multiprocessor: caps the registers
_ROW_NBYTES: Final = 3 * 2 * TILE_COLUMNS * 16  # of shared memory, the three parts of pixels


class FirstPairs(NamedTuple):
    """Hold what the kernel reads beside its input, in its order; of vectors a float for each output, in tiles of 64."""

    weight: Pointer  # as `fragments` has them, float32
    weight_scale: Pointer  # what the weights of an output are multiplied by
    dequant: Pointer  # what takes the scales of weights and input out of a sum
    bias: Pointer
    out_scale: Pointer  # what outputs are multiplied by before they are stored
    in_scale: Pointer  # one float: what the input is multiplied by


def kernel(source: str, channels: int) -> Kernel:
    """Return the kernel for images of this type, "float32" or "uint8", with this many channels."""
    macros = {"IMAGE": int(source == "uint8"), "IN_CHANNELS": channels, "TILE_COLUMNS": TILE_COLUMNS}
    return Kernel(SOURCE, "conv_mma_first_pairs", (*macros.items(), ("MIN_BLOCKS", MIN_BLOCKS)))


VARIANTS = (  # tools/ptxas.py
    *(kernel(source, channels).defines for source in ("float32", "uint8") for channels in (1, 3, 4)),
    (*kernel("uint8", 3).defines, CLIPS, CLIPS_INPUT),
)


def supports(layer: OpContext[Conv]) -> bool:
    """Return whether it is a same-size 3x3 convolution of the run-time input: up to four channels, without a pool."""
    op = layer.op
    outputs, channels = op.weight.shape[:2]
    reads_image = layer.reads_input and channels <= MAX_CHANNELS and layer.facts.kind in conv_mma_first.KINDS
    return reads_image and stores_pairs(layer) and is_same_3x3(op) and not op.pool and is_wide(outputs)


def weights(layer: OpContext[Conv], arena: WeightPacker) -> FirstPairs:
    """Arrange weights as fragments of float32, which the kernel scales, with the vectors that go with them."""
    assert layer.x_scaling is not None  # pairs have scales
    assert layer.y_scaling is not None
    op = layer.op
    outputs, channels = op.weight.shape[:2]
    reduction = TAPS * channels
    flat = arena.add(np.ascontiguousarray(op.weight.reshape(outputs, reduction)))
    rows = scales.WeightRows(flat, outputs, reduction, 1, reduction, 1, 0)
    stored = ceil_div(outputs, TILE_CHANNELS) * TILE_CHANNELS
    made = scales.scale_rows(rows, stored, layer.x_scaling, layer.y_scaling.level, arena, folds=False)
    # The kernel's scale of pixels is apart: dequant takes both scales out, `made.scale` has x's divided out.
    return FirstPairs(
        arena.add(fragments(op.weight, WARP_CHANNELS)),
        weight_scale=made.scale,
        dequant=made.dequant,
        bias=arena.add_vector(op.bias, outputs, TILE_CHANNELS),
        out_scale=layer.y_scaling.scale,
        in_scale=layer.x_scaling.scale,
    )


def steps(
    layer: OpContext[Conv], x: HostInput, y: TensorDesc, held: FirstPairs, places: OpMemory
) -> tuple[KernelLaunch, ...]:
    """Return one launch."""
    op = layer.op
    batch, channels, height, width = layer.x_shape
    outputs = op.weight.shape[0]
    across = ceil_div(outputs, TILE_CHANNELS) * ceil_div(width, TILE_COLUMNS) * batch
    rows = choose_rows(height, across, layer.facts.multiprocessors, MIN_BLOCKS)
    normalisation = x.normalisation or (held.bias, held.bias)  # not read with float32 inputs
    return (
        KernelLaunch(
            kernel=taking(activated(kernel(x.element_type, channels), op), x.limits),
            grid=Dim3(across * ceil_div(height, rows)),
            block=Dim3(8 * TILE_COLUMNS),
            arguments=(
                *(y.pointer, places.maxima, x.pointer, *held, *normalisation, places.control.status),
                *scalars(batch, height, width, outputs, y.pitch, rows),
                *activation(op),
                *scalars(1),
                *input_limits(x.limits),
            ),
            shared=(rows + 2) * _ROW_NBYTES,
            flop=op.flop(layer.x_shape),
            nbytes=(1 if x.normalisation else 4) * batch * channels * height * width + y.nbytes,
            names=op.names,
            label=label(op),
        ),
    )


OP_KERNEL = InputKernel(
    Conv,
    steps,
    weights,
    family="mma",
    priority=3,
    supports=supports,
    output_dtype=lambda *_: DType.F16_PAIR,
)
