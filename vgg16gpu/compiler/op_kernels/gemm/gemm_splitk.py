"""Fully connected layers: the Python side of kernels/gemm/gemm_splitk.cu."""

from __future__ import annotations

from vgg16gpu.compiler.graph.ops import Gemm
from vgg16gpu.compiler.op_kernels.activation import activated, activation, activation_label
from vgg16gpu.compiler.op_kernels.base import (
    BLOCK,
    OpContext,
    OpKernel,
    OpMemory,
    PlainWeights,
    WeightPacker,
    ceil_div,
    scalars,
)
from vgg16gpu.compiler.op_kernels.layout.pack import gemm_input, pack_gemm
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch
from vgg16gpu.program.types import TensorDesc, padded_channels

SOURCE = "gemm_splitk.cu"


# (TILE_OUT, TILE_N, UNROLL_K), by rising TILE_N. The last one is for all larger batches: it uses each weight 16 times.
TILES = ((4, 1, 2), (4, 2, 2), (4, 4, 1), (4, 8, 1), (8, 16, 1))


def tile_defines(tile: tuple[int, int, int]) -> tuple[tuple[str, int], ...]:
    """Return a tile's macros."""
    return tuple(zip(("TILE_OUT", "TILE_N", "UNROLL_K"), tile, strict=True))


VARIANTS = tuple(map(tile_defines, TILES))  # tools/ptxas.py


def choose_tile(batch: int) -> tuple[int, int, int]:
    """Return the first of `TILES` that holds the batch, else the last."""
    return next((tile for tile in TILES if batch <= tile[1]), TILES[-1])


def weights(layer: OpContext[Gemm], arena: WeightPacker) -> PlainWeights:
    """Pack weights as (OUT, stored features of x), bias as (padded OUT,)."""
    op = layer.op
    channels, pixels = gemm_input(layer.x_shape, op.flattens)
    packed = pack_gemm(op.weight, channels, pixels, arena)
    return PlainWeights(packed, arena.add_channels(op.bias, op.weight.shape[0]))


def steps(
    layer: OpContext[Gemm], x: TensorDesc, y: TensorDesc, held: PlainWeights, places: OpMemory
) -> tuple[KernelLaunch, ...]:
    """Return one launch."""
    del places
    tile = choose_tile(x.shape[0])
    tile_out, tile_n, _ = tile
    blocks = ceil_div(y.pitch, tile_out) * ceil_div(x.shape[0], tile_n)
    kernel = Kernel(SOURCE, "gemm_splitk_f32", tile_defines(tile))
    return (product(layer, x, y, held, kernel, Dim3(blocks), Dim3(BLOCK)),)


def product(
    layer: OpContext[Gemm], x: TensorDesc, y: TensorDesc, held: PlainWeights, kernel: Kernel, grid: Dim3, block: Dim3
) -> KernelLaunch:
    """Return the launch of a kernel with the arguments of `gemm_splitk_f32`."""
    op = layer.op
    batch, outputs = x.shape[0], op.weight.shape[0]
    channels, pixels = gemm_input(x.shape, op.flattens)
    return KernelLaunch(
        kernel=activated(kernel, op),
        grid=grid,
        block=block,
        arguments=(
            *(y.pointer, x.pointer, *held),
            *scalars(batch, outputs, pixels * padded_channels(channels), y.pitch),
            *activation(op),
        ),
        flop=2 * batch * op.weight.size,
        nbytes=x.nbytes + y.nbytes + 4 * (op.weight.size + outputs),
        names=op.names,
        label=f"gemm {op.weight.shape[1]}->{outputs}{activation_label(op)}",
    )


OP_KERNEL = OpKernel(Gemm, steps, weights)
