"""Same-size 3x3 convolution on the tensor cores of any card since Ampere: the Python side of conv_mma_3x3.cu."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vgg16gpu.compiler.graph.ops import Conv
from vgg16gpu.compiler.op_kernels.activation import CLIPS
from vgg16gpu.compiler.op_kernels.base import OpContext, ceil_div
from vgg16gpu.compiler.op_kernels.conv.common import is_same_3x3
from vgg16gpu.compiler.op_kernels.mma import OPERANDS
from vgg16gpu.program.launch import Kernel
from vgg16gpu.program.types import DType, TensorDesc

FIRST_WITH_COPIES: Final = (8, 0)  # asynchronous ones: with others conv_mma is faster
MIN_WIDTH: Final = 8  # columns of a map: a tile reaches into MAX_IMAGES then
_CHUNK_NBYTES: Final = 64
MAX_IMAGES: Final = 3  # of a tile


@dataclass(frozen=True)
class HaloTile:
    """Tile macros: `rows` x `columns` pixels and what stands around them; none of them changes a bit of the result."""

    rows: int
    out: int = 64  # output channels of a block
    columns: int = 16  # of all images, side by side
    warp_out: int = 32
    min_blocks: int = 2  # resident on a multiprocessor: caps the registers
    speed: float = 1.2  # as of MmaTile
    alone: float = 0.8

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * (self.out // self.warp_out) * (self.columns // 8)

    @property
    def shared(self) -> int:
        """Bytes of dynamic shared memory: two halos, weights of three kw, two barriers for each of these."""
        halo = (self.rows + 2) * (self.columns + 2 * MAX_IMAGES)
        return (2 * halo + 3 * 3 * self.out) * _CHUNK_NBYTES + 3 * 2 * 8

    @property
    def outputs(self) -> int:
        """Outputs of a block."""
        return self.out * self.rows * self.columns

    def kernel(self, element: DType, out_element: DType, pool: bool) -> Kernel:
        """Return the kernel of kernels/conv/conv_mma_3x3.cu with these macros."""
        defines = (
            ("TILE_OC", self.out),
            ("TILE_ROWS", self.rows),
            ("TILE_COLUMNS", self.columns),
            ("WARP_OC", self.warp_out),
            ("MIN_BLOCKS", self.min_blocks),
            ("ELEMENT", element.number),
            ("OUT_ELEMENT", out_element.number),
            ("POOL", int(pool)),
        )
        return Kernel("conv_mma_3x3.cu", "conv_mma_3x3", defines)

    def can(self, *, pool: bool) -> bool:
        """Return whether the tile holds whole windows where there is a pool."""
        return not pool or self.rows % 2 == 0

    def blocks(self, images: int, height: int, width: int, out_channels: int) -> int:
        """Return the blocks for `images` maps of (height, width)."""
        return ceil_div(out_channels, self.out) * ceil_div(height, self.rows) * ceil_div(images * width, self.columns)


TILES: Final = (HaloTile(14), HaloTile(8, speed=1.0, alone=0.65))
PAIR_TILES: Final = (HaloTile(8), HaloTile(7), HaloTile(4, min_blocks=3), HaloTile(2, min_blocks=3))

# Cycles of a slot of weights of pairs, fitted to the times of testbench/results/mma-pairs-h200.json at 1.755 GHz: 10 %
# off on average; the tile with the lowest estimate takes .15 % longer than the fastest one.
_PRODUCT_CYCLES: Final = 7.7  # in a quarter of a multiprocessor
_ALONE_CYCLES: Final = 8.1, 250.0  # a product, a slot: a warp alone waits for its own results, and for barriers
_L2_BYTES_PER_CYCLE: Final = 20.0  # of a multiprocessor when all read
_BLOCK_CYCLES: Final = 9600.0  # before the first product and behind the last
CPU_PAIR_TILE: Final = PAIR_TILES[2]


def pair_cycles(tile: HaloTile, blocks: int, groups: int, multiprocessors: int, shared_nbytes: int) -> float:
    """Return the estimated cycles of blocks of pairs, with sums over this many groups of 16 channels."""
    resident = max(1, min(tile.min_blocks, shared_nbytes // tile.shared))
    products = tile.rows * 3 * 3 * (tile.warp_out // 16)
    halo_nbytes = (tile.rows + 2) * (tile.columns + 2 * MAX_IMAGES) * _CHUNK_NBYTES
    nbytes = 3 * tile.out * _CHUNK_NBYTES + halo_nbytes / 3

    def slot(count: int, share: float) -> float:
        alone = products * _ALONE_CYCLES[0] + _ALONE_CYCLES[1]
        return max(count * products * _PRODUCT_CYCLES, alone, share * count * nbytes / _L2_BYTES_PER_CYCLE)

    waves, rest = divmod(blocks, multiprocessors * resident)
    crowd = ceil_div(rest, multiprocessors)
    last = slot(crowd, rest / (crowd * multiprocessors)) if rest else 0.0
    return 3 * groups * (waves * slot(resident, 1.0) + last) + (waves + (rest > 0)) * _BLOCK_CYCLES


def fits(layer: OpContext[Conv], x: TensorDesc) -> bool:
    """Return whether the kernel computes this layer, and the device has what it is made for."""
    fills_chunk = x.pitch * x.element.nbytes >= _CHUNK_NBYTES  # else most products are of zeros
    has_copies = layer.facts.compute_capability >= FIRST_WITH_COPIES
    return has_halos(layer.op, x.shape[3]) and fills_chunk and has_copies


def has_halos(op: Conv, width: int) -> bool:
    """Return whether the kernel computes this op of maps of this width, on some device."""
    return is_same_3x3(op) and (width // 2 * 2 if op.pool else width) >= MIN_WIDTH


VARIANTS = (  # tools/ptxas.py: as those of conv_mma
    *(
        tile.kernel(element, out_element, pool).defines
        for tile in TILES
        for element in OPERANDS
        for out_element, pool in ((element, False), (element, True), (DType.F32, False))
    ),
    *((*tile.kernel(DType.F16, DType.F16, pool).defines, CLIPS) for tile in TILES for pool in (False, True)),
    *(
        tile.kernel(DType.F16_PAIR, out_element, pool).defines
        for tile in PAIR_TILES
        for out_element, pool in ((DType.F16_PAIR, False), (DType.F16_PAIR, True), (DType.F32, False))
        if tile.can(pool=pool)
    ),
    (*PAIR_TILES[0].kernel(DType.F16_PAIR, DType.F16_PAIR, pool=True).defines, CLIPS),
)
