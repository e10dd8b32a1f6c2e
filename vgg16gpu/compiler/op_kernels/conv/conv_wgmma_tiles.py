"""The tiles of conv_wgmma.cu and conv_wgmma_small.cu: what each takes, which problems it fits, its estimated time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, TypeAlias

from vgg16gpu.compiler.op_kernels import tile_choice
from vgg16gpu.compiler.op_kernels.base import ceil_div
from vgg16gpu.compiler.op_kernels.conv.common import TAPS
from vgg16gpu.compiler.op_kernels.wgmma import TILE_CHANNELS, aligned, block_nbytes
from vgg16gpu.program.types import DType

COLUMN: Final = 8  # pixels that a product takes in a row
MAX_SHARED: Final = 227 << 10
LARGE_ROWS: Final = (4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32)
SMALL_ROWS: Final = LARGE_ROWS[:7]
EXCHANGES: Final = ((1, 0), (2, 1), (2, 2), (4, 2), (8, 2))  # (splits, how their sums meet)

CYCLE_SECONDS: Final = 0.55e-9

# Cycles, fitted to 1,171 times of layers on an H200 and an H100, see docs/performance.md, "Choosing tiles".
LAUNCH_CYCLES: Final = 1100
START_CYCLES: Final = 3500  # of conv_wgmma: setup, the first halo
COPY_CYCLES: Final = 330  # between two copies that one thread starts
L2_BYTES_PER_CYCLE: Final = 36  # of weights, for one multiprocessor when all read; conv_wgmma
TILE_CYCLES: Final = 2000  # of conv_wgmma, for each tile: its halo, without what is stored
TILE_BYTES_PER_CYCLE: Final = 32  # stored
BLOCK_CYCLES: Final = 2600  # of conv_wgmma_small: setup, the first halo, without what is stored
BLOCK_BYTES_PER_CYCLE: Final = 25  # stored
SMALL_L2_BYTES_PER_CYCLE: Final = 49  # of weights, as above; conv_wgmma_small
HALO_CYCLES: Final = 1450  # of conv_wgmma_small: a channel block whose halo has no stage of its own
EXCHANGE_CYCLES: Final = (0, 2600, 5000)
SHARE_CYCLES: Final = (0, 700, 2800)  # more of an exchange for each further block of a multiprocessor
REFILL_CYCLES: Final = {(1, 3): 400, (1, 9): 600, (2, 1): 190, (2, 3): 650}  # of a stage, by planes and its taps
REFILL_TOGETHER_CYCLES: Final = 150  # the same where other blocks compute meanwhile


@dataclass(frozen=True)
class ConvDesc:
    """A convolution as the kernels see it."""

    batch: int
    height: int
    width: int
    channels: int  # stored
    out_channels: int  # stored
    element: DType
    out_element: DType
    pool: bool
    kept: bool = False  # the map before the pool is stored, too

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
    def keeps_rest(self) -> bool:
        """Return whether float16 is stored with what its rounding has left."""
        return self.element is DType.F16 and self.out_element is DType.F16_PAIR

    @property
    def rows_and_columns(self) -> tuple[int, int]:
        """The part of the output map that matters: a 2x2 pool drops an odd last row or column."""
        drops = self.pool and not self.kept
        return (self.height // 2 * 2, self.width // 2 * 2) if drops else (self.height, self.width)

    @property
    def products(self) -> int:
        """Products on tensor cores for each one of the convolution."""
        return 3 if self.element is DType.F16_PAIR else 1

    def product_cycles(self, pixels: int, out_channels: int) -> float:
        """Estimate a multiprocessor's cycles for the products of one tap of a channel block."""
        steps = self.block_nbytes // 32 * out_channels // TILE_CHANNELS
        return self.products * steps * max(pixels / 2, 16 + pixels / 4)  # tensor cores, or shared memory

    def weight_nbytes(self, out_channels: int) -> int:
        """Return the bytes of the weights of one tap of a channel block."""
        return self.element.planes * out_channels * self.block_nbytes

    def stored_nbytes(self, pixels: int, out_channels: int) -> float:
        """Return the bytes stored for `pixels` times `out_channels` outputs."""
        kept = (0.25 if self.pool else 1) + self.kept
        return kept * pixels * out_channels * self.out_element.planes * self.out_element.nbytes


def _staging(element: DType, columns: int, pool: bool) -> int:
    """Return the bytes that stage 64 channels of `columns` columns of 8 pixels."""
    kept = ceil_div(columns, 4) if pool else columns
    return element.planes * aligned(kept * COLUMN * TILE_CHANNELS * element.nbytes)


@dataclass(frozen=True)
class LargeTile:
    """Tile macros of conv_wgmma."""

    table_name: ClassVar = "LargeTile"  # in tables of tiles

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

    def shared(self, problem: ConvDesc, weight_stages: int) -> int:
        """Return the bytes of shared memory."""
        columns, rows = self.halo
        halo = self.halo_stages * problem.element.planes * aligned(columns * rows * problem.block_nbytes)
        weights = weight_stages * self.taps(problem) * self.out_channels * problem.block_nbytes
        staging = 2 * _staging(problem.out_element, self.pixels // 8, problem.pool and not self.flat_pitch)
        if problem.kept:
            staging += 2 * _staging(problem.out_element, self.pixels // 8, pool=False)
        if problem.pool and self.flat_pitch:  # by both warpgroups, of what both have staged
            staging += self.rows * (problem.width // 2) * TILE_CHANNELS * problem.element.nbytes
        return 1024 + halo + weights + staging + 16 * (self.halo_stages + weight_stages)

    def taps(self, problem: ConvDesc) -> int:
        """Return the tap planes of a weight stage: copies below 16 KB would come too slowly."""
        return 3 if problem.block_nbytes < 128 else 1

    def weight_stages(self, problem: ConvDesc) -> int:
        """Return as many stages as fit, 4 to 8; 0 if fewer fit, which would not cover the way from memory."""
        return next((n for n in range(8, 3, -1) if self.shared(problem, n) <= MAX_SHARED), 0)

    def tiles(self, problem: ConvDesc) -> tuple[int, int, int]:
        """Return the tiles (along the channels, along x, along y)."""
        height, width = problem.rows_and_columns
        across = 1 if self.flat_pitch else ceil_div(width, COLUMN)
        return problem.out_channels // self.out_channels, across, ceil_div(height, self.block_rows)

    def fits(self, problem: ConvDesc, _: int) -> bool:
        """Return whether the kernel can be built and launched with these macros for this problem."""
        if self.halo_stages != 2 or (self.rows not in LARGE_ROWS if not self.flat_pitch else self.rows < 1):
            return False
        sums = self.pixels // 2 * (3 if problem.element is DType.F16_PAIR else 1)
        pools = not problem.pool or (self.pair_tiles and problem.out_element.planes == 1)
        flat = not self.flat_pitch or (self.flat_pitch == problem.width + 1 >= COLUMN and pools and not problem.kept)
        whole = problem.out_channels % self.out_channels == 0
        return flat and whole and self.pixels <= 256 and sums <= 168 and self.weight_stages(problem) > 0

    def cycles(self, problem: ConvDesc, multiprocessors: int) -> float:
        """Estimate the launch's cycles."""
        channels, across, down = self.tiles(problem)
        tiles = channels * across * down * problem.batch
        taps = TAPS * problem.channel_blocks
        pixels, copies = self.pixels * (1 + self.pair_tiles), problem.element.planes / self.taps(problem)
        weights = problem.weight_nbytes(self.out_channels) / L2_BYTES_PER_CYCLE
        tap = max(problem.product_cycles(pixels, self.out_channels), weights, copies * COPY_CYCLES)
        stored = problem.stored_nbytes(pixels, self.out_channels) / TILE_BYTES_PER_CYCLE
        one = taps * tap * self._slowdown(problem) + TILE_CYCLES + stored
        return LAUNCH_CYCLES + START_CYCLES + ceil_div(tiles, multiprocessors) * one

    def _slowdown(self, problem: ConvDesc) -> float:
        """Return the measured slowdown of pairs: three sums leave few registers for wide products or whole rows.

        Convolutions with a pool are not slowed by wide products.
        """
        if problem.element is not DType.F16_PAIR:
            return 1.0
        if self.flat_pitch:
            return 1.5 if self.pixels >= 96 or self.rows == 1 else 1.0
        return 1.25 if self.pixels >= 112 and not problem.pool else 1.0


@dataclass(frozen=True)
class SmallTile:
    """Tile macros of conv_wgmma_small."""

    table_name: ClassVar = "SmallTile"  # in tables of tiles

    rows: int = 14
    splits: int = 1
    exchange: int = 0
    blocks_per_sm: int = 1
    halo_stages: int = 2
    taps: int = 3  # of a weight stage

    def shared(self, problem: ConvDesc, weight_stages: int) -> int:
        """Return the bytes of shared memory."""
        halos, weights, epilogue = self._parts(problem)
        return max(halos + weight_stages * weights, epilogue) + 2048

    def _parts(self, problem: ConvDesc) -> tuple[int, int, int]:
        """Return the bytes of the halos, of a weight stage, and of the epilogue, which reuses their memory."""
        halo = problem.element.planes * aligned((COLUMN + 2) * (self.rows + 2) * problem.block_nbytes)
        weights = self.taps * problem.weight_nbytes(TILE_CHANNELS)
        slice_rows = self.slice_rows(problem.pool)
        received = slice_rows * 2048 if self.exchange == 1 else 0
        if received and self.halo_stages == 2 and halo >= received:
            received = 2 * halo  # one of the two: what is staged lies behind both
        staging = _staging(problem.out_element, slice_rows, problem.pool)
        staging += _staging(problem.out_element, slice_rows, pool=False) if problem.kept else 0
        return self.halo_stages * halo, weights, aligned(received + staging)

    def slice_rows(self, pool: bool) -> int:
        """Return the rows that each share of a split finishes."""
        unit = 2 if pool else 1
        return ceil_div(ceil_div(self.rows, self.splits), unit) * unit

    def store_rows(self, pool: bool) -> int:
        """Return the rows of one store."""
        rows = self.slice_rows(pool)
        return rows if self.rows % rows == 0 else 2 if pool else 1

    def weight_stages(self, problem: ConvDesc) -> int:
        """Return as many stages as are needed and fit with `blocks_per_sm` blocks on a multiprocessor; 0 if below 2."""
        most = min((228 << 10) // self.blocks_per_sm - 1024, MAX_SHARED) - 2048
        halos, weights, epilogue = self._parts(problem)
        needed = ceil_div(problem.channel_blocks, self.splits) * TAPS // self.taps
        count = min((most - halos) // weights, 16, max(2, needed)) if epilogue <= most else 0
        return count if count >= 2 else 0

    def tiles(self, problem: ConvDesc) -> tuple[int, int, int]:
        """Return the tiles (along the channels, along x, along y)."""
        height, width = problem.rows_and_columns
        return problem.out_channels // TILE_CHANNELS, ceil_div(width, COLUMN), ceil_div(height, self.rows)

    def blocks(self, problem: ConvDesc) -> int:
        """Return the blocks of the grid."""
        channels, across, down = self.tiles(problem)
        return channels * across * down * problem.batch * self.splits

    def workspace_nbytes(self, problem: ConvDesc) -> int:
        """Return the bytes for the shares of split sums."""
        if self.exchange != 2:
            return 0
        return self.blocks(problem) * self.splits * self.slice_rows(problem.pool) * 2048

    @staticmethod
    def stage_taps(element: DType) -> tuple[int, ...]:
        """Return the taps that a weight stage may hold."""
        return (1, 3) if element is DType.F16_PAIR else (3, 9)

    def fits(self, problem: ConvDesc, multiprocessors: int) -> bool:
        """Return whether the kernel can be built and launched with these macros for this problem."""
        known = self.rows in SMALL_ROWS and (self.splits, self.exchange) in EXCHANGES
        known &= self.blocks_per_sm in (1, 2, 3) and self.halo_stages in (1, 2)
        if not known or self.taps not in self.stage_taps(problem.element):
            return False
        deep = problem.channel_blocks >= self.splits and (problem.element is problem.out_element or problem.keeps_rest)
        sums = 4 * self.rows * (3 if problem.element is DType.F16_PAIR else 1)
        if sums > (168, 84, 64)[self.blocks_per_sm - 1]:  # registers of a thread
            return False
        resident = self.exchange != 2 or self.blocks(problem) <= multiprocessors * self.blocks_per_sm
        one_share = ceil_div(problem.channel_blocks, self.splits) <= self.halo_stages
        halos = self.halo_stages > 1 or one_share or problem.element is DType.F16_PAIR
        return deep and resident and halos and self.weight_stages(problem) > 0

    def cycles(self, problem: ConvDesc, multiprocessors: int) -> float:
        """Estimate the launch's cycles.

        Blocks of a multiprocessor end together, so those of a last wave fill some multiprocessors and others get one of
        them: the mean of both is near what was measured.
        """
        blocks = self.blocks(problem)
        waves, rest = divmod(blocks, multiprocessors * self.blocks_per_sm)
        rate = SMALL_L2_BYTES_PER_CYCLE * multiprocessors / min(blocks, multiprocessors)
        whole = self._together(problem, self.blocks_per_sm, rate)
        last, most = 0.0, self.blocks_per_sm
        if rest:
            crowd = ceil_div(rest, multiprocessors)
            last = self._together(problem, crowd, rate)
            if waves:
                last = (last + whole) / 2
            else:
                most = crowd
        exchange = EXCHANGE_CYCLES[self.exchange] + (most - 1) * SHARE_CYCLES[self.exchange]
        return LAUNCH_CYCLES + waves * whole + last + exchange

    def _together(self, problem: ConvDesc, count: int, rate: float) -> float:
        """Return the cycles of `count` blocks on one multiprocessor, which reads `rate` bytes of weights in a cycle."""
        channel_blocks = ceil_div(problem.channel_blocks, self.splits)
        taps, pixels = TAPS * channel_blocks, COLUMN * self.rows
        products = problem.product_cycles(pixels, TILE_CHANNELS)
        weights = problem.weight_nbytes(TILE_CHANNELS) / rate
        refills = max(0, ceil_div(taps, self.taps) - self.weight_stages(problem))
        refill = REFILL_CYCLES[problem.element.planes, self.taps] if count == 1 else REFILL_TOGETHER_CYCLES
        halos = channel_blocks - 1 if self.halo_stages == 1 else 0
        stored = problem.stored_nbytes(count * pixels, TILE_CHANNELS) / self.splits / BLOCK_BYTES_PER_CYCLE
        waits = self.taps * weights + refills * refill + halos * HALO_CYCLES  # the first: for the first stage
        return BLOCK_CYCLES + count * taps * max(products, weights) + waits + stored


Tile: TypeAlias = LargeTile | SmallTile
KINDS: Final[dict[str, type[Tile]]] = {kind.table_name: kind for kind in (LargeTile, SmallTile)}
