"""3x3 convolution on Hopper's tensor cores: the Python side of kernels/conv/conv_wgmma.cu and conv_wgmma_small.cu.

The large kernel walks a list of tiles with one block on each multiprocessor; the small one has a block for each of many
small tiles and can split the sum. Which of them, and how it is cut, is a question of time alone: the device's table of
measured tiles knows it, else it is estimated.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final, TypeAlias

from vgg16gpu.compiler.graph.costs import flop
from vgg16gpu.compiler.graph.ops import Conv, Pads
from vgg16gpu.compiler.lowering import tile_choice
from vgg16gpu.compiler.lowering.base import Constants, Layer, Lowering, Places, WeightArena, ceil_div, scalars
from vgg16gpu.compiler.lowering.conv.common import label
from vgg16gpu.compiler.lowering.conv.conv_igemm import GROUP_ALIGNMENT
from vgg16gpu.compiler.lowering.layout import scales
from vgg16gpu.compiler.lowering.layout.pack import pack_conv
from vgg16gpu.compiler.lowering.tile_choice import EARLY_BATCH, Choice
from vgg16gpu.compiler.lowering.wgmma import (
    MIN_SHARED,
    TILE_CHANNELS,
    Finish,
    Rows,
    aligned,
    block_nbytes,
    computes,
    feature_map,
    finish_bytes,
    is_wide,
    pack_pairs,
    pack_raw,
    x_element,
    y_element,
)
from vgg16gpu.program.device_properties import DeviceFacts
from vgg16gpu.program.launches import Dim3, Kernel, Step, TensorMap
from vgg16gpu.program.values import Element, Pointer, Value

TAPS: Final = 9
COLUMN: Final = 8  # pixels that a product takes in a row
MAX_SHARED: Final = 227 << 10
MAX_SHORT_SUM: Final = 1152  # products
# What the sums of pairs are multiplied by, less 1, by `promote_taps`. The tensor cores round towards zero, so a sum
# loses 1.9e-8 of itself with every 16 products, until float32 registers take it: 2.3e-7 with 192 products (3 taps),
# 1.5e-7 with 128 (2 taps), see docs/performance.md. 2^-22 and 2^-23 are the next numbers that float32 can add to 1.
TRUNCATION: Final = {3: 2.0**-22, 2: 2.0**-23}
LARGE_ROWS: Final = (4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32)
SMALL_ROWS: Final = LARGE_ROWS[:7]
MAX_FLAT_WIDTH: Final = 63
EXCHANGES: Final = ((1, 0), (2, 1), (2, 2), (4, 2), (8, 2))  # (splits, how their sums meet)


@dataclass(frozen=True)
class Problem:
    """A convolution as the kernels see it."""

    batch: int
    height: int
    width: int
    channels: int  # stored
    out_channels: int  # stored
    element: Element
    out_element: Element
    pool: bool

    @property
    def key(self) -> str:
        """The name of the problem in tables of measured tiles."""
        return tile_choice.key("conv_wgmma", self)

    @property
    def block_nbytes(self) -> int:
        """Bytes of a channel block."""
        return block_nbytes(self.element, self.channels)

    @property
    def channel_blocks(self) -> int:
        """Channel blocks of the input."""
        return self.channels * self.element.nbytes // self.block_nbytes

    @property
    def rows_and_columns(self) -> tuple[int, int]:
        """The part of the output map that matters: a 2x2 pool drops an odd last row or column."""
        return (self.height // 2 * 2, self.width // 2 * 2) if self.pool else (self.height, self.width)

    @property
    def products(self) -> int:
        """Products on tensor cores for each one of the convolution."""
        return 3 if self.element is Element.F16_PAIR else 1

    def tap_cycles(self, pixels: int, out_channels: int, copies: float) -> float:
        """Estimated cycles of one tap of a channel block on a multiprocessor: products, or bringing its weights."""
        steps = self.block_nbytes // 32 * out_channels // TILE_CHANNELS
        product = max(pixels / 2, 16 + pixels / 4)  # tensor cores, or shared memory
        weights = self.element.planes * out_channels * self.block_nbytes
        return max(self.products * steps * product, weights / L2_BYTES_PER_CYCLE, copies * COPY_CYCLES)


def _staging(element: Element, columns: int, pool: bool) -> int:
    """Bytes that 64 channels of `columns` columns of 8 pixels are staged in."""
    kept = ceil_div(columns, 4) if pool else columns
    return element.planes * aligned(kept * COLUMN * TILE_CHANNELS * element.nbytes)


@dataclass(frozen=True)
class LargeTile:
    """Tile macros of conv_wgmma."""

    rows: int
    flat_pitch: int = 0
    pair_tiles: bool = False
    halo_stages: int = 2

    @property
    def width(self) -> int:
        """Pixels of a tile in a row of the map."""
        return self.flat_pitch or COLUMN

    @property
    def block_rows(self) -> int:
        """Rows of the map that a block computes at once."""
        return self.rows * (1 + self.pair_tiles)

    @property
    def pixels(self) -> int:
        """Width of a product."""
        return ceil_div(self.rows * self.width, 16) * 16

    @property
    def out_channels(self) -> int:
        """Output channels that a block computes at once."""
        return TILE_CHANNELS * (2 - self.pair_tiles)

    @property
    def halo(self) -> tuple[int, int]:
        """(columns, rows) of the pixels that a block reads."""
        if not self.flat_pitch:
            return COLUMN + 2, self.block_rows + 2
        width = self.flat_pitch
        read = (self.block_rows - self.rows) * width + self.pixels + 2 * width + 2
        return width, ceil_div(read, width)

    def shared(self, problem: Problem, weight_stages: int) -> int:
        """Bytes of shared memory."""
        columns, rows = self.halo
        halo = self.halo_stages * problem.element.planes * aligned(columns * rows * problem.block_nbytes)
        weights = weight_stages * self.taps(problem) * self.out_channels * problem.block_nbytes
        staging = 2 * _staging(problem.element, self.pixels // 8, problem.pool and not self.flat_pitch)
        if problem.pool and self.flat_pitch:  # by both warpgroups, of what both have staged
            staging += self.rows * (problem.width // 2) * TILE_CHANNELS * problem.element.nbytes
        return 1024 + halo + weights + staging + 16 * (self.halo_stages + weight_stages)

    def taps(self, problem: Problem) -> int:
        """Tap planes of a weight stage: copies below 16 KB would come too slowly."""
        return 3 if problem.block_nbytes < 128 else 1

    def weight_stages(self, problem: Problem) -> int:
        """As many as fit, up to 8; less than 4 would not cover the way from memory."""
        return max((n for n in range(4, 9) if self.shared(problem, n) <= MAX_SHARED), default=0)

    def tiles(self, problem: Problem) -> tuple[int, int, int]:
        """(along the channels, along x, along y)."""
        height, width = problem.rows_and_columns
        across = 1 if self.flat_pitch else ceil_div(width, COLUMN)
        return problem.out_channels // self.out_channels, across, ceil_div(height, self.block_rows)

    def fits(self, problem: Problem, _: int) -> bool:
        """Whether the kernel can be built and launched with these macros for this problem."""
        if self.halo_stages != 2 or (self.rows not in LARGE_ROWS if not self.flat_pitch else self.rows < 1):
            return False
        sums = self.pixels // 2 * (3 if problem.element is Element.F16_PAIR else 1)
        pools = not problem.pool or (self.pair_tiles and problem.element.planes == 1)
        flat = not self.flat_pitch or (self.flat_pitch == problem.width + 1 >= COLUMN and pools)
        whole = problem.out_channels % self.out_channels == 0
        return flat and whole and self.pixels <= 256 and sums <= 168 and self.weight_stages(problem) > 0

    def cycles(self, problem: Problem, multiprocessors: int) -> float:
        """Estimated time of the launch."""
        channels, across, down = self.tiles(problem)
        tiles = channels * across * down * problem.batch
        taps = TAPS * problem.channel_blocks
        copies = problem.element.planes / self.taps(problem)
        tap = problem.tap_cycles(self.pixels * (1 + self.pair_tiles), self.out_channels, copies)
        one = taps * tap + TILE_EPILOGUE_CYCLES
        return LAUNCH_CYCLES + BLOCK_CYCLES + ceil_div(tiles, multiprocessors) * one


@dataclass(frozen=True)
class SmallTile:
    """Tile macros of conv_wgmma_small."""

    rows: int = 14
    splits: int = 1
    exchange: int = 0
    blocks_per_sm: int = 1
    halo_stages: int = 2
    taps: int = 3  # of a weight stage

    def shared(self, problem: Problem, weight_stages: int) -> int:
        """Bytes of shared memory."""
        element = problem.element
        halo = element.planes * aligned((COLUMN + 2) * (self.rows + 2) * problem.block_nbytes)
        weights = element.planes * self.taps * TILE_CHANNELS * problem.block_nbytes
        slice_rows = self.slice_rows(problem.pool)
        received = slice_rows * 2048 if self.exchange == 1 else 0
        epilogue = aligned(received + _staging(element, slice_rows, problem.pool))
        return max(self.halo_stages * halo + weight_stages * weights, epilogue) + 2048

    def slice_rows(self, pool: bool) -> int:
        """Rows that each share of a split finishes."""
        unit = 2 if pool else 1
        return ceil_div(ceil_div(self.rows, self.splits), unit) * unit

    def store_rows(self, pool: bool) -> int:
        """Rows of one store."""
        rows = self.slice_rows(pool)
        return rows if self.rows % rows == 0 else 2 if pool else 1

    def weight_stages(self, problem: Problem) -> int:
        """As many as are needed and fit with `blocks_per_sm` blocks on a multiprocessor; 0 if fewer than two fit."""
        share = (228 << 10) // self.blocks_per_sm - 1024
        needed = ceil_div(problem.channel_blocks, self.splits) * TAPS // self.taps
        fitting = [n for n in range(2, 17) if self.shared(problem, n) <= min(share, MAX_SHARED)]
        return min(max(fitting, default=0), max(2, needed))

    def tiles(self, problem: Problem) -> tuple[int, int, int]:
        """(along the channels, along x, along y)."""
        height, width = problem.rows_and_columns
        return problem.out_channels // TILE_CHANNELS, ceil_div(width, COLUMN), ceil_div(height, self.rows)

    def blocks(self, problem: Problem) -> int:
        """Size of the grid."""
        channels, across, down = self.tiles(problem)
        return channels * across * down * problem.batch * self.splits

    def workspace_nbytes(self, problem: Problem) -> int:
        """Room for the shares of split sums."""
        if self.exchange != 2:
            return 0
        return self.blocks(problem) * self.splits * self.slice_rows(problem.pool) * 2048

    @staticmethod
    def stage_taps(element: Element) -> tuple[int, ...]:
        """Taps that a weight stage may hold."""
        return (1, 3) if element is Element.F16_PAIR else (3, 9)

    def fits(self, problem: Problem, multiprocessors: int) -> bool:
        """Whether the kernel can be built and launched with these macros for this problem."""
        known = self.rows in SMALL_ROWS and (self.splits, self.exchange) in EXCHANGES
        known &= self.blocks_per_sm in (1, 2, 3) and self.halo_stages in (1, 2)
        if not known or self.taps not in self.stage_taps(problem.element):
            return False
        deep = problem.channel_blocks >= self.splits and problem.element is problem.out_element
        sums = 4 * self.rows * (3 if problem.element is Element.F16_PAIR else 1)
        if sums > (168, 84, 64)[self.blocks_per_sm - 1]:  # registers of a thread
            return False
        resident = self.exchange != 2 or self.blocks(problem) <= multiprocessors * self.blocks_per_sm
        one_share = ceil_div(problem.channel_blocks, self.splits) <= self.halo_stages
        halos = self.halo_stages > 1 or one_share or problem.element is Element.F16_PAIR
        return deep and resident and halos and self.weight_stages(problem) > 0

    def cycles(self, problem: Problem, multiprocessors: int) -> float:
        """Estimated time of the launch."""
        taps = TAPS * ceil_div(problem.channel_blocks, self.splits)
        one = taps * problem.tap_cycles(COLUMN * self.rows, TILE_CHANNELS, 1 / self.taps)
        waves, rest = divmod(self.blocks(problem), multiprocessors * self.blocks_per_sm)
        busy = waves * self.blocks_per_sm + min(self.blocks_per_sm, ceil_div(rest, multiprocessors))
        starts = waves + (rest > 0)
        return LAUNCH_CYCLES + busy * one + starts * BLOCK_CYCLES + EXCHANGE_CYCLES[self.exchange]


CYCLE_SECONDS: Final = 0.55e-9

# Measured on an H200 inside the kernels, in cycles.
LAUNCH_CYCLES: Final = 1500
COPY_CYCLES: Final = 330  # between two copies that one thread starts
L2_BYTES_PER_CYCLE: Final = 36  # of one multiprocessor, when all read
TILE_EPILOGUE_CYCLES: Final = 1200
BLOCK_CYCLES: Final = 3500  # setup, the first halo, the epilogue
EXCHANGE_CYCLES: Final = (0, 2400, 4200)

Tile: TypeAlias = LargeTile | SmallTile
KINDS: Final[dict[str, type[Tile]]] = {kind.__name__: kind for kind in (LargeTile, SmallTile)}


@dataclass(frozen=True)
class Cut:
    """How a problem is cut: the tile and its launch."""

    problem: Problem
    tile: Tile
    multiprocessors: int
    early: bool  # the launch may start before the one before it has ended

    @cached_property
    def kernel(self) -> Kernel:
        """The kernel compiled with the tile's macros."""
        problem, tile = self.problem, self.tile
        macros: dict[str, int] = {"ELEMENT": problem.element.number, "POOL": int(problem.pool)}
        macros |= {"BLOCK_BYTES": problem.block_nbytes, "TILE_ROWS": tile.rows, "HALO_STAGES": tile.halo_stages}
        macros["WEIGHT_STAGES"] = tile.weight_stages(problem)
        if problem.element is Element.F16_PAIR:
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
def candidates(problem: Problem, multiprocessors: int) -> tuple[Choice[Tile], ...]:
    """Every tile that is worth a try, the one with the least estimated time first."""
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
    return tuple(Choice(tile, early=problem.batch <= EARLY_BATCH) for tile in tiles)


def choose(problem: Problem, facts: DeviceFacts) -> Cut:
    """The cut that the device's table has, where it fits, or the one with the least estimated time."""
    sms = facts.multiprocessors
    choice = tile_choice.found(facts, problem.key, KINDS)
    if choice is None or not choice.tile.fits(problem, sms):
        choice = candidates(problem, sms)[0]
    return Cut(problem, choice.tile, sms, choice.early)


def problem_of(layer: Layer) -> Problem:
    """The convolution of a layer."""
    batch, channels, height, width = layer.x_shape
    op: Conv = layer.op
    element, out_element = x_element(layer), y_element(layer)
    stored = element.padded(channels), out_element.padded(op.weight.shape[0])
    return Problem(batch, height, width, *stored, element, out_element, op.pool)


def is_same_3x3(op: Conv) -> bool:
    """A 3x3 window, stride 1, one pixel of padding: the output is as large as the input."""
    return op.window.kernel == (3, 3) and op.window.strides == (1, 1) and op.window.pads == Pads(1, 1, 1, 1)


def promote_taps(channels: int) -> int:
    """Taps of a channel block that the tensor cores sum, of pairs, before they are added in registers.

    128 products, or 192 where the sum is so long that float32 arithmetic itself loses more.
    """
    return 2 if channels * TAPS <= MAX_SHORT_SUM else 3


def supports(layer: Layer) -> bool:
    """Same-size 3x3 convolutions of more than a few channels."""
    return computes_3x3(layer) and is_wide(layer, layer.x_shape[1])


def computes_3x3(layer: Layer) -> bool:
    """Same-size 3x3 convolutions; quantised ones whose result is wanted as integers."""
    return is_same_3x3(layer.op) and computes(layer) and y_element(layer) is not Element.F32


def weights(layer: Layer, arena: WeightArena) -> Constants:
    """Packed weights, then bias, dequant and output scale."""
    op: Conv = layer.op
    element = x_element(layer)
    outputs, channels = op.weight.shape[:2]
    stored = element.padded(outputs)
    block = block_nbytes(element, channels) // element.nbytes
    in_file = Rows(outputs, channels, TAPS, (channels * TAPS, TAPS, 1))
    if layer.quantised is not None:
        packed = pack_raw(layer.quantised.weight, in_file, Element.S8, block, arena)
        return packed, *finish_bytes(op, layer.quantised, arena).arguments
    bias = arena.add_channels(op.bias, outputs, element)
    if element is not Element.F16_PAIR:
        return pack_raw(op.weight, in_file, element, block, arena), bias, bias, bias
    assert layer.x_scaling is not None  # pairs have scales
    assert layer.y_scaling is not None
    source = pack_conv(op.weight, GROUP_ALIGNMENT, arena)
    columns = Element.F32.padded(outputs)
    strides = (1, columns, columns * Element.F32.padded(channels))
    known = scales.Rows(source, outputs, channels, TAPS, *strides)
    row_scales = scales.scale_rows(
        known,
        stored,
        layer.x_scaling,
        layer.y_scaling.level,
        arena,
        folds=True,
        correction=1 + TRUNCATION[promote_taps(element.padded(channels))],
    )
    rows = Rows(outputs, channels, TAPS, strides)
    packed = pack_pairs(source, rows, block, row_scales.scale, layer.x_scaling, arena)
    return packed, bias, row_scales.dequant, layer.y_scaling.scale


def workspace_nbytes(layer: Layer) -> int:
    """Room for the shares of split sums."""
    cut = choose(problem_of(layer), layer.facts)
    return cut.tile.workspace_nbytes(cut.problem) if isinstance(cut.tile, SmallTile) else 0


def counters(layer: Layer) -> int:
    """A word for each tile whose sum is split through the workspace."""
    cut = choose(problem_of(layer), layer.facts)
    if isinstance(cut.tile, LargeTile) or cut.tile.exchange != 2:
        return 0
    return cut.tile.blocks(cut.problem) // cut.tile.splits


def steps(layer: Layer, x: Value, y: Value, constants: Constants, places: Places) -> tuple[Step, ...]:
    """One launch."""
    cut = choose(problem_of(layer), layer.facts)
    finish = Finish(*constants[1:])
    make = _large if isinstance(cut.tile, LargeTile) else _small
    return (make(layer, cut, x, y, constants, finish, places),)


def weight_map(problem: Problem, packed: Pointer, box_rows: int, units: int) -> TensorMap:
    """Packed weights for the copy engine; a box has so many output channels of a channel block, and tap planes."""
    element, nbytes = problem.element, problem.block_nbytes
    block = nbytes // element.nbytes
    slabs = problem.channel_blocks * TAPS * element.planes
    dimensions = block, problem.out_channels, slabs
    strides = nbytes, nbytes * problem.out_channels
    return TensorMap(packed, element, dimensions, strides, (block, box_rows, units))


def _step(layer: Layer, cut: Cut, x: Value, y: Value, grid: int, threads: int, arguments: tuple[object, ...]) -> Step:
    op: Conv = layer.op
    return Step(
        kernel=cut.kernel,
        grid=Dim3(grid),
        block=Dim3(threads),
        arguments=arguments,  # type: ignore[arg-type]
        shared=cut.shared,
        flop=flop(op, x.shape),
        nbytes=x.nbytes + y.nbytes + x.element.nbytes * x.element.planes * op.weight.size,
        names=op.names,
        label=label(op),
        early=cut.early,
    )


def _large(layer: Layer, cut: Cut, x: Value, y: Value, constants: Constants, finish: Finish, places: Places) -> Step:
    tile, problem = cut.tile, cut.problem
    assert isinstance(tile, LargeTile)
    channels, across, down = tile.tiles(problem)
    total = channels * across * down * problem.batch
    block = problem.block_nbytes // problem.element.nbytes
    stored = tile.width, tile.rows
    if problem.pool:
        stored = (problem.width // 2, tile.rows) if tile.flat_pitch else (tile.width // 2, tile.rows // 2)
    arguments = (
        feature_map(x, (block, *tile.halo, 1)),
        weight_map(problem, constants[0], tile.out_channels, tile.taps(problem)),
        feature_map(y, (TILE_CHANNELS, *stored, 1)),
        *(*finish.arguments, places.maxima, places.control.error),
        *scalars(layer.number, problem.batch, problem.channel_blocks, channels, across, down, total),
        *scalars(problem.height, problem.width, 1, int(layer.op.relu)),
    )
    return _step(layer, cut, x, y, min(total, cut.multiprocessors), 384, arguments)


def _small(layer: Layer, cut: Cut, x: Value, y: Value, constants: Constants, finish: Finish, places: Places) -> Step:
    tile, problem = cut.tile, cut.problem
    assert isinstance(tile, SmallTile)
    channels, across, down = tile.tiles(problem)
    block = problem.block_nbytes // problem.element.nbytes
    rows = tile.store_rows(problem.pool)
    stored = (COLUMN // 2, rows // 2) if problem.pool else (COLUMN, rows)
    arguments = (
        feature_map(x, (block, COLUMN + 2, tile.rows + 2, 1)),
        weight_map(problem, constants[0], TILE_CHANNELS, tile.taps * problem.element.planes),
        feature_map(y, (TILE_CHANNELS, *stored, 1)),
        *(*finish.arguments, places.workspace, places.counters, places.maxima, places.control.error),
        *scalars(layer.number, problem.batch, problem.channel_blocks, channels, across, down),
        *scalars(problem.height, problem.width, 1, int(layer.op.relu)),
    )
    return _step(layer, cut, x, y, tile.blocks(problem), 160, arguments)


LOWERING = Lowering(
    Conv,
    steps,
    weights,
    workspace_nbytes,
    counters,
    family="wgmma",
    supports=supports,
    takes=lambda layer: (x_element(layer),),
    gives=lambda layer, _: y_element(layer),
)
