"""Convolution on the tensor cores of any card since Turing: the Python side of kernels/conv/conv_mma.cu.

The 3x3 convolutions of VGG may run on conv_mma_3x3 instead, where that is estimated to be faster.
"""

from __future__ import annotations

from vgg16gpu.compiler.graph.ops import Conv
from vgg16gpu.compiler.op_kernels.activation import activated, activation
from vgg16gpu.compiler.op_kernels.base import OpContext, OpKernel, OpMemory, WeightPacker, ceil_div, scalars
from vgg16gpu.compiler.op_kernels.conv.common import label
from vgg16gpu.compiler.op_kernels.conv.conv_mma_3x3 import (
    CPU_PAIR_TILE,
    MAX_IMAGES,
    PAIR_TILES,
    TILES,
    HaloTile,
    fits,
    has_halos,
    pair_cycles,
)
from vgg16gpu.compiler.op_kernels.layout.pack import pack_gemm
from vgg16gpu.compiler.op_kernels.mma import (
    CONV_VARIANTS,
    CPU_CONV_TILE,
    PAIR_CONV_TILES,
    MmaTile,
    MmaWeights,
    choose_conv_tile,
    conv_grid,
    conv_time,
    estimated_time,
    output_dtype,
    starts_early,
    supports,
    with_finish,
    x_element,
)
from vgg16gpu.compiler.op_kernels.mma_pairs import CHANNELS
from vgg16gpu.errors import ModelError
from vgg16gpu.program.launch import Dim3, KernelLaunch
from vgg16gpu.program.types import DType, TensorDesc

VARIANTS = CONV_VARIANTS  # tools/ptxas.py


def weights(layer: OpContext[Conv], arena: WeightPacker) -> MmaWeights:
    """Pack weights as (OC, KH, KW, padded C) of the element, and their vectors."""
    op = layer.op
    element = x_element(layer)
    raw = op.weight if layer.quantised is None else layer.quantised.weight
    channels = op.weight.shape[1]
    taps = op.window.kernel[0] * op.window.kernel[1]
    stored = DType.S8 if layer.quantised is not None else element
    packed = pack_gemm(raw, channels, taps, arena, stored, element.padded(channels))
    return with_finish(packed, layer, arena)


def steps(
    layer: OpContext[Conv], x: TensorDesc, y: TensorDesc, held: MmaWeights, places: OpMemory
) -> tuple[KernelLaunch, ...]:
    """Return one launch, of conv_mma or of conv_mma_3x3."""
    op = layer.op
    window = op.window
    out_h, out_w = window.output_size(x.shape[2], x.shape[3])
    if op.pool:
        out_h, out_w = out_h // 2 * 2, out_w // 2 * 2
    images, out_channels = x.shape[0], op.weight.shape[0]
    tile = _tile(layer, x, out_h, out_w)
    if isinstance(tile, HaloTile):
        _check_limits(layer, x, MAX_IMAGES, ceil_div(images * out_h * out_w, tile.rows * tile.columns))
        kernel = tile.kernel(x.element, y.element, op.pool)
        blocks = tile.blocks(images, out_h, out_w, out_channels)
        geometry = scalars(images, x.shape[2], x.shape[3], x.pitch, out_channels, y.pitch)
    else:
        rows = images * out_h * out_w
        # The pixels of a tile come from so many images, at most.
        _check_limits(layer, x, 2 + tile.px * images // rows, ceil_div(rows, tile.px))
        kernel = tile.conv_kernel(x.element, y.element, op.pool)
        blocks = conv_grid(tile, rows, out_channels).x
        geometry = (
            *scalars(rows, x.shape[2], x.shape[3], x.pitch, out_h, out_w, out_channels, y.pitch),
            *scalars(*window.kernel, *window.strides, window.pads.top, window.pads.left),
        )
    return (
        KernelLaunch(
            kernel=activated(kernel, op),
            grid=Dim3(blocks),
            block=Dim3(tile.threads),
            arguments=(y.pointer, places.maxima, x.pointer, *held, *geometry, *activation(op), *scalars(1)),
            shared=tile.shared,
            flop=op.flop(x.shape),
            nbytes=x.nbytes + y.nbytes + x.element.nbytes * x.element.planes * op.weight.size,
            names=op.names,
            label=label(op),
            programmatic=starts_early(layer.facts, x.shape[0]),
        ),
    )


def _tile(layer: OpContext[Conv], x: TensorDesc, out_h: int, out_w: int) -> MmaTile | HaloTile:
    """Return the tile with the least estimated time."""
    if x.element is DType.F16_PAIR:
        return _pair_tile(layer, x, out_h, out_w)
    if layer.facts.kind == "cpu":
        return CPU_CONV_TILE
    images, out_channels, facts = x.shape[0], layer.op.weight.shape[0], layer.facts
    device = facts.multiprocessors, facts.shared_nbytes
    plain = choose_conv_tile(images * out_h * out_w, out_channels, *device)
    times: dict[MmaTile | HaloTile, float] = {plain: conv_time(plain, images * out_h * out_w, out_channels, *device)}
    if fits(layer, x):
        for tile in (tile for tile in TILES if tile.shared <= facts.shared_nbytes):
            blocks = tile.blocks(images, out_h, out_w, out_channels)
            times[tile] = estimated_time(tile, blocks, tile.outputs, *device)
    return min(times, key=lambda tile: times[tile])


def _pair_tile(layer: OpContext[Conv], x: TensorDesc, out_h: int, out_w: int) -> MmaTile | HaloTile:
    """Return the tile for pairs: of one kernel whatever the batch, so that the bits are the same."""
    facts, images, out_channels = layer.facts, x.shape[0], layer.op.weight.shape[0]
    device = facts.multiprocessors, facts.shared_nbytes
    if has_halos(layer.op, x.shape[3]):
        halos = [tile for tile in PAIR_TILES if tile.shared <= facts.shared_nbytes and tile.can(pool=layer.op.pool)]
        groups = x.pitch // CHANNELS
        times = {
            tile: pair_cycles(tile, tile.blocks(images, out_h, out_w, out_channels), groups, *device) for tile in halos
        }
        return CPU_PAIR_TILE if facts.kind == "cpu" else min(halos, key=lambda tile: times[tile])
    if facts.kind == "cpu":
        return PAIR_CONV_TILES[0]
    return choose_conv_tile(images * out_h * out_w, out_channels, *device, PAIR_CONV_TILES)


def _check_limits(layer: OpContext[Conv], x: TensorDesc, images: int, tiles: int) -> None:
    """Raise ModelError beyond 16 bits for a map's rows and columns, 32 for the bytes of a tile's images."""
    op = layer.op
    image = x.plane_nbytes // x.shape[0]
    side = max(*x.shape[2:], *op.window.kernel, op.window.pads.top, op.window.pads.left)
    if side >= 1 << 15 or image * images >= 1 << 31 or tiles >= 1 << 25:
        raise ModelError(
            f"Conv '{op.y}': its input {x.shape}, padded by {tuple(op.window.pads)}, is too large; maps and kernels "
            "may have up to 32767 rows and columns and the images of a tile 2 GB; use a smaller image or batch"
        )


OP_KERNEL = OpKernel(
    Conv,
    steps,
    weights,
    family="mma",
    supports=supports,
    input_dtypes=lambda layer: (x_element(layer),),
    output_dtype=output_dtype,
)
