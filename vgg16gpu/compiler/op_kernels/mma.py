"""Tensor cores by mma.sync: which devices have them, what its kernels share, tiles and their estimated times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import numpy as np

from vgg16gpu.compiler.graph.ops import Conv, Gemm, Op
from vgg16gpu.compiler.op_kernels.activation import CLIPS
from vgg16gpu.compiler.op_kernels.base import OpContext, WeightPacker, ceil_div
from vgg16gpu.compiler.op_kernels.tile_choice import PROGRAMMATIC_BATCH
from vgg16gpu.program.launch import FIRST_WITH_EARLY_STARTS, Dim3, Kernel
from vgg16gpu.program.types import DeviceFacts, DType, Pointer

CONV_SOURCE = "conv_mma.cu"
GEMM_SOURCE = "gemm_mma.cu"
FINISH_THREADS = 256  # of gemm_mma_finish

PIECE_NBYTES = 16  # a pixel's channels, and a row of a matrix, are a whole number of these
OPERANDS: Final = (DType.F16, DType.BF16, DType.U8, DType.S8)  # what these kernels read

# The reduction of a fully connected layer is cut into parts of at least so many bytes, at most so many: a function of
# the reduction alone, so that the bits never change.
MIN_PART_NBYTES = 1024
MAX_PARTS = 8
PART_ALIGNMENT = 128  # bytes; whole stages of every tile


def starts_early(facts: DeviceFacts, images: int) -> bool:
    """Return whether a launch may start before the one before it has ended: where the device can, and it pays."""
    return facts.compute_capability >= FIRST_WITH_EARLY_STARTS and images <= PROGRAMMATIC_BATCH


class AnyTile(Protocol):
    """Hold what the time of a tile is estimated from, see MmaTile."""

    @property
    def min_blocks(self) -> int:
        """Return how many blocks are resident on a multiprocessor."""

    @property
    def speed(self) -> float:
        """Return the speed of a multiprocessor with these."""

    @property
    def alone(self) -> float:
        """Return the speed of one with a single block."""

    @property
    def shared(self) -> int:
        """Return the bytes of dynamic shared memory."""


@dataclass(frozen=True)
class MmaTile:
    """Tile macros; none of them changes a bit of the result."""

    out: int  # output channels of a block, or outputs of a fully connected layer
    px: int  # output pixels of a block, or images
    warp_out: int
    warp_px: int
    k_nbytes: int = 128  # of the reduction in a stage
    stages: int = 3
    min_blocks: int = 2  # resident on a multiprocessor: caps the registers
    speed: float = 1.0  # of a multiprocessor with `min_blocks` blocks, against the fastest tile
    alone: float = 0.6  # of one with a single block

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * (self.out // self.warp_out) * (self.px // self.warp_px)

    @property
    def shared(self) -> int:
        """Bytes of dynamic shared memory."""
        return self.stages * (self.out + self.px) * self.k_nbytes

    def conv_kernel(self, element: DType, out_element: DType, pool: bool) -> Kernel:
        """Return the kernel of kernels/conv/conv_mma.cu with these macros."""
        defines = self._defines("OC", "PX", element, out_element)
        return Kernel(CONV_SOURCE, "conv_mma", (*defines, ("POOL", int(pool))))

    def gemm_kernels(self, element: DType, out_element: DType) -> tuple[Kernel, Kernel]:
        """Return both kernels of kernels/gemm/gemm_mma.cu, compiled together: the parts of the sums, and the finish."""
        defines = self._defines("OUT", "N", element, out_element)
        return Kernel(GEMM_SOURCE, "gemm_mma", defines), Kernel(GEMM_SOURCE, "gemm_mma_finish", defines)

    def _defines(self, out: str, px: str, element: DType, out_element: DType) -> tuple[tuple[str, int], ...]:
        return (
            (f"TILE_{out}", self.out),
            (f"TILE_{px}", self.px),
            (f"WARP_{out}", self.warp_out),
            (f"WARP_{px}", self.warp_px),
            ("K_NBYTES", self.k_nbytes),
            ("STAGES", self.stages),
            ("MIN_BLOCKS", self.min_blocks),
            ("ELEMENT", element.number),
            ("OUT_ELEMENT", out_element.number),
        )


# ---- Convolution

LARGE = MmaTile(128, 128, 64, 64)
LARGE_48K = MmaTile(128, 128, 64, 64, k_nbytes=64, speed=0.95)  # two blocks where LARGE has room for one, or none
NARROW = MmaTile(64, 256, 64, 64, k_nbytes=64, stages=4, speed=0.9)  # up to 64 output channels
NARROW_48K = MmaTile(64, 128, 64, 32, k_nbytes=64, stages=4, min_blocks=3, speed=0.75)
MEDIUM = MmaTile(64, 64, 32, 32, min_blocks=4, speed=0.7, alone=0.3)
SMALL = MmaTile(64, 32, 32, 16, stages=4, min_blocks=4, speed=0.5, alone=0.2)
CONV_TILES = (LARGE, LARGE_48K, NARROW, NARROW_48K, MEDIUM, SMALL)
CPU_CONV_TILE = MEDIUM
PAIR_CONV_TILES = (  # of pairs: a thread holds two further sums of each value; warps of 32 x 32 leave room for them
    MmaTile(64, 64, 32, 32, min_blocks=3, alone=0.5),
    MmaTile(64, 32, 32, 16, stages=4, min_blocks=4, speed=0.8, alone=0.3),
)


def choose_conv_tile(
    rows: int, out_channels: int, multiprocessors: int, shared_nbytes: int, tiles: tuple[MmaTile, ...] = CONV_TILES
) -> MmaTile:
    """Return the tile with the least estimated time on a GPU.

    `rows`: output pixels of the batch before pooling; `shared_nbytes`: the largest shared memory of a block.
    """
    fitting = [tile for tile in tiles if tile.shared <= shared_nbytes]
    return min(fitting, key=lambda tile: conv_time(tile, rows, out_channels, multiprocessors, shared_nbytes))


def conv_time(tile: MmaTile, rows: int, out_channels: int, multiprocessors: int, shared_nbytes: int) -> float:
    """Return the time of a convolution in this tile, in the unit of `estimated_time`."""
    blocks = conv_grid(tile, rows, out_channels).x
    return estimated_time(tile, blocks, tile.out * tile.px, multiprocessors, shared_nbytes)


def estimated_time(tile: AnyTile, blocks: int, outputs: int, multiprocessors: int, shared_nbytes: int) -> float:
    """Estimate time, to compare tiles: products per unit of reduction, over the speed at which they are made.

    outputs: of a block.
    """
    resident = max(1, min(tile.min_blocks, shared_nbytes // tile.shared))
    full = tile.alone + (tile.speed - tile.alone) * resident / tile.min_blocks if resident > 1 else tile.alone
    waves, rest = divmod(ceil_div(blocks, multiprocessors), resident)
    last = tile.alone + (full - tile.alone) * (rest - 1) / (resident - 1) if rest > 1 else tile.alone
    return outputs * (waves * resident / full + rest / last)


def conv_grid(tile: MmaTile, rows: int, out_channels: int) -> Dim3:
    """Return the grid of conv_mma."""
    return Dim3(ceil_div(rows, tile.px) * ceil_div(out_channels, tile.out))


# ---- Fully connected layers

GEMM_TILES = (  # by rising px; the last one is for all larger batches
    MmaTile(64, 8, 32, 8, stages=4, min_blocks=4),
    MmaTile(64, 16, 32, 16, stages=4, min_blocks=4),
    MmaTile(64, 32, 32, 16, stages=4, min_blocks=4),
    MmaTile(64, 64, 32, 32, min_blocks=4),
    LARGE,
)
CPU_GEMM_TILE = GEMM_TILES[1]


def choose_gemm_tile(batch: int, shared_nbytes: int) -> MmaTile:
    """Return the first of GEMM_TILES that holds the batch, or the largest that fits into shared memory."""
    fitting = [tile for tile in (*GEMM_TILES[:-1], LARGE, LARGE_48K) if tile.shared <= shared_nbytes]
    return next((tile for tile in fitting if batch <= tile.px), fitting[-1])


def gemm_parts(k_nbytes: int) -> tuple[int, int]:
    """Return (parts, bytes of each) into which a reduction over rows of `k_nbytes` is cut."""
    stages = ceil_div(k_nbytes, PART_ALIGNMENT)
    wanted = max(1, min(MAX_PARTS, k_nbytes // MIN_PART_NBYTES))
    per_part = ceil_div(stages, wanted)
    return ceil_div(stages, per_part), per_part * PART_ALIGNMENT


def gemm_workspace_nbytes(batch: int, outputs: int, k_nbytes: int) -> int:
    """Return the bytes of the partial sums."""
    return 4 * gemm_parts(k_nbytes)[0] * batch * ceil_div(outputs, 64) * 64


def gemm_grid(tile: MmaTile, batch: int, outputs: int, k_nbytes: int) -> Dim3:
    """Return the grid of gemm_mma."""
    return Dim3(ceil_div(batch, tile.px) * ceil_div(outputs, tile.out), gemm_parts(k_nbytes)[0])


def finish_grid(batch: int, pitch: int) -> Dim3:
    """Return the grid of gemm_mma_finish; `pitch`: stored outputs of an image, a multiple of 4."""
    return Dim3(batch * ceil_div(pitch // 4, FINISH_THREADS))


# ---- For tools/ptxas.py: every element through every tile, into itself and, without pooling, float32; float16 with
# limits as well.

CONV_VARIANTS = (
    *(
        tile.conv_kernel(element, out_element, pool).defines
        for tile in CONV_TILES
        for element in OPERANDS
        for out_element, pool in ((element, False), (element, True), (DType.F32, False))
    ),
    *((*tile.conv_kernel(DType.F16, DType.F16, pool).defines, CLIPS) for tile in CONV_TILES for pool in (False, True)),
    *(
        tile.conv_kernel(DType.F16_PAIR, out_element, pool).defines
        for tile in PAIR_CONV_TILES
        for out_element, pool in ((DType.F16_PAIR, False), (DType.F16_PAIR, True), (DType.F32, False))
    ),
)
GEMM_VARIANTS = (
    *(
        tile.gemm_kernels(element, out_element)[0].defines
        for tile in (*GEMM_TILES, LARGE_48K)
        for element in OPERANDS
        for out_element in (element, DType.F32)
    ),
    (*GEMM_TILES[0].gemm_kernels(DType.F16, DType.F16)[0].defines, CLIPS),
)


ELEMENTS: Final = {"fp16": DType.F16, "bf16": DType.BF16}
FIRST_WITH_BFLOAT16: Final = (8, 0)
FIRST_WITH_MMA: Final = (7, 5)
FINISH_ALIGNMENT: Final = 64  # floats of the vectors that the kernels finish with


class MmaWeights(NamedTuple):
    """Places of what the kernels read beside their input, in their order; vectors have a float for each output."""

    weight: Pointer  # (outputs, K) of the element
    dequant: Pointer  # what takes the scales of weights and input out of a sum
    bias: Pointer
    out_scale: Pointer  # what outputs are multiplied by before they are stored


def x_element(layer: OpContext[Op]) -> DType:
    """Return the dtype in which x is multiplied."""
    if layer.quantised is None:
        return ELEMENTS[layer.precision]
    return DType.S8 if layer.quantised.x.signed else DType.U8


def output_dtype(layer: OpContext[Op], wanted: tuple[DType, ...]) -> DType:
    """Return float32 if the reader takes it, or no reader takes integers; else the stored dtype."""
    if DType.F32 in wanted and not layer.rescaled:  # with a factor it is converted for whom does not take it out
        return DType.F32
    if layer.quantised is None:
        return ELEMENTS[layer.precision]
    stored = layer.quantised.y
    return DType.F32 if stored is None else DType.S8 if stored.signed else DType.U8


def supports(layer: OpContext[Op]) -> bool:
    """Return whether the device's tensor cores know the precision; the CPU emulates them."""
    if layer.quantised is None and layer.precision not in ELEMENTS:
        return False
    capability = layer.facts.compute_capability
    if layer.facts.kind == "cpu":
        return True
    return capability >= (FIRST_WITH_BFLOAT16 if layer.precision == "bf16" else FIRST_WITH_MMA)


def with_finish(weight: Pointer, layer: OpContext[Conv | Gemm], arena: WeightPacker) -> MmaWeights:
    """Return packed weights with their vectors."""
    op, quantised = layer.op, layer.quantised
    outputs = op.weight.shape[0]
    ones = np.ones(outputs, np.float32)
    inverse = ones if quantised is None or quantised.y is None else ones * quantised.y.inverse
    vectors = (ones if quantised is None else quantised.dequant, op.bias, inverse)
    return MmaWeights(weight, *(arena.add_vector(vector, outputs, FINISH_ALIGNMENT) for vector in vectors))
