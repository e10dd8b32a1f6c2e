"""Same-size 3x3 convolution on the tensor cores of any card since Ampere: the Python side of conv_mma_3x3.cu."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vgg16gpu.compiler.graph.ops import Conv
from vgg16gpu.compiler.lowering.activation import CLIPS
from vgg16gpu.compiler.lowering.base import OpContext, ceil_div
from vgg16gpu.compiler.lowering.conv.common import is_same_3x3
from vgg16gpu.compiler.lowering.mma_geometry import OPERANDS
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
        """kernels/conv/conv_mma_3x3.cu compiled with these macros."""
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

    def blocks(self, images: int, height: int, width: int, out_channels: int) -> int:
        """Blocks for maps of products of this size."""
        return ceil_div(out_channels, self.out) * ceil_div(height, self.rows) * ceil_div(images * width, self.columns)


TILES: Final = (HaloTile(14), HaloTile(8, speed=1.0, alone=0.65))


def fits(layer: OpContext[Conv], x: TensorDesc) -> bool:
    """Return whether the kernel computes this layer, and the device has what it is made for."""
    width = x.shape[3] // 2 * 2 if layer.op.pool else x.shape[3]
    fills_chunk = x.pitch * x.element.nbytes >= _CHUNK_NBYTES  # else most products are of zeros
    has_copies = layer.facts.compute_capability >= FIRST_WITH_COPIES
    return is_same_3x3(layer.op) and width >= MIN_WIDTH and fills_chunk and has_copies


VARIANTS = (  # tools/ptxas.py: as those of conv_mma
    *(
        tile.kernel(element, out_element, pool).defines
        for tile in TILES
        for element in OPERANDS
        for out_element, pool in ((element, False), (element, True), (DType.F32, False))
    ),
    *((*tile.kernel(DType.F16, DType.F16, pool).defines, CLIPS) for tile in TILES for pool in (False, True)),
)
