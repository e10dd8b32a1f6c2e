"""3x3 convolution on Hopper's tensor cores: the Python side of kernels/conv/conv_wgmma.cu and conv_wgmma_small.cu.

The large kernel walks a list of tiles with one block on each multiprocessor; the small one has a block for each of many
small tiles and can split the sum. Which of them, and how it is cut, is a question of time alone: the device's table of
measured tiles knows it, else it is estimated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Final, Generic, NamedTuple

from vgg16gpu.compiler.graph.ops import Conv
from vgg16gpu.compiler.op_kernels import tile_choice
from vgg16gpu.compiler.op_kernels.activation import activated, activation
from vgg16gpu.compiler.op_kernels.base import Held, OpContext, OpKernel, OpMemory, WeightPacker, scalars
from vgg16gpu.compiler.op_kernels.conv import known_linear
from vgg16gpu.compiler.op_kernels.conv.common import GROUP_ALIGNMENT, TAPS, label
from vgg16gpu.compiler.op_kernels.conv.conv_wgmma_tiles import (
    COLUMN,
    EXCHANGES,
    KINDS,
    LARGE_ROWS,
    SMALL_ROWS,
    ConvDesc,
    LargeTile,
    SmallTile,
    Tile,
)
from vgg16gpu.compiler.op_kernels.conv.same_3x3 import computes_3x3
from vgg16gpu.compiler.op_kernels.layout import scales
from vgg16gpu.compiler.op_kernels.layout.pack import pack_conv
from vgg16gpu.compiler.op_kernels.tile_choice import PROGRAMMATIC_BATCH, Choice
from vgg16gpu.compiler.op_kernels.wgmma import (
    MIN_SHARED,
    TILE_CHANNELS,
    RawWeights,
    block_nbytes,
    feature_map,
    finish_bytes,
    is_wide,
    pack_pairs,
    pack_raw,
    stored_element,
    whole_tiles,
    x_element,
)
from vgg16gpu.program.launch import Argument, Dim3, Kernel, KernelLaunch, TmaDescriptor
from vgg16gpu.program.types import DeviceFacts, DType, Pointer, TensorDesc

MAX_SHORT_SUM: Final = 1152  # products
# What the sums of pairs are multiplied by, less 1, by `promote_taps`. The tensor cores round towards zero, so a sum
# loses 1.9e-8 of itself with every 16 products, until float32 registers take it: 2.3e-7 with 192 products (3 taps),
# 1.5e-7 with 128 (2 taps), see docs/performance.md. 2^-22 and 2^-23 are the next numbers that float32 can add to 1.
TRUNCATION: Final = {3: 2.0**-22, 2: 2.0**-23}

MAX_FLAT_WIDTH: Final = 63


class ConvWeights(NamedTuple, Generic[Held]):
    """What both kernels read beside their input: weights, and vectors with a float for each stored output channel.

    float16 and bfloat16 need no scales: in place of these stands `bias`, which is not read there.
    """

    weight: Held  # (channel block, tap, plane, OCP, channels of a block)
    bias: Held
    dequant: Held  # what takes the scales of weights and input out of a sum
    out_scale: Held  # what outputs are multiplied by before they are stored


@dataclass(frozen=True)
class Cut:
    """How a problem is cut: the tile and its launch."""

    problem: ConvDesc
    tile: Tile
    multiprocessors: int
    programmatic: bool  # as of a KernelLaunch

    @cached_property
    def kernel(self) -> Kernel:
        """The kernel compiled with the tile's macros."""
        problem, tile = self.problem, self.tile
        macros: dict[str, int] = {"ELEMENT": problem.element.number, "POOL": int(problem.pool)}
        macros |= {"KEEP": 1} if problem.kept else {}
        macros |= {"OUT_ELEMENT": problem.out_element.number} if problem.keeps_rest else {}
        macros |= {"BLOCK_BYTES": problem.block_nbytes, "TILE_ROWS": tile.rows, "HALO_STAGES": tile.halo_stages}
        macros["WEIGHT_STAGES"] = tile.weight_stages(problem)
        if problem.element is DType.F16_PAIR:
            macros["PROMOTE_TAPS"] = promote_taps(problem.channels)
        if isinstance(tile, LargeTile):
            macros |= {"OUT_ELEMENT": problem.out_element.number, "STAGE_UNITS": tile.taps(problem)}
            macros |= {"FLAT_PITCH": tile.flat_pitch, "PAIR_TILES": int(tile.pair_tiles)}
            return Kernel("conv_wgmma.cu", "conv_wgmma", tuple(macros.items()))
        macros |= {"SPLITS": tile.splits, "EXCHANGE": tile.exchange, "TAPS_PER_STAGE": tile.taps}
        macros["BLOCKS_PER_SM"] = tile.blocks_per_sm
        return Kernel("conv_wgmma_small.cu", "conv_wgmma_small", tuple(macros.items()))

    @property
    def shared(self) -> int:
        """Dynamic shared memory of a block, bytes."""
        needed = self.tile.shared(self.problem, self.tile.weight_stages(self.problem))
        alone = isinstance(self.tile, LargeTile) or self.tile.blocks_per_sm == 1
        return max(needed, MIN_SHARED) if alone else needed


@lru_cache(maxsize=1024)
def candidates(problem: ConvDesc, multiprocessors: int) -> tuple[Choice[Tile], ...]:
    """Return every tile that is worth a try, the one with the least estimated time first."""
    flat = [(count, problem.width + 1) for count in range(1, problem.height + 1) if problem.width <= MAX_FLAT_WIDTH]
    larges = [LargeTile(*cut, pair) for cut in [*((count, 0) for count in LARGE_ROWS), *flat] for pair in (False, True)]
    smalls = [
        SmallTile(count, splits, exchange, blocks, halos, taps)
        for count in SMALL_ROWS
        for splits, exchange in EXCHANGES
        for blocks in (1, 2, 3)
        for halos in (1, 2)
        for taps in SmallTile.stage_taps(problem.element)
    ]
    known: list[Tile] = [*larges, *smalls]
    tiles = [tile for tile in known if tile.fits(problem, multiprocessors)]
    tiles.sort(key=lambda tile: tile.cycles(problem, multiprocessors))
    return tuple(Choice(tile, programmatic=problem.batch <= PROGRAMMATIC_BATCH) for tile in tiles)


def choose(problem: ConvDesc, facts: DeviceFacts) -> Cut:
    """Return the cut with the tile in the device's table if it fits, else the one with the least estimated time."""
    sms = facts.multiprocessors
    known = replace(problem, out_element=problem.element) if problem.keeps_rest else problem  # as fast, but for bytes
    choice = tile_choice.measured(facts, known, KINDS, lambda tile: tile.fits(problem, sms))
    choice = choice or candidates(problem, sms)[0]
    return Cut(problem, choice.tile, sms, choice.programmatic)


def problem_of(layer: OpContext[Conv]) -> ConvDesc:
    """Return the convolution of a layer."""
    batch, channels, height, width = layer.x_shape
    op = layer.op
    element, out_element = x_element(layer), stored_element(layer)
    stored = element.padded(channels), whole_tiles(out_element.padded(op.weight.shape[0]))
    return ConvDesc(batch, height, width, *stored, element, out_element, op.pool, op.kept is not None)


def promote_taps(channels: int) -> int:
    """Return the taps of a channel block that tensor cores sum, for pairs, before registers add them.

    128 products, or 192 where the sum is so long that float32 arithmetic itself loses more.
    """
    return 2 if channels * TAPS <= MAX_SHORT_SUM else 3


def supports(layer: OpContext[Conv]) -> bool:
    """Return whether it is same-size 3x3 of more than a few channels; few outputs only in an image's gradient."""
    computes = known_linear.supports(layer) if known_linear.computes(layer) else computes_3x3(layer)
    return computes and is_wide(layer, layer.x_shape[1])


def weights(layer: OpContext[Conv], arena: WeightPacker) -> ConvWeights[Pointer]:
    """Pack weights and their vectors."""
    op = layer.op
    element = x_element(layer)
    outputs, channels = op.weight.shape[:2]
    stored = element.padded(outputs)
    block = block_nbytes(element, channels) // element.nbytes
    in_file = RawWeights(outputs, channels, TAPS, (channels * TAPS, TAPS, 1))
    if layer.quantised is not None:
        packed = pack_raw(layer.quantised.weight, in_file, DType.S8, block, arena)
        return ConvWeights(packed, *finish_bytes(op, layer.quantised, arena))
    if known_linear.computes(layer):
        correction = 1 + TRUNCATION[promote_taps(element.padded(channels))]
        return ConvWeights(*known_linear.weights(op, correction, block, arena))
    bias = unread = arena.add_channels(op.bias, outputs, element)
    if element is not DType.F16_PAIR:
        packed = pack_raw(op.weight, in_file, element, block, arena)
        if stored_element(layer) is DType.F16_PAIR and layer.y_scaling:  # by ones
            unread = layer.y_scaling.scale
        return ConvWeights(packed, bias=bias, dequant=unread, out_scale=unread)
    assert layer.x_scaling is not None  # pairs have scales
    assert layer.y_scaling is not None
    source = pack_conv(op.weight, GROUP_ALIGNMENT, arena)
    columns = DType.F32.padded(outputs)
    strides = (1, columns, columns * DType.F32.padded(channels))
    known = scales.WeightRows(source, outputs, channels, TAPS, *strides)
    row_scales = scales.scale_rows(
        known,
        stored,
        layer.x_scaling,
        layer.y_scaling.level,
        arena,
        folds=True,
        correction=1 + TRUNCATION[promote_taps(element.padded(channels))],
    )
    rows = RawWeights(outputs, channels, TAPS, strides)
    packed = pack_pairs(source, rows, block, row_scales.scale, layer.x_scaling, arena)
    return ConvWeights(packed, bias=bias, dequant=row_scales.dequant, out_scale=layer.y_scaling.scale)


def workspace_nbytes(layer: OpContext[Conv]) -> int:
    """Return the bytes for the shares of split sums."""
    cut = choose(problem_of(layer), layer.facts)
    return cut.tile.workspace_nbytes(cut.problem) if isinstance(cut.tile, SmallTile) else 0


def counters(layer: OpContext[Conv]) -> int:
    """Return one word for each tile whose sum is split through the workspace."""
    cut = choose(problem_of(layer), layer.facts)
    if isinstance(cut.tile, LargeTile) or cut.tile.exchange != 2:
        return 0
    return cut.tile.blocks(cut.problem) // cut.tile.splits


def steps(
    layer: OpContext[Conv], x: TensorDesc, y: TensorDesc, held: ConvWeights[Pointer], places: OpMemory
) -> tuple[KernelLaunch, ...]:
    """Return one launch."""
    cut = choose(problem_of(layer), layer.facts)
    make = _large if isinstance(cut.tile, LargeTile) else _small
    return (make(layer, cut, x, y, held, places),)


def weight_map(problem: ConvDesc, packed: Pointer, box_rows: int, units: int) -> TmaDescriptor:
    """Return packed weights for the copy engine; a box has `box_rows` output channels and `units` tap planes."""
    element, nbytes = problem.element, problem.block_nbytes
    block = nbytes // element.nbytes
    slabs = problem.channel_blocks * TAPS * element.planes
    dimensions = block, problem.out_channels, slabs
    strides = nbytes, nbytes * problem.out_channels
    return TmaDescriptor(packed, element, dimensions, strides, (block, box_rows, units))


def _step(
    layer: OpContext[Conv],
    cut: Cut,
    x: TensorDesc,
    ys: Sequence[TensorDesc],
    grid: int,
    threads: int,
    arguments: tuple[Argument, ...],
) -> KernelLaunch:
    op = layer.op
    return KernelLaunch(
        kernel=activated(cut.kernel, op),
        grid=Dim3(grid),
        block=Dim3(threads),
        arguments=arguments,
        shared=cut.shared,
        flop=op.flop(x.shape),
        nbytes=x.nbytes + sum(y.nbytes for y in ys) + x.element.nbytes * x.element.planes * op.weight.size,
        names=op.names,
        label=label(op),
        programmatic=cut.programmatic,
    )


def _large(
    layer: OpContext[Conv], cut: Cut, x: TensorDesc, y: TensorDesc, held: ConvWeights[Pointer], places: OpMemory
) -> KernelLaunch:
    tile, problem = cut.tile, cut.problem
    assert isinstance(tile, LargeTile)
    channels, across, down = tile.tiles(problem)
    total = channels * across * down * problem.batch
    block = problem.block_nbytes // problem.element.nbytes
    stored = tile.width, tile.rows
    if problem.pool:
        stored = (problem.width // 2, tile.rows) if tile.flat_pitch else (tile.width // 2, tile.rows // 2)
    arguments: tuple[Argument, ...] = (
        feature_map(x, (block, *tile.halo, 1)),
        weight_map(problem, held.weight, tile.out_channels, tile.taps(problem)),
        feature_map(y, (TILE_CHANNELS, *stored, 1)),
        *(feature_map(kept, (TILE_CHANNELS, tile.width, tile.rows, 1)) for kept in places.further),
        *(held.bias, held.dequant, held.out_scale, places.maxima, places.control.error),
        *scalars(layer.number, problem.batch, problem.channel_blocks, channels, across, down, total),
        *scalars(problem.height, problem.width, 1),
        *activation(layer.op),
    )
    return _step(layer, cut, x, (y, *places.further), min(total, cut.multiprocessors), 384, arguments)


def _small(
    layer: OpContext[Conv], cut: Cut, x: TensorDesc, y: TensorDesc, held: ConvWeights[Pointer], places: OpMemory
) -> KernelLaunch:
    tile, problem = cut.tile, cut.problem
    assert isinstance(tile, SmallTile)
    channels, across, down = tile.tiles(problem)
    block = problem.block_nbytes // problem.element.nbytes
    rows = tile.store_rows(problem.pool)
    stored = (COLUMN // 2, rows // 2) if problem.pool else (COLUMN, rows)
    arguments: tuple[Argument, ...] = (
        feature_map(x, (block, COLUMN + 2, tile.rows + 2, 1)),
        weight_map(problem, held.weight, TILE_CHANNELS, tile.taps * problem.element.planes),
        feature_map(y, (TILE_CHANNELS, *stored, 1)),
        *(feature_map(kept, (TILE_CHANNELS, COLUMN, rows, 1)) for kept in places.further),
        *(held.bias, held.dequant, held.out_scale),
        *(places.workspace, places.counters, places.maxima, places.control.error),
        *scalars(layer.number, problem.batch, problem.channel_blocks, channels, across, down),
        *scalars(problem.height, problem.width, 1),
        *activation(layer.op),
    )
    return _step(layer, cut, x, (y, *places.further), tile.blocks(problem), 160, arguments)


OP_KERNEL = OpKernel(
    Conv,
    steps,
    weights,
    workspace_nbytes,
    counters,
    family="wgmma",
    supports=supports,
    input_dtypes=lambda layer: (x_element(layer),),
    output_dtype=lambda layer, _: stored_element(layer),
    keeps=True,
)
