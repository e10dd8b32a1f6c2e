"""Convolution + bias + ReLU + 2x2 max-pool as implicit GEMM: the Python side of kernels/conv/conv_igemm.cu."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vgg16gpu.compiler.graph.ops import Conv, Shape
from vgg16gpu.compiler.op_kernels.activation import activated, activation
from vgg16gpu.compiler.op_kernels.base import (
    OpContext,
    OpKernel,
    OpMemory,
    PlainWeights,
    WeightPacker,
    ceil_div,
    linear,
    scalars,
)
from vgg16gpu.compiler.op_kernels.conv.common import GROUP_ALIGNMENT, label
from vgg16gpu.compiler.op_kernels.layout.pack import pack_conv
from vgg16gpu.errors import ModelError
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch
from vgg16gpu.program.types import DeviceFacts, Pointer, TensorDesc, padded_channels

SOURCE = "conv_igemm.cu"

# The reduction is summed in groups: about 288 products keep the error of a group near 2e-7 (sequential sums of 576 have
# 3e-7, of 4608 9e-7), and more than 8 groups would make the workspace of a split reduction large. Groups are
# multiples of GROUP_ALIGNMENT, and so of every TILE_K below.
MIN_GROUP = 288
MAX_GROUPS = 8


@dataclass(frozen=True)
class ConvTile:
    """Tile macros of the kernel; none of them changes a bit of the result."""

    px: int
    oc: int
    k: int = 16
    thread_px: int = 8
    thread_oc: int = 8
    stages: int = 3
    min_blocks: int = 3  # resident on a multiprocessor: caps the registers
    alone: float = 0.9  # speed of a multiprocessor with one block; 1 is WIDE_TILE with `min_blocks` (on an H200)
    full: float = 1.0  # speed with `min_blocks` of them

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return (self.px // self.thread_px) * (self.oc // self.thread_oc)

    @property
    def dynamic_shared(self) -> int:
        """Bytes of the running sums."""
        return 4 * self.px * self.oc

    @property
    def shared(self) -> int:
        """Bytes of shared memory in all."""
        return 4 * self.stages * (self.px * (self.k + 4) + self.k * self.oc) + self.dynamic_shared

    def kernel(self, name: str, pool: bool) -> Kernel:
        """Return the kernel with these macros."""
        defines = (
            ("TILE_PX", self.px),
            ("TILE_OC", self.oc),
            ("TILE_K", self.k),
            ("THREAD_PX", self.thread_px),
            ("THREAD_OC", self.thread_oc),
            ("STAGES", self.stages),
            ("MIN_BLOCKS", self.min_blocks),
            ("POOL", int(pool)),
        )
        return Kernel(SOURCE, name, defines)


WIDE_TILE = ConvTile(px=64, oc=128)
LARGE_TILE = ConvTile(px=128, oc=64, alone=0.87, full=0.97)
SMALL_TILE = ConvTile(px=64, oc=64, thread_oc=4, min_blocks=4, alone=0.75, full=0.96)  # fits every card
TILES = (WIDE_TILE, LARGE_TILE, SMALL_TILE)
VARIANTS = tuple(tile.kernel("", pool).defines for tile in TILES for pool in (False, True))  # tools/ptxas.py
MAX_TILE_PX = max(tile.px for tile in TILES)

# What sharing a reduction costs, in products that a multiprocessor could have computed meanwhile: the workspace is
# written and read (in the L2 cache of an H200: about 5 products of the whole card per byte), and there is one more
# launch (2 us).
PRODUCTS_PER_BYTE = 5
PRODUCTS_PER_LAUNCH = 300_000


@dataclass(frozen=True)
class ConvMatrix:
    """The convolution as a matrix product."""

    rows: int  # output pixels that take part
    columns: int  # output channels, padded
    reduction: int  # KH * KW * padded C
    group: int  # products in a group of the sum
    map: tuple[int, int]  # rows and columns of the output before pooling; of the windows that are pooled

    @property
    def groups(self) -> int:
        """Groups of the reduction."""
        return ceil_div(self.reduction, self.group)


@dataclass(frozen=True)
class ConvGeometry(ConvMatrix):
    """The same, and how it is cut for a device."""

    tile: ConvTile
    splits: int  # blocks that share a reduction


def group_length(reduction: int) -> int:
    """Return the products that are summed in sequence, by the reduction alone, so that the bits never change."""
    share = ceil_div(ceil_div(reduction, MAX_GROUPS), GROUP_ALIGNMENT) * GROUP_ALIGNMENT
    return max(MIN_GROUP, share)


def matrix(op: Conv, x_shape: Shape) -> ConvMatrix:
    """Return `op` on an input of `x_shape` as a matrix product. Raises ModelError beyond the kernel's indices."""
    batch, channels, height, width = x_shape
    out_channels, _, kernel_h, kernel_w = op.weight.shape
    out_h, out_w = op.window.output_size(height, width)
    if op.pool:
        out_h, out_w = out_h // 2 * 2, out_w // 2 * 2
    rows = batch * out_h * out_w
    columns = padded_channels(out_channels)
    reduction = kernel_h * kernel_w * padded_channels(channels)
    _check_limits(op, x_shape, rows, columns)
    return ConvMatrix(rows, columns, reduction, group_length(reduction), (out_h, out_w))


def geometry(op: Conv, x_shape: Shape, facts: DeviceFacts) -> ConvGeometry:
    """Return the matrix product and tile of `op` on `x_shape`. Raises ModelError beyond the kernel's indices."""
    found = matrix(op, x_shape)
    tile, splits = choose_cut(found.rows, found.columns, found.groups, found.group, facts)
    return ConvGeometry(**vars(found), tile=tile, splits=splits)


def choose_cut(rows: int, columns: int, groups: int, group: int, facts: DeviceFacts) -> tuple[ConvTile, int]:
    """Return (tile, blocks that share a reduction) with the least estimated time; it never changes a bit."""
    tiles = [tile for tile in TILES if tile.shared <= facts.shared_nbytes]
    splits = [ceil_div(groups, per_block) for per_block in range(1, groups + 1)] if facts.shares_sums else [1]
    cuts = [(tile, split) for tile in tiles for split in dict.fromkeys(splits)]

    def time(cut: tuple[ConvTile, int]) -> float:
        return estimated_products(rows, columns, groups, group, cut[0], cut[1], facts.multiprocessors)

    return min(cuts, key=time)


def estimated_products(
    rows: int, columns: int, groups: int, group: int, tile: ConvTile, splits: int, multiprocessors: int
) -> float:
    """Estimate a convolution's time, counted in products of one multiprocessor at full load."""
    blocks = ceil_div(rows, tile.px) * ceil_div(columns, tile.oc) * splits
    waves, rest = divmod(ceil_div(blocks, multiprocessors), tile.min_blocks)
    speed = tile.alone + (tile.full - tile.alone) * (rest - 1) / (tile.min_blocks - 1)
    block_products = tile.px * tile.oc * ceil_div(groups, splits) * group
    products = block_products * (waves * tile.min_blocks / tile.full + rest / speed)
    if splits == 1:
        return products
    return products + PRODUCTS_PER_LAUNCH + 8 * groups * rows * columns * PRODUCTS_PER_BYTE / multiprocessors


def _check_limits(op: Conv, x_shape: Shape, rows: int, columns: int) -> None:
    """Raise ModelError beyond the kernel's indices: 16 bits for rows and columns, 32 for a tile's bytes and vectors."""
    pads, strides = op.window.pads, op.window.strides
    batch, _, height, width = x_shape
    out_h, out_w = op.window.output_size(height, width)
    ends = MAX_TILE_PX // (out_h * out_w) + 1  # of images, within a tile at most
    within = (MAX_TILE_PX // out_w + 3) * strides[0]  # rows of the input; a pooling window has two
    between = max(0, height - (out_h - 2) * strides[0])  # rows from one image's last pixel to the next one's first
    span = min(within + ends * between, batch * height) + op.window.kernel[0]
    span_nbytes = 4 * padded_channels(x_shape[1]) * width * span
    last_window = (out_h - 1) * strides[0] - pads.top, (out_w - 1) * strides[1] - pads.left  # where it starts
    side = max(*x_shape[2:], *op.window.kernel, pads.top, pads.left, *last_window)
    if side >= 1 << 15 or span_nbytes >= 1 << 31 or rows * columns // 4 >= 1 << 31:
        raise ModelError(
            f"Conv '{op.y}': its input {x_shape}, padded by {tuple(pads)}, is too large; maps and kernels may have up "
            "to 32767 rows and columns, the rows that a tile reads 2 GB and outputs 32 GB; use a smaller image or batch"
        )


def weights(layer: OpContext[Conv], arena: WeightPacker) -> PlainWeights:
    """Pack weights as (KH * KW * padded C, padded OC) with whole k-tiles of rows, bias as (padded OC,)."""
    op = layer.op
    packed = pack_conv(op.weight, GROUP_ALIGNMENT, arena)
    return PlainWeights(packed, arena.add_channels(op.bias, op.weight.shape[0]))


def workspace_nbytes(layer: OpContext[Conv]) -> int:
    """Return the bytes for the group sums of a split reduction."""
    shape = geometry(layer.op, layer.x_shape, layer.facts)
    return 4 * shape.groups * shape.rows * shape.columns if shape.splits > 1 else 0


def steps(
    layer: OpContext[Conv], x: TensorDesc, y: TensorDesc, held: PlainWeights, places: OpMemory
) -> tuple[KernelLaunch, ...]:
    """Return one launch, or two when the reduction is split."""
    op = layer.op
    weight, bias = held
    workspace = places.workspace
    shape = geometry(op, x.shape, layer.facts)
    tile, window = shape.tile, op.window
    groups_per_block = ceil_div(shape.groups, shape.splits)
    main = KernelLaunch(
        kernel=activated(tile.kernel("conv_igemm_f32", op.pool), op),
        grid=Dim3(ceil_div(shape.rows, tile.px), ceil_div(shape.columns, tile.oc), shape.splits),
        block=Dim3(tile.threads),
        arguments=(
            *(y.pointer, workspace, x.pointer, weight, bias),
            *scalars(shape.rows, x.shape[2], x.shape[3], x.pitch, *shape.map, shape.columns),
            *scalars(*window.kernel, *window.strides, window.pads.top, window.pads.left),
            *scalars(op.weight.shape[0], shape.group // tile.k, groups_per_block),
            *activation(op),
        ),
        shared=tile.dynamic_shared,
        flop=op.flop(x.shape),
        nbytes=x.nbytes + y.nbytes + 4 * (op.weight.size + op.weight.shape[0]),
        names=op.names,
        label=label(op),
    )
    return (main,) if shape.splits == 1 else (main, _reduce_step(op, y, shape, workspace, bias))


def _reduce_step(op: Conv, y: TensorDesc, shape: ConvGeometry, workspace: Pointer, bias: Pointer) -> KernelLaunch:
    """Return the launch that adds the group sums that the blocks of a split reduction left in the workspace."""
    grid, block = linear(math.prod(y.stored_shape) // 4)
    return KernelLaunch(
        kernel=activated(shape.tile.kernel("conv_igemm_reduce_f32", op.pool), op),
        grid=grid,
        block=block,
        arguments=(
            y.pointer,
            workspace,
            bias,
            *scalars(shape.rows, shape.columns, op.weight.shape[0], shape.groups),
            *activation(op),
        ),
        names=op.names,
        label=f"{label(op)}: add {shape.groups} group sums",
    )


OP_KERNEL = OpKernel(Conv, steps, weights, workspace_nbytes)
