"""The first convolution of a network on Hopper's tensor cores: the Python side of kernels/conv/conv_first.cu.

It reads the run-time input as the user gives it, so that the input is stored in no other form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from vgg16gpu.compiler.graph.ops import Conv
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
from vgg16gpu.compiler.op_kernels.conv.common import TAPS, label
from vgg16gpu.compiler.op_kernels.conv.same_3x3 import computes_3x3
from vgg16gpu.compiler.op_kernels.layout import scales
from vgg16gpu.compiler.op_kernels.tile_choice import PROGRAMMATIC_BATCH, Choice
from vgg16gpu.compiler.op_kernels.wgmma import (
    TILE_CHANNELS,
    RawWeights,
    aligned,
    feature_map,
    finish_bytes,
    pack_raw,
    stored_element,
    y_element,
)
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch
from vgg16gpu.program.types import DeviceFacts, DType, Pointer, TensorDesc

Scalar = TypeVar("Scalar", bound=np.generic)

SOURCE = "conv_first.cu"
MAX_CHANNELS = 4
MAX_TILE_WIDTH = 128  # pixels; wider tiles leave room for fewer blocks
MAX_PAIR_WIDTH = 80  # a thread holds four sums of each of its values
MIN_ROWS, MAX_ROWS = 2, 7  # of a block: more read less of the input twice, fewer keep all multiprocessors busy
BLOCKS_PER_SM = 5
PAIR_MAX_ROWS, PAIR_BLOCKS_PER_SM = 8, 2  # measured from 224 to 1024 pixels
THREADS = 128


class FirstConvWeights(NamedTuple, Generic[Held]):
    """What the kernel reads beside its input, in its order: weights, and vectors with a float for each stored output.

    float16 and bfloat16 need no scales, int8 none of weights: in place of these stands `bias`, which is not read there.
    """

    weight: Held  # (OCP, K), K in the order (kh, kw, c)
    weight_scale: Held  # what a row of weights is multiplied by
    bias: Held
    dequant: Held  # what takes the scales of weights and input out of a sum
    out_scale: Held  # what outputs are multiplied by before they are stored
    in_scale: Held  # one float: what the input is multiplied by


@dataclass(frozen=True)
class FirstConvDesc:
    """A first convolution as the kernel sees it."""

    batch: int
    height: int
    width: int
    out_channels: int  # stored
    element: DType  # of the products

    @property
    def key(self) -> str:
        """The name of the problem in tables of measured tiles."""
        return tile_choice.key("conv_first", self)

    @property
    def max_width(self) -> int:
        """The widest tile that is worth a try."""
        return MAX_PAIR_WIDTH if self.element is DType.F16_PAIR else MAX_TILE_WIDTH


@dataclass(frozen=True)
class FirstConvTile:
    """What a block computes: rows of the map, and so many pixels of each."""

    table_name: ClassVar = "Tile"  # in tables of tiles

    width: int
    rows: int

    def fits(self, problem: FirstConvDesc) -> bool:
        """Return whether the kernel can be built and launched with this tile for this problem."""
        return self.width % 16 == 0 and 16 <= self.width <= problem.max_width and 1 <= self.rows <= problem.height


KINDS: Final = {FirstConvTile.table_name: FirstConvTile}


def problem_of(layer: OpContext[Conv]) -> FirstConvDesc:
    """Return the convolution of a layer."""
    batch, _, height, width = layer.x_shape
    element = _product_element(layer)
    return FirstConvDesc(batch, height, width, element.padded(layer.op.weight.shape[0]), element)


def _product_element(layer: OpContext[Conv]) -> DType:
    """Return the type in which products are computed: pairs if fp16 has to keep all of float32's digits, as in TF32."""
    return DType.F16_PAIR if layer.keeps_digits else y_element(layer)


def candidates(problem: FirstConvDesc, multiprocessors: int) -> tuple[Choice[FirstConvTile], ...]:
    """Return every tile that is worth a try, the one without measurements first."""
    widest = ceil_div(problem.width, problem.max_width)
    widths = {_even_width(problem.width, strips) for strips in range(widest, widest + 3)}
    known = [
        FirstConvTile(width, rows)
        for width in sorted(widths, reverse=True)
        for rows in (1, 2, 3, 4, 5, 6, 7, 8, 10, 14)
    ]
    best = _usual(problem, multiprocessors)
    tiles = [best, *(tile for tile in known if tile.fits(problem) and tile != best)]
    return tuple(Choice(tile, problem.batch <= PROGRAMMATIC_BATCH) for tile in tiles)


def choose(problem: FirstConvDesc, facts: DeviceFacts) -> Choice[FirstConvTile]:
    """Return the tile in the device's table if it fits, else the usual one."""
    choice = tile_choice.found(facts, problem.key, KINDS)
    if choice is None or not choice.tile.fits(problem):
        return candidates(problem, facts.multiprocessors)[0]
    return choice


def _usual(problem: FirstConvDesc, multiprocessors: int) -> FirstConvTile:
    width = _even_width(problem.width, ceil_div(problem.width, problem.max_width))
    strips = ceil_div(problem.width, width) * (problem.out_channels // TILE_CHANNELS)
    is_pair = problem.element is DType.F16_PAIR
    most, blocks = (PAIR_MAX_ROWS, PAIR_BLOCKS_PER_SM) if is_pair else (MAX_ROWS, BLOCKS_PER_SM)
    rows = ceil_div(problem.height * strips * problem.batch, blocks * multiprocessors)
    return FirstConvTile(width, min(max(rows, MIN_ROWS), most, problem.height))


def _even_width(width: int, strips: int) -> int:
    return ceil_div(ceil_div(width, strips), 16) * 16


def supports(layer: OpContext[Conv]) -> bool:
    """Return whether it is a 3x3 convolution of the run-time input, with up to four channels and without pool."""
    op = layer.op
    few = op.weight.shape[1] <= MAX_CHANNELS and not op.pool
    return few and layer.reads_input and computes_3x3(layer)


def weights(layer: OpContext[Conv], arena: WeightPacker) -> FirstConvWeights[Pointer]:
    """Pack weights and their vectors. For pairs weights are float32: the kernel scales them."""
    op = layer.op
    element = y_element(layer)
    outputs, channels = op.weight.shape[:2]
    reduction = TAPS * channels
    if layer.keeps_digits:
        return _unscaled_weights(layer, arena)
    if element is DType.F16_PAIR:
        return _split_weights(layer, arena)
    block = row_length(reduction, element.nbytes)
    rows = RawWeights(outputs, reduction, 1, (reduction, 1, 0))
    if layer.quantised is not None:
        packed = pack_raw(_flat(layer.quantised.weight), rows, DType.S8, block, arena)
        in_scale = arena.add(np.full(1, layer.quantised.x.inverse, np.float32))
        finish = finish_bytes(op, layer.quantised, arena)
        return FirstConvWeights(
            packed,
            weight_scale=finish.bias,  # unread
            bias=finish.bias,
            dequant=finish.dequant,
            out_scale=finish.out_scale,
            in_scale=in_scale,
        )
    bias = unread = arena.add_channels(op.bias, outputs, element)
    packed = pack_raw(_flat(op.weight), rows, element, block, arena)
    return FirstConvWeights(packed, weight_scale=unread, bias=bias, dequant=unread, out_scale=unread, in_scale=unread)


def _unscaled_weights(layer: OpContext[Conv], arena: WeightPacker) -> FirstConvWeights[Pointer]:
    """Add float32 weights for normalised pixels: three float16 hold either without scales."""
    op = layer.op
    rows = _float_rows(op)
    source, ones = arena.add(rows), arena.add(np.ones(len(rows), np.float32))
    bias = arena.add_channels(op.bias, op.weight.shape[0], DType.F16_PAIR)
    return FirstConvWeights(source, weight_scale=ones, bias=bias, dequant=ones, out_scale=ones, in_scale=ones)


def _float_rows(op: Conv) -> npt.NDArray[np.float32]:
    """Return float32 weights as (stored outputs, 9 C and zeros up to whole sectors)."""
    outputs, channels = op.weight.shape[:2]
    reduction = TAPS * channels
    rows = np.zeros((DType.F16_PAIR.padded(outputs), row_length(reduction, DType.F32.nbytes)), np.float32)
    rows[:outputs, :reduction] = _flat(op.weight)
    return rows


def _split_weights(layer: OpContext[Conv], arena: WeightPacker) -> FirstConvWeights[Pointer]:
    op = layer.op
    assert layer.x_scaling is not None  # pairs have scales
    assert layer.y_scaling is not None
    outputs, channels = op.weight.shape[:2]
    reduction, rows = TAPS * channels, _float_rows(op)
    stored, source = len(rows), arena.add(rows)
    known = scales.WeightRows(source, outputs, reduction, 1, rows.shape[1], 1, 0)
    made = scales.scale_rows(known, stored, layer.x_scaling, layer.y_scaling.level, arena, folds=False)
    bias = arena.add_channels(op.bias, outputs, DType.F16_PAIR)
    return FirstConvWeights(
        source,
        weight_scale=made.scale,
        bias=bias,
        dequant=made.dequant,
        out_scale=layer.y_scaling.scale,
        in_scale=layer.x_scaling.scale,
    )


def row_length(reduction: int, nbytes: int) -> int:
    """Return the elements of an output channel as stored: whole sectors of 32 bytes."""
    return ceil_div(reduction * nbytes, 32) * 32 // nbytes


def _flat(weight: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
    """Reshape (OC, C, 3, 3) to (OC, 9 C) in the order (kh, kw, c)."""
    return np.ascontiguousarray(weight.transpose(0, 2, 3, 1).reshape(len(weight), -1))


def steps(
    layer: OpContext[Conv], x: HostInput, y: TensorDesc, held: FirstConvWeights[Pointer], places: OpMemory
) -> tuple[KernelLaunch, ...]:
    """Return one launch."""
    op = layer.op
    batch, channels, height, width = layer.x_shape
    choice = choose(problem_of(layer), layer.facts)
    tile_width, rows = choice.tile.width, choice.tile.rows
    strips = ceil_div(width, tile_width) * (y.pitch // TILE_CHANNELS)
    products = _product_element(layer)
    macros = {
        "ELEMENT": products.number,
        "SOURCE": int(x.element_type == "uint8"),
        "IN_CHANNELS": channels,
        "TILE_W": tile_width,
    }
    macros |= {"OUT_ELEMENT": y.element.number} if y.element is not products else {}
    normalisation = x.normalisation or (held.bias, held.bias)  # not read with float32 inputs
    return (
        KernelLaunch(
            kernel=taking(activated(Kernel(SOURCE, "conv_first", tuple(macros.items())), op), x.limits),
            grid=Dim3(strips, ceil_div(height, rows), batch),
            block=Dim3(THREADS),
            arguments=(
                feature_map(y, (TILE_CHANNELS, tile_width, 1, 1)),
                *(x.pointer, *held, *normalisation, places.maxima),
                *scalars(1),
                places.control.status,
                *scalars(batch, height, width, y.pitch, rows),
                *activation(op),
                *input_limits(x.limits),
            ),
            shared=shared_nbytes(products, y.element, tile_width),
            flop=op.flop(layer.x_shape),
            nbytes=(1 if x.normalisation else 4) * batch * channels * height * width + y.nbytes,
            names=op.names,
            label=label(op),
            programmatic=choice.programmatic,
        ),
    )


def shared_nbytes(products: DType, element: DType, tile_width: int) -> int:
    """Return bytes of dynamic shared memory: staged output rows; per part weights and a ring of four input rows."""
    parts = 3 if products is DType.F16_PAIR else 1
    staged = element.planes * aligned(tile_width * TILE_CHANNELS * element.nbytes)
    weight_nbytes, row_nbytes = 3 * 2 * TILE_CHANNELS * 16, (tile_width + 2) * 16
    return 1024 + 2 * staged + parts * (weight_nbytes + 4 * row_nbytes)


OP_KERNEL = InputKernel(
    Conv,
    steps,
    weights,
    family="wgmma",
    priority=1,  # before conv_wgmma, which can compute a first layer, too
    supports=supports,
    output_dtype=lambda layer, _: stored_element(layer),
)
