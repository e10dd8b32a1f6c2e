"""float32 convolutions from pairs of float16 on mma.sync: conv_mma.cu and conv_mma_3x3.cu with ELEMENT 3.

Which of the two computes a layer does not depend on the batch: they add in different orders.
"""

from __future__ import annotations

from typing import Final

from vgg16gpu.compiler.graph.ops import Conv
from vgg16gpu.compiler.op_kernels.base import OpContext, OpKernel, WeightPacker
from vgg16gpu.compiler.op_kernels.conv import known_linear
from vgg16gpu.compiler.op_kernels.conv.common import GROUP_ALIGNMENT
from vgg16gpu.compiler.op_kernels.conv.conv_mma import steps
from vgg16gpu.compiler.op_kernels.conv.conv_mma_3x3 import MAX_IMAGES, has_halos
from vgg16gpu.compiler.op_kernels.layout import scales
from vgg16gpu.compiler.op_kernels.layout.pack import pack_conv
from vgg16gpu.compiler.op_kernels.mma import MmaWeights
from vgg16gpu.compiler.op_kernels.mma_pairs import CHANNELS, is_wide, output_dtype, stores_pairs
from vgg16gpu.compiler.op_kernels.wgmma import RawWeights, pack_pairs
from vgg16gpu.program.types import DType

# What the sums of conv_mma_3x3 are multiplied by: three large products of 16 that tensor cores add make a sum 8.6e-8 of
# itself too small on average, and 1 + 2^-23 is the next number that float32 has. conv_mma loses half as much.
CORRECTION: Final = 1 + 2.0**-23
_MOST_SIDE: Final = 1 << 15  # of a map, as in `conv_mma.steps`
_MOST_NBYTES: Final = 1 << 31  # of one half of MAX_IMAGES images


def supports(layer: OpContext[Conv]) -> bool:
    """Return whether channels are stored in whole tiles, of few outputs only on the way back to an image."""
    op = layer.op
    outputs, channels = op.weight.shape[:2]
    if not stores_pairs(layer) or layer.quantised is not None or op.kept is not None or not is_wide(channels):
        return False
    window, (height, width) = op.window, layer.x_shape[2:]
    side = max(height, width, *window.kernel, window.pads.top, window.pads.left)
    nbytes = MAX_IMAGES * height * width * DType.F16_PAIR.padded(channels) * DType.F16_PAIR.nbytes
    if side >= _MOST_SIDE or nbytes >= _MOST_NBYTES:
        return False
    return known_linear.is_known(layer) if known_linear.computes(layer) else is_wide(outputs)


def weights(layer: OpContext[Conv], arena: WeightPacker) -> MmaWeights:
    """Pack weights as pairs, (channels by 16, taps, plane, stored outputs, 16), with the vectors that go with them."""
    op = layer.op
    correction = CORRECTION if has_halos(op, layer.x_shape[3]) else 1.0
    if known_linear.computes(layer):
        packed, bias, dequant, out_scale = known_linear.weights(op, correction, CHANNELS, arena)
        return MmaWeights(packed, dequant=dequant, bias=bias, out_scale=out_scale)
    assert layer.x_scaling is not None  # pairs have scales
    assert layer.y_scaling is not None
    outputs, channels, *kernel = op.weight.shape
    taps = kernel[0] * kernel[1]
    source = pack_conv(op.weight, GROUP_ALIGNMENT, arena)  # as the second pass reads it
    columns = DType.F32.padded(outputs)
    strides = (1, columns, columns * DType.F32.padded(channels))
    stored = DType.F16_PAIR.padded(outputs)
    known = scales.WeightRows(source, outputs, channels, taps, *strides)
    made = scales.scale_rows(
        known, stored, layer.x_scaling, layer.y_scaling.level, arena, folds=True, correction=correction
    )
    rows = RawWeights(outputs, channels, taps, strides, DType.F16_PAIR.padded(channels))
    packed = pack_pairs(source, rows, CHANNELS, made.scale, layer.x_scaling, arena)
    bias = arena.add_channels(op.bias, outputs, DType.F16_PAIR)
    return MmaWeights(packed, dequant=made.dequant, bias=bias, out_scale=layer.y_scaling.scale)


OP_KERNEL = OpKernel(
    Conv,
    steps,
    weights,
    family="mma",
    priority=-1,
    supports=supports,
    input_dtypes=lambda _: (DType.F16_PAIR,),
    output_dtype=output_dtype,
)
