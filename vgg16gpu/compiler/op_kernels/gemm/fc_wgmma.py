"""Fully connected layers on Hopper: the Python side of kernels/gemm/gemv.cu (batch 1) and gemm_wgmma.cu (above).

Both read one copy of the weights, (OUT, K) row-major; for fp32 that is the float32 copy of the portable kernel.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Generic, NamedTuple

import numpy as np

from vgg16gpu.compiler.graph.ops import Gemm
from vgg16gpu.compiler.op_kernels import tile_choice
from vgg16gpu.compiler.op_kernels.activation import activated, activation, activation_label
from vgg16gpu.compiler.op_kernels.base import (
    BLOCK,
    Held,
    OpContext,
    OpKernel,
    OpMemory,
    WeightPacker,
    ceil_div,
    scalars,
)
from vgg16gpu.compiler.op_kernels.gemm.fc_wgmma_tiles import (
    GROUPS_PER_SM,
    KINDS,
    MAX_SPLITS,
    TILE_OUT,
    TILES_N,
    GemmDesc,
    GemmTile,
    GemvTile,
    Tile,
    depths,
    stored,
    usual,
)
from vgg16gpu.compiler.op_kernels.layout import scales
from vgg16gpu.compiler.op_kernels.layout.pack import Weights, gemm_input, pack_gemm
from vgg16gpu.compiler.op_kernels.tile_choice import PROGRAMMATIC_BATCH, Choice
from vgg16gpu.compiler.op_kernels.wgmma import computes, finish_bytes, is_wide, x_element, y_element
from vgg16gpu.program.launch import Argument, Dim3, Kernel, KernelLaunch, TmaDescriptor
from vgg16gpu.program.types import DeviceFacts, DType, Pointer, TensorDesc

GEMV, GEMM = "gemv.cu", "gemm_wgmma.cu"
BOX_NBYTES = 128


class FcWeights(NamedTuple, Generic[Held]):
    """What both kernels read beside their input: weights, and vectors with a float for each stored output.

    `dequant`, `pairs_dequant` and `plain_dequant` take scales out of sums. What an element does not need is not read.
    """

    weight: Held  # (OUT, K)
    bias: Held
    dequant: Held  # of gemm_wgmma
    pairs_dequant: Held  # of gemv, which does not scale weights, where x is pairs
    plain_dequant: Held  # of gemv where x is anything else
    out_scale: Held  # what outputs are multiplied by before they are stored
    row_scale: Held  # what gemm_wgmma multiplies a row of float32 weights by


def candidates(problem: GemmDesc, multiprocessors: int) -> tuple[Choice[Tile], ...]:
    """Return every tile that is worth a try, the one without measurements first."""
    known: list[Tile] = [
        GemvTile(rows, unroll, split) for rows in (1, 2, 4, 8) for unroll in (1, 2, 4) for split in (1, 2, 4, 8)
    ]
    for depth in depths(problem.element):
        known += [GemmTile(images, depth, splits) for images in TILES_N for splits in range(1, MAX_SPLITS + 1)]
    best = usual(problem, multiprocessors)
    tiles = [best, *(tile for tile in known if tile.fits(problem) and tile != best)]
    return tuple(Choice(tile, programmatic=problem.batch <= PROGRAMMATIC_BATCH) for tile in tiles)


def choose(problem: GemmDesc, facts: DeviceFacts) -> Choice[Tile]:
    """Return the tile in the device's table if it fits, else the usual one."""
    choice = tile_choice.found(facts, problem.key, KINDS)
    if choice is None or not choice.tile.fits(problem):
        return Choice(usual(problem, facts.multiprocessors), problem.batch <= PROGRAMMATIC_BATCH)
    return choice


def problem_of(layer: OpContext[Gemm]) -> GemmDesc:
    """Return the product of a layer."""
    element = x_element(layer)
    channels, pixels = gemm_input(layer.x_shape, layer.op.flattens)
    return GemmDesc(layer.x_shape[0], layer.op.weight.shape[0], pixels * element.padded(channels), element)


def supports(layer: OpContext[Gemm]) -> bool:
    """Return whether the layer has more than a few features and outputs."""
    return computes(layer) and is_wide(layer, gemm_input(layer.x_shape, layer.op.flattens)[0])


def input_dtypes(layer: OpContext[Gemm]) -> tuple[DType, ...]:
    """Return the accepted dtypes; one image may also be float32 if the weights are float32."""
    element = x_element(layer)
    channels, _ = gemm_input(layer.x_shape, layer.op.flattens)
    unpadded = DType.F32.padded(channels) == element.padded(channels)  # as the weights are
    plain = element is DType.F16_PAIR and layer.x_shape[0] == 1 and unpadded
    return (element, DType.F32) if plain else (element,)


def output_dtype(layer: OpContext[Gemm], wanted: tuple[DType, ...]) -> DType:
    """Return float32 if the reader takes it, as the last layer's does, else the stored dtype."""
    return DType.F32 if DType.F32 in wanted else y_element(layer)


def weights(layer: OpContext[Gemm], arena: WeightPacker) -> FcWeights[Pointer]:
    """Pack weights and their vectors."""
    op = layer.op
    element = x_element(layer)
    outputs = op.weight.shape[0]
    channels, pixels = gemm_input(layer.x_shape, op.flattens)
    raw: Weights = op.weight
    stored = DType.F32 if element is DType.F16_PAIR else element
    if layer.quantised is not None:
        stored, raw = DType.S8, layer.quantised.weight
    weight = pack_gemm(raw, channels, pixels, arena, stored, element.channel_alignment)
    if layer.quantised is not None:
        finish = finish_bytes(op, layer.quantised, arena)
        unread = finish.dequant
        return FcWeights(
            weight,
            bias=finish.bias,
            dequant=finish.dequant,
            pairs_dequant=unread,
            plain_dequant=finish.dequant,
            out_scale=finish.out_scale,
            row_scale=unread,
        )
    bias = arena.add_channels(op.bias, outputs, element)
    ones = unread = arena.add_channels(np.ones(outputs, np.float32), outputs, element)
    if element is not DType.F16_PAIR:
        return FcWeights(
            weight,
            bias=bias,
            dequant=ones,
            pairs_dequant=unread,
            plain_dequant=ones,
            out_scale=unread,
            row_scale=unread,
        )
    assert layer.x_scaling is not None  # pairs have scales
    assert layer.y_scaling is not None
    length = pixels * element.padded(channels)
    rows = scales.WeightRows(weight, outputs, length, 1, length, 1, 0)
    padded = element.padded(outputs)
    made = scales.scale_rows(rows, padded, layer.x_scaling, layer.y_scaling.level, arena, folds=False)
    return FcWeights(
        weight,
        bias=bias,
        dequant=made.dequant,
        pairs_dequant=made.plain,
        plain_dequant=ones,
        out_scale=layer.y_scaling.scale,
        row_scale=made.scale,
    )


def workspace_nbytes(layer: OpContext[Gemm]) -> int:
    """Return the bytes for the parts of split sums."""
    problem = problem_of(layer)
    tile = choose(problem, layer.facts).tile
    if isinstance(tile, GemvTile):
        return 0
    return 4 * math.prod(tile.tiles(problem)) * tile.splits * TILE_OUT * tile.images


def counters(layer: OpContext[Gemm]) -> int:
    """Return two words for each tile of gemm_wgmma, one where groups of gemv walk."""
    problem = problem_of(layer)
    tile = choose(problem, layer.facts).tile
    if isinstance(tile, GemvTile):
        return int(tile.walks(problem, layer.facts.multiprocessors))
    return 2 * math.prod(tile.tiles(problem))


def steps(
    layer: OpContext[Gemm], x: TensorDesc, y: TensorDesc, held: FcWeights[Pointer], places: OpMemory
) -> tuple[KernelLaunch, ...]:
    """Return one launch."""
    problem = problem_of(layer)
    choice = choose(problem, layer.facts)
    if isinstance(choice.tile, GemvTile):
        step = _gemv(layer, problem, choice.tile, x, y, held, places)
    else:
        step = _gemm(layer, problem, choice.tile, x, y, held, places)
    return (replace(step, programmatic=choice.programmatic),)


def _gemv(
    layer: OpContext[Gemm],
    problem: GemmDesc,
    tile: GemvTile,
    x: TensorDesc,
    y: TensorDesc,
    held: FcWeights[Pointer],
    places: OpMemory,
) -> KernelLaunch:
    dequant = held.pairs_dequant if x.element is DType.F16_PAIR else held.plain_dequant
    macros = {"WEIGHT": problem.stored.number, "INPUT": x.element.number, "OUTPUT": y.element.number}
    macros |= {"ROWS": tile.rows, "UNROLL_K": tile.unroll, "SPLIT_K": tile.split}
    walks = tile.walks(problem, layer.facts.multiprocessors)
    groups = GROUPS_PER_SM if walks else 1
    macros["GROUPS"] = groups
    return _step(
        layer,
        activated(Kernel(GEMV, "gemv", tuple(macros.items())), layer.op),
        Dim3(layer.facts.multiprocessors if walks else ceil_div(max(problem.outputs, y.pitch), tile.outputs)),
        BLOCK * groups,
        (
            *(y.pointer, x.pointer, held.weight, held.bias, dequant, held.out_scale, places.counters, places.maxima),
            *scalars(problem.outputs, problem.length, y.pitch),
            *activation(layer.op),
        ),
        problem.input_nbytes if walks else 0,
        x,
        y,
    )


def _gemm(
    layer: OpContext[Gemm],
    problem: GemmDesc,
    tile: GemmTile,
    x: TensorDesc,
    y: TensorDesc,
    held: FcWeights[Pointer],
    places: OpMemory,
) -> KernelLaunch:
    batch, length, stored, stages = problem.batch, problem.length, problem.stored, tile.stages(problem)
    macros = {"WEIGHT": stored.number, "INPUT": x.element.number, "OUTPUT": y.element.number}
    macros |= {"TILE_N": tile.images, "TILE_K": tile.depth, "STAGES": stages}
    box = BOX_NBYTES // stored.nbytes
    weight_map = TmaDescriptor(
        held.weight, stored, (length, problem.outputs), (length * stored.nbytes,), (box, TILE_OUT)
    )
    size = x.element.nbytes
    input_map = TmaDescriptor(
        x.pointer,
        x.element,
        (length, batch, x.element.planes),
        (length * size, length * size * batch),
        (BOX_NBYTES // size, tile.images, x.element.planes),
    )
    return _step(
        layer,
        activated(Kernel(GEMM, "gemm_wgmma", tuple(macros.items())), layer.op),
        Dim3(*tile.tiles(problem), tile.splits),
        384,
        (
            *(weight_map, input_map, _output_map(y, tile.images)),
            *(y.pointer, held.bias, held.dequant, held.out_scale, held.row_scale),
            *(places.workspace, places.counters, places.maxima),
            places.control.error,
            *scalars(layer.number, batch, length, y.pitch, 1),
            *activation(layer.op),
        ),
        1024 + stages * tile.stage_nbytes(problem),
        x,
        y,
    )


def _output_map(y: TensorDesc, tile: int) -> TmaDescriptor:
    """Return the descriptor of the stored output; the kernel does not use that of float32."""
    element = DType.F16 if y.element is DType.F32 else y.element
    batch, size = y.shape[0], element.nbytes
    pitch = ceil_div(y.pitch, 64) * 64
    dimensions = pitch, 1, batch, element.planes
    strides = pitch * size, pitch * size, pitch * size * batch
    return TmaDescriptor(y.pointer, element, dimensions, strides, (64, 1, tile, 1))


def _step(
    layer: OpContext[Gemm],
    kernel: Kernel,
    grid: Dim3,
    threads: int,
    arguments: tuple[Argument, ...],
    shared: int,
    x: TensorDesc,
    y: TensorDesc,
) -> KernelLaunch:
    op = layer.op
    batch, outputs = x.shape[0], op.weight.shape[0]
    return KernelLaunch(
        kernel=kernel,
        grid=grid,
        block=Dim3(threads),
        arguments=arguments,
        shared=shared,
        flop=2 * batch * op.weight.size,
        nbytes=x.nbytes + y.nbytes + stored(x.element).nbytes * op.weight.size + 4 * outputs,
        names=op.names,
        label=f"gemm {op.weight.shape[1]}->{outputs}{activation_label(op)}",
    )


OP_KERNEL = OpKernel(
    Gemm,
    steps,
    weights,
    workspace_nbytes,
    counters,
    family="wgmma",
    supports=supports,
    input_dtypes=input_dtypes,
    output_dtype=output_dtype,
)
