"""The first two convolutions of a network and the pool behind them: the Python side of kernels/conv/conv_first_two.cu.

One launch reads the run-time input as the user gives it and stores what the pool leaves; what lies between the two
convolutions, the largest value of the network, is stored nowhere. Weights are those of conv_first and of conv_wgmma.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Generic, NamedTuple

from vgg16gpu.compiler.graph.ops import FusedConvPair
from vgg16gpu.compiler.op_kernels import tile_choice
from vgg16gpu.compiler.op_kernels.activation import activated, activation, input_limits, taking
from vgg16gpu.compiler.op_kernels.base import (
    Held,
    HostInput,
    InputKernel,
    OpContext,
    OpMemory,
    WeightPacker,
    ceil_div,
    scalars,
)
from vgg16gpu.compiler.op_kernels.conv import conv_first, conv_wgmma
from vgg16gpu.compiler.op_kernels.conv.common import TAPS, label
from vgg16gpu.compiler.op_kernels.conv.conv_first import FirstConvWeights
from vgg16gpu.compiler.op_kernels.conv.conv_wgmma import ConvWeights
from vgg16gpu.compiler.op_kernels.conv.conv_wgmma_tiles import COLUMN, MAX_SHARED
from vgg16gpu.compiler.op_kernels.tile_choice import PROGRAMMATIC_BATCH, Choice
from vgg16gpu.compiler.op_kernels.wgmma import TILE_CHANNELS, aligned, feature_map, x_element, y_element
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch
from vgg16gpu.program.types import DeviceFacts, DType, Pointer, TensorDesc

SOURCE = "conv_first_two.cu"
THREADS = 128  # of a warpgroup
ELEMENTS: Final = (DType.F16, DType.BF16, DType.U8, DType.S8)  # pairs do not fit into shared memory
CUTS: Final = {
    (28, 2): (4040, 5670),
    (32, 2): (4420, 6680),
    (24, 2): (3530, 5720),
    (16, 3): (2320, 3550),
}
"""(rows, warpgroups): cycles of a multiprocessor for a tile, of bytes and of 16 bits, as measured on an H200."""


class ConvPairWeights(NamedTuple, Generic[Held]):
    """What the kernel reads beside its input: what the kernels of either convolution would."""

    first: FirstConvWeights[Held]
    second: ConvWeights[Held]


@dataclass(frozen=True)
class ConvPairDesc:
    """Two convolutions as the kernel sees them."""

    batch: int
    height: int
    width: int
    element: DType  # of both results
    kept: bool = False  # the map before the pool is stored, too

    @property
    def key(self) -> str:
        """The name of the problem in tables of measured tiles."""
        return tile_choice.key("conv_first_two", self)


@dataclass(frozen=True)
class ConvPairTile:
    """What a warpgroup computes at once, so many rows of 8 pixels, and the warpgroups of a block."""

    table_name: ClassVar = "Tile"  # in tables of tiles

    rows: int
    warpgroups: int

    def fits(self, problem: ConvPairDesc) -> bool:
        """Return whether the kernel can be built and launched with this tile for this problem."""
        known = (self.rows, self.warpgroups) in CUTS
        return known and shared_nbytes(problem.element, self.rows, self.warpgroups) <= MAX_SHARED

    def tiles(self, problem: ConvPairDesc) -> tuple[int, int]:
        """Return the tiles (along x, along y); the pool drops an odd last row or column."""
        unit = 1 if problem.kept else 2
        return ceil_div(problem.width // unit * unit, COLUMN), ceil_div(problem.height // unit * unit, self.rows)

    def blocks(self, problem: ConvPairDesc, multiprocessors: int) -> int:
        """Return the blocks of the grid."""
        across, down = self.tiles(problem)
        return min(multiprocessors, ceil_div(across * down * problem.batch, self.warpgroups))

    def cycles(self, problem: ConvPairDesc, multiprocessors: int) -> int:
        """Estimate the launch's cycles, without those that all tiles have in common."""
        across, down = self.tiles(problem)
        rounds = ceil_div(across * down * problem.batch, multiprocessors * self.warpgroups)
        return rounds * self.warpgroups * CUTS[self.rows, self.warpgroups][problem.element.nbytes - 1]


KINDS: Final = {ConvPairTile.table_name: ConvPairTile}


def problem_of(layer: OpContext[FusedConvPair]) -> ConvPairDesc:
    """Return the convolutions of a layer."""
    batch, _, height, width = layer.x_shape
    second = layer.parts[1]
    return ConvPairDesc(batch, height, width, y_element(second), second.op.kept is not None)


def candidates(problem: ConvPairDesc, multiprocessors: int) -> tuple[Choice[ConvPairTile], ...]:
    """Return every tile that is worth a try, the one with the least estimated time first."""
    tiles = [tile for tile in (ConvPairTile(*cut) for cut in CUTS) if tile.fits(problem)]
    tiles.sort(key=lambda tile: tile.cycles(problem, multiprocessors))
    return tuple(Choice(tile, problem.batch <= PROGRAMMATIC_BATCH) for tile in tiles)


def choose(problem: ConvPairDesc, facts: DeviceFacts) -> Choice[ConvPairTile]:
    """Return the tile in the device's table if it fits, else the one with the least estimated time."""
    choice = tile_choice.measured(facts, problem, KINDS, lambda tile: tile.fits(problem))
    return choice or candidates(problem, facts.multiprocessors)[0]


def supports(layer: OpContext[FusedConvPair]) -> bool:
    """Return whether these are convolutions of 64 stored channels and a pool, all of one element but pairs."""
    first, second = layer.parts
    if not (conv_first.supports(first) and conv_wgmma.supports(second) and second.op.pool):
        return False
    element = y_element(second)
    stored = {element.padded(part.op.weight.shape[0]) for part in layer.parts}
    same = y_element(first) is x_element(second) is element
    return same and element in ELEMENTS and stored == {TILE_CHANNELS}


def weights(layer: OpContext[FusedConvPair], arena: WeightPacker) -> ConvPairWeights[Pointer]:
    """Pack the weights of conv_first, then those of conv_wgmma."""
    first, second = layer.parts
    return ConvPairWeights(conv_first.weights(first, arena), conv_wgmma.weights(second, arena))


def steps(
    layer: OpContext[FusedConvPair], x: HostInput, y: TensorDesc, held: ConvPairWeights[Pointer], places: OpMemory
) -> tuple[KernelLaunch, ...]:
    """Return one launch. Both convolutions write their largest magnitudes to those of y."""
    first, second = layer.parts
    batch, channels, height, width = layer.x_shape
    problem = problem_of(layer)
    choice = choose(problem, layer.facts)
    rows, warpgroups = choice.tile.rows, choice.tile.warpgroups
    across, down = choice.tile.tiles(problem)
    macros = {
        "ELEMENT": y.element.number,
        "SOURCE": int(x.element_type == "uint8"),
        "IN_CHANNELS": channels,
        "TILE_ROWS": rows,
        "WARPGROUPS": warpgroups,
        **({"KEEP": 1} if problem.kept else {}),
    }
    of_first, of_second = held
    kernel = activated(Kernel(SOURCE, "conv_first_two", tuple(macros.items())), first.op, second.op)
    return (
        KernelLaunch(
            kernel=taking(kernel, x.limits),
            grid=Dim3(choice.tile.blocks(problem, layer.facts.multiprocessors)),
            block=Dim3(THREADS * warpgroups),
            arguments=(
                conv_wgmma.weight_map(conv_wgmma.problem_of(second), of_second.weight, TILE_CHANNELS, TAPS),
                feature_map(y, (TILE_CHANNELS, COLUMN // 2, rows // 2, 1)),
                *(feature_map(kept, (TILE_CHANNELS, COLUMN, rows, 1)) for kept in places.further),
                *(x.pointer, *of_first, *(x.normalisation or (of_first.bias, of_first.bias))),
                *(of_second.bias, of_second.dequant, of_second.out_scale, places.maxima),
                *scalars(1),
                *(places.control.status, places.control.error),
                *scalars(layer.number, height, width, across, down, across * down * batch),
                *activation(first.op, second.op),
                *input_limits(x.limits),
            ),
            shared=shared_nbytes(y.element, rows, warpgroups),
            flop=first.op.flop(first.x_shape) + second.op.flop(second.x_shape),
            nbytes=(1 if x.normalisation else 4) * batch * channels * height * width
            + sum(stored.nbytes for stored in (y, *places.further))
            + y.element.nbytes * second.op.weight.size,
            names=layer.op.names,
            label=f"{label(first.op)}, {label(second.op)}",
            programmatic=choice.programmatic,
        ),
    )


def shared_nbytes(element: DType, rows: int, warpgroups: int) -> int:
    """Return bytes of dynamic shared memory: both weights; per warpgroup the map between, a staged tile, the pixels."""
    pixel = TILE_CHANNELS * element.nbytes
    between = aligned(2 * _pixels_of_half(rows) * pixel)
    staged = aligned(ceil_div(rows, 4) * COLUMN * pixel)
    entries = 2 * (2 * _pixels_of_half(rows) + 2 * (COLUMN + 2)) * 16
    weight_nbytes = TAPS * TILE_CHANNELS * pixel + 3 * 2 * TILE_CHANNELS * 16
    return 1024 + weight_nbytes + warpgroups * aligned(between + staged + entries)


def _pixels_of_half(rows: int) -> int:
    """Return the pixels of a product of the first convolution: half of a tile with a ring around it."""
    return ceil_div((COLUMN + 2) * (rows + 2), 32) * 16


OP_KERNEL = InputKernel(
    FusedConvPair,
    steps,
    weights,
    family="wgmma",
    supports=supports,
    output_dtype=lambda layer, _: y_element(layer.parts[1]),
    keeps=True,
)
