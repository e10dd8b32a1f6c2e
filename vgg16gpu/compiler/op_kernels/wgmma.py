"""What the kernels on Hopper's tensor cores share: which device has them, elements, packing, tensor maps of values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from vgg16gpu.compiler.graph.ops import Conv, Gemm, Op
from vgg16gpu.compiler.op_kernels.base import ActivationScale, OpContext, WeightPacker, ceil_div, linear, scalars
from vgg16gpu.compiler.op_kernels.layout.pack import STAGING
from vgg16gpu.compiler.op_kernels.mma_pairs import has_pairs
from vgg16gpu.program.launch import Kernel, KernelLaunch, TmaDescriptor
from vgg16gpu.program.types import DeviceFacts, DType, Pointer, TensorDesc

if TYPE_CHECKING:
    from vgg16gpu.compiler.quantization.scheme import QuantisedOp

PACK_SOURCE = "pack_blocks.cu"
TILE_CHANNELS = 64  # output channels of a warpgroup
MIN_SHARED = 114 << 10  # bytes: with more than half of a multiprocessor's, blocks of the next kernel cannot double up

ELEMENTS = {"fp32": DType.F16_PAIR, "fp16": DType.F16, "bf16": DType.BF16}


class EpilogueParams(NamedTuple):
    """What a kernel finishes its sums with, in its order: a float for each stored output channel."""

    bias: Pointer
    dequant: Pointer  # what takes the scales of weights and input out of a sum
    out_scale: Pointer  # what outputs are multiplied by before they are stored


def x_element(layer: OpContext[Op]) -> DType:
    """Return the dtype in which the kernels multiply x."""
    if layer.quantised is None:
        return ELEMENTS[layer.precision]
    return DType.S8 if layer.quantised.x.signed else DType.U8


def y_element(layer: OpContext[Op]) -> DType:
    """Return the dtype in which the kernels store y; float32 if no reader takes a quantised value's integers."""
    if layer.quantised is None:
        return ELEMENTS[layer.precision]
    if layer.quantised.y is None:
        return DType.F32
    return DType.S8 if layer.quantised.y.signed else DType.U8


def stored_element(layer: OpContext[Op]) -> DType:
    """Return what a convolution stores y as: float16 that a loss compares with what its rounding has left."""
    return DType.F16_PAIR if layer.keeps_digits and layer.compared else y_element(layer)


def stores_pairs(layer: OpContext[Op]) -> bool:
    """Return whether values of float32 are stored as pairs of float16, where some op on tensor cores has them."""
    return layer.precision == "fp32" and has_wgmma(layer.facts)


def computes(layer: OpContext[Conv | Gemm]) -> bool:
    """Return whether the layer's device has its precision, for outputs that are padded to whole tiles."""
    known = layer.precision in ELEMENTS or layer.quantised is not None
    return has_wgmma(layer.facts) and known and is_wide(layer, layer.op.weight.shape[0])


def is_wide(layer: OpContext[Op], channels: int) -> bool:
    """Return whether so many channels are stored in whole tiles of 64; few are padded to 16 bytes alone."""
    return x_element(layer).padded(channels) % TILE_CHANNELS == 0


def has_wgmma(facts: DeviceFacts) -> bool:
    """Return whether a device has wgmma (compute capability 9.x, no other) and tensor maps can be made for it."""
    return facts.kind == "cuda" and facts.compute_capability[0] == 9 and facts.tensor_maps


def has_float32_choice(facts: DeviceFacts) -> bool:
    """Return whether a device can compute float32 from pairs and by FFMA, and has nothing better: no wgmma."""
    return facts.kind == "cuda" and has_pairs(facts) and not has_wgmma(facts)


def whole_tiles(channels: int) -> int:
    """Return the output channels that are multiplied; those beyond the stored ones are not stored."""
    return ceil_div(channels, TILE_CHANNELS) * TILE_CHANNELS


def block_nbytes(element: DType, channels: int) -> int:
    """Return the bytes of a channel block, a row of shared memory."""
    return 128 if element.nbytes * element.padded(channels) % 128 == 0 else 64


def aligned(nbytes: int) -> int:
    """Round up to whole swizzle patterns, at which a tile in shared memory starts."""
    return ceil_div(nbytes, 1024) * 1024


def finish_bytes(op: Conv | Gemm, quantised: QuantisedOp, arena: WeightPacker) -> EpilogueParams:
    """Add the vectors that finish sums of 8-bit products."""
    outputs = op.weight.shape[0]
    inverse = 1.0 if quantised.y is None else quantised.y.inverse
    vectors = op.bias, quantised.dequant, np.full(outputs, inverse, np.float32)
    return EpilogueParams(*(arena.add_channels(vector, outputs, DType.S8) for vector in vectors))


def feature_map(value: TensorDesc, box: tuple[int, int, int, int]) -> TmaDescriptor:
    """Describe an NHWC value for the copy engine, planes in sequence; the box: channels, columns, rows, images."""
    batch, height, width, pitch = value.stored_shape
    size = value.element.nbytes
    dimensions = pitch, width, height, value.element.planes * batch
    strides = size * pitch, size * pitch * width, size * pitch * width * height
    return TmaDescriptor(value.pointer, value.element, dimensions, strides, box)


@dataclass(frozen=True)
class RawWeights:
    """Weights on their way into channel blocks: how many, and the strides of (output, channel, tap), in elements."""

    outputs: int
    channels: int
    taps: int
    strides: tuple[int, int, int]
    padded: int = 0  # channels that blocks are packed for, where these are more: zeros


def pack_raw(
    weight: npt.NDArray[np.generic], rows: RawWeights, element: DType, block: int, arena: WeightPacker
) -> Pointer:
    """Pack float32 weights (int8 for 8-bit elements) as (channel block, tap, plane, OCP, `block` channels)."""
    target, step = _pack(rows, element, block, STAGING, (STAGING, STAGING), arena)
    arena.add_packed(weight, step)
    return target


def pack_pairs(
    source: Pointer, rows: RawWeights, block: int, row_scale: Pointer, x: ActivationScale, arena: WeightPacker
) -> Pointer:
    """Pack float32 weights of the weight arena in the same order as scaled float16 pairs, once scales are known."""
    target, step = _pack(rows, DType.F16_PAIR, block, source, (row_scale, x.scale), arena)
    arena.finish.append(step)
    return target


def pack_known_pairs(
    weight: npt.NDArray[np.float32], rows: RawWeights, block: int, scales: tuple[Pointer, Pointer], arena: WeightPacker
) -> Pointer:
    """Pack weights in the same order whose scales (of rows, of channels of x) are known: no float32 copy is kept."""
    target, step = _pack(rows, DType.F16_PAIR, block, STAGING, scales, arena)
    arena.add_packed(weight, step)
    return target


def _pack(
    rows: RawWeights, element: DType, block: int, source: Pointer, scales: tuple[Pointer, Pointer], arena: WeightPacker
) -> tuple[Pointer, KernelLaunch]:
    stored, blocks = whole_tiles(element.padded(rows.outputs)), ceil_div(max(rows.channels, rows.padded), block)
    size = blocks * rows.taps * stored * block
    target = arena.reserve(element.nbytes * element.planes * size)
    grid, threads = linear(size)
    step = KernelLaunch(
        kernel=Kernel(PACK_SOURCE, "pack_blocks", (("ELEMENT", element.number), ("BLOCK", block))),
        grid=grid,
        block=threads,
        arguments=(
            *(target, source, *scales),
            *scalars(rows.outputs, stored, rows.channels, blocks, rows.taps, *rows.strides),
        ),
        label="pack weights",
    )
    return target, step
