"""The tiles of gemv.cu and gemm_wgmma.cu: what each takes, which problems it fits, which one is usual."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, TypeAlias

from vgg16gpu.compiler.op_kernels import tile_choice
from vgg16gpu.compiler.op_kernels.base import BLOCK, ceil_div
from vgg16gpu.program.types import DType

TILE_OUT = 128  # outputs of a block of gemm_wgmma
TILES_N = (16, 32, 64, 128)
MAX_PART = 8192  # products: longer float32 sums would lose what the splitting of weights keeps
MAX_SPLITS = 8  # the last block to arrive adds the parts alone
SHARED_NBYTES = 220 << 10  # of a block that is alone on its multiprocessor
MAX_STAGES = 12
MAX_LOADS = 4  # that a lane of gemv has under way twice; more would not fit its registers
LOAD_NBYTES = 16  # of a lane of gemv
GROUPS_PER_SM = 4  # of 8 warps of gemv, by their registers
MAX_ROUNDS = 64  # of a row of gemv, where the input lies in shared memory
LEAST_TURNS = 4  # units of each group; with one each, as fc7 and fc8 have them, walking was slower
LARGE_NBYTES = 64 << 20  # of weights
SMALL_OUTPUTS = 2048


@dataclass(frozen=True)
class GemmDesc:
    """A fully connected layer as the kernels see it."""

    batch: int
    outputs: int
    length: int  # stored features of an image
    element: DType

    @property
    def key(self) -> str:
        """The name of the problem in tables of measured tiles."""
        return tile_choice.key("fc_wgmma", self)

    @property
    def stored(self) -> DType:
        """The dtype of stored weights."""
        return stored(self.element)

    @property
    def input_nbytes(self) -> int:
        """Bytes of an image's input: float32 has as many as a pair."""
        return self.length * self.element.planes * self.element.nbytes

    @property
    def least_splits(self) -> int:
        """Parts of a sum that are no longer than its accuracy allows."""
        return ceil_div(self.length, MAX_PART)


@dataclass(frozen=True)
class GemvTile:
    """Tile macros of gemv."""

    table_name: ClassVar = "GemvTile"  # in tables of tiles

    rows: int
    unroll: int
    split: int

    def fits(self, problem: GemmDesc) -> bool:
        """Return whether the kernel can be built and launched with these macros for this problem."""
        known = self.rows in (1, 2, 4, 8) and self.unroll in (1, 2, 4) and self.split in (1, 2, 4, 8)
        return known and problem.batch == 1 and self.outputs <= 32 and self.rows * self.unroll <= MAX_LOADS

    @property
    def outputs(self) -> int:
        """Outputs that a group of warps computes at a time."""
        return BLOCK // 32 // self.split * self.rows

    def walks(self, problem: GemmDesc, multiprocessors: int) -> bool:
        """Return whether groups of warps take one unit of outputs after the other, from an input in shared memory.

        Else each has one, and a block to itself: where there are few units, the input does not fit, or has more rounds
        than what counts them.
        """
        units = ceil_div(problem.outputs, self.outputs)
        rounds = ceil_div(problem.length * problem.stored.nbytes, LOAD_NBYTES * 32 * self.unroll * self.split)
        staged = problem.input_nbytes <= SHARED_NBYTES and rounds <= MAX_ROUNDS
        return staged and units > LEAST_TURNS * multiprocessors * GROUPS_PER_SM


@dataclass(frozen=True)
class GemmTile:
    """Tile macros of gemm_wgmma, and the blocks that share a sum."""

    table_name: ClassVar = "GemmTile"  # in tables of tiles

    images: int
    depth: int  # products of a stage
    splits: int

    def stage_nbytes(self, problem: GemmDesc) -> int:
        """Return the bytes of a stage."""
        x = problem.element
        return self.depth * (TILE_OUT * problem.stored.nbytes + self.images * x.planes * x.nbytes)

    def stages(self, problem: GemmDesc) -> int:
        """Return as many stages as fit."""
        return min(MAX_STAGES, SHARED_NBYTES // self.stage_nbytes(problem))

    def fits(self, problem: GemmDesc) -> bool:
        """Return whether the kernel can be built and launched with these macros for this problem."""
        known = self.images in TILES_N and self.depth in depths(problem.element)
        known &= self.images <= tile_n(problem.batch)
        whole = problem.least_splits <= self.splits <= min(MAX_SPLITS, ceil_div(problem.length, self.depth))
        return known and whole and problem.batch > 1 and self.stages(problem) >= 2

    def tiles(self, problem: GemmDesc) -> tuple[int, int]:
        """Return the tiles (along the images, along the outputs)."""
        return ceil_div(problem.batch, self.images), ceil_div(problem.outputs, TILE_OUT)


Tile: TypeAlias = GemvTile | GemmTile
KINDS: Final[dict[str, type[Tile]]] = {kind.table_name: kind for kind in (GemvTile, GemmTile)}


def depths(element: DType) -> tuple[int, ...]:
    """Return the products of a stage of gemm_wgmma: whole boxes; pairs lose accuracy where they are more."""
    return {DType.F16_PAIR: (64,), DType.U8: (128, 256), DType.S8: (128, 256)}.get(element, (64, 128))


def usual(problem: GemmDesc, multiprocessors: int) -> Tile:
    """Return the tile without measurements. gemm_wgmma: parts that keep multiprocessors busy, and no longer sums."""
    if problem.batch == 1:
        return gemv_tile(problem, multiprocessors)
    images, depth = tile_n(problem.batch), depths(problem.element)[0]
    tiles = ceil_div(problem.outputs, TILE_OUT) * ceil_div(problem.batch, images)
    busy = min(multiprocessors // tiles, ceil_div(problem.length, 2 * depth), MAX_SPLITS)
    return GemmTile(images, depth, max(1, busy, problem.least_splits))


def gemv_tile(problem: GemmDesc, multiprocessors: int) -> GemvTile:
    """Return the tile with which whole nets are fastest, for weights of that size.

    Multiprocessors get shares of the memory's rate that differ by two, so a group takes a row of large weights at a
    time, or two where each is a block of its own: a group that is done early takes more.
    """
    if problem.outputs * problem.length * problem.stored.nbytes > LARGE_NBYTES:
        whole_row = GemvTile(1, 4, 8)
        return whole_row if whole_row.walks(problem, multiprocessors) else GemvTile(2, 2, 8)
    if problem.stored is DType.F32 or problem.outputs < SMALL_OUTPUTS:
        return GemvTile(2, 2, 8)
    return GemvTile(4, 1, 4)


def tile_n(batch: int) -> int:
    """Return the images of a block of gemm_wgmma."""
    return next((tile for tile in TILES_N if batch <= tile), TILES_N[-1])


def stored(element: DType) -> DType:
    """Return the dtype of stored weights for activations of this element."""
    if element in (DType.F16_PAIR, DType.F32):
        return DType.F32
    return DType.S8 if element is DType.U8 else element
