"""Fully connected layers in float32 from pairs on mma.sync: the Python side of kernels/gemm/gemm_mma_pairs.cu.

It reads the float32 weights of gemm_splitk: one copy serves both passes.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from vgg16gpu.compiler.graph.ops import Gemm
from vgg16gpu.compiler.op_kernels.activation import CLIPS, activation_label
from vgg16gpu.compiler.op_kernels.base import OpContext, OpKernel, OpMemory, WeightPacker, scalars
from vgg16gpu.compiler.op_kernels.gemm.gemm_mma import finish_step
from vgg16gpu.compiler.op_kernels.layout import scales
from vgg16gpu.compiler.op_kernels.layout.pack import gemm_input, pack_gemm
from vgg16gpu.compiler.op_kernels.mma import (
    MmaTile,
    gemm_grid,
    gemm_parts,
    gemm_workspace_nbytes,
    starts_early,
)
from vgg16gpu.compiler.op_kernels.mma_pairs import is_wide, output_dtype, stores_pairs
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch
from vgg16gpu.program.types import DType, Pointer, TensorDesc

SOURCE: Final = "gemm_mma_pairs.cu"
TILES: Final = (  # by rising px; the last one is for all larger batches
    MmaTile(64, 8, 32, 8, stages=4, min_blocks=6),
    MmaTile(64, 16, 32, 16, stages=4, min_blocks=5),
    MmaTile(64, 32, 32, 16, stages=4, min_blocks=4),
    MmaTile(64, 64, 32, 32, min_blocks=3),
)
CPU_TILE: Final = TILES[1]
_BIAS_ALIGNMENT: Final = 64  # floats of the vectors that the kernels finish with


class GemmWeights(NamedTuple):
    """Hold what the kernels read beside their input; of vectors a float for each output."""

    weight: Pointer  # (outputs, stored features of x) float32
    row_scale: Pointer  # what a row of weights is multiplied by
    dequant: Pointer  # what takes the scales of weights and input out of a sum
    bias: Pointer
    out_scale: Pointer  # what outputs are multiplied by before they are stored


def kernels(tile: MmaTile, out_element: DType) -> tuple[Kernel, Kernel]:
    """Return the kernels of the parts of sums, and of the finish, compiled together."""
    defines = (
        ("TILE_OUT", tile.out),
        ("TILE_N", tile.px),
        ("WARP_OUT", tile.warp_out),
        ("WARP_N", tile.warp_px),
        ("STAGES", tile.stages),
        ("MIN_BLOCKS", tile.min_blocks),
        ("OUT_ELEMENT", out_element.number),
    )
    return Kernel(SOURCE, "gemm_mma_pairs", defines), Kernel(SOURCE, "gemm_mma_pairs_finish", defines)


VARIANTS = (  # tools/ptxas.py
    *(kernels(tile, element)[0].defines for tile in TILES for element in (DType.F16_PAIR, DType.F32)),
    (*kernels(TILES[0], DType.F16_PAIR)[0].defines, CLIPS),
)


def supports(layer: OpContext[Gemm]) -> bool:
    """Return whether features and outputs are stored in whole tiles."""
    channels, _ = gemm_input(layer.x_shape, layer.op.flattens)
    return stores_pairs(layer) and is_wide(layer.op.weight.shape[0]) and is_wide(channels)


def weights(layer: OpContext[Gemm], arena: WeightPacker) -> GemmWeights:
    """Pack weights as float32, with the vectors that go with them."""
    assert layer.x_scaling is not None  # pairs have scales
    assert layer.y_scaling is not None
    op, outputs = layer.op, layer.op.weight.shape[0]
    channels, pixels = gemm_input(layer.x_shape, op.flattens)
    weight = pack_gemm(op.weight, channels, pixels, arena, DType.F32, DType.F16_PAIR.channel_alignment)
    length = pixels * DType.F16_PAIR.padded(channels)
    rows = scales.WeightRows(weight, outputs, length, 1, length, 1, 0)
    stored = DType.F16_PAIR.padded(outputs)
    made = scales.scale_rows(rows, stored, layer.x_scaling, layer.y_scaling.level, arena, folds=False)
    bias = arena.add_vector(op.bias, outputs, _BIAS_ALIGNMENT)
    return GemmWeights(weight, made.scale, made.dequant, bias, layer.y_scaling.scale)


def workspace_nbytes(layer: OpContext[Gemm]) -> int:
    """Return the bytes of the parts of the sums."""
    channels, pixels = gemm_input(layer.x_shape, layer.op.flattens)
    row_nbytes = DType.F32.nbytes * pixels * DType.F16_PAIR.padded(channels)
    return gemm_workspace_nbytes(layer.x_shape[0], layer.op.weight.shape[0], row_nbytes)


def steps(
    layer: OpContext[Gemm], x: TensorDesc, y: TensorDesc, held: GemmWeights, places: OpMemory
) -> tuple[KernelLaunch, ...]:
    """Return two launches: the parts of the sums, and what finishes them."""
    op = layer.op
    batch, outputs, length = x.shape[0], op.weight.shape[0], math.prod(x.stored_shape[1:])
    row_nbytes = DType.F32.nbytes * length
    tile = _tile(layer)
    main, last = kernels(tile, y.element)
    parts, part_nbytes = gemm_parts(row_nbytes)
    label = f"gemm {op.weight.shape[1]}->{outputs}{activation_label(op)}"
    product = KernelLaunch(
        kernel=main,
        grid=gemm_grid(tile, batch, outputs, row_nbytes),
        block=Dim3(tile.threads),
        arguments=(
            *(places.workspace, x.pointer, held.weight, held.row_scale),
            *scalars(batch, outputs, length, part_nbytes),
        ),
        shared=tile.shared,
        flop=2 * batch * op.weight.size,
        nbytes=x.nbytes + DType.F32.nbytes * op.weight.size,
        names=op.names,
        label=label,
        programmatic=starts_early(layer.facts, batch),
    )
    return product, finish_step(op, last, y, (held.dequant, held.bias, held.out_scale), places, parts, product)


def _tile(layer: OpContext[Gemm]) -> MmaTile:
    """Return the first tile that holds the batch, or the largest that fits into shared memory."""
    if layer.facts.kind == "cpu":
        return CPU_TILE
    fitting = [tile for tile in TILES if tile.shared <= layer.facts.shared_nbytes]
    return next((tile for tile in fitting if layer.x_shape[0] <= tile.px), fitting[-1])


OP_KERNEL = OpKernel(
    Gemm,
    steps,
    weights,
    workspace_nbytes,
    family="mma",
    priority=-1,
    supports=supports,
    input_dtypes=lambda _: (DType.F16_PAIR,),
    output_dtype=output_dtype,
    output_alignment=4,
)
