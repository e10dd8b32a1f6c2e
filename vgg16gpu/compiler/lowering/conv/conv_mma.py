"""Convolution on the tensor cores of any card since Turing: the Python side of kernels/conv/conv_mma.cu."""

from __future__ import annotations

from vgg16gpu.compiler.graph.flop import flop
from vgg16gpu.compiler.graph.ops import Conv
from vgg16gpu.compiler.lowering.activation import activated, activation
from vgg16gpu.compiler.lowering.base import Layer, Lowering, Places, WeightArena, ceil_div, scalars
from vgg16gpu.compiler.lowering.conv.common import label
from vgg16gpu.compiler.lowering.layout.pack import pack_gemm
from vgg16gpu.compiler.lowering.mma import MmaWeights, gives, supports, with_finish, x_element
from vgg16gpu.compiler.lowering.mma_geometry import CONV_VARIANTS, CPU_CONV_TILE, MmaTile, choose_conv_tile, conv_grid
from vgg16gpu.errors import ModelError
from vgg16gpu.program.launches import Dim3 as Block
from vgg16gpu.program.launches import Step
from vgg16gpu.program.values import Element, Value

VARIANTS = CONV_VARIANTS  # tools/ptxas.py


def weights(layer: Layer[Conv], arena: WeightArena) -> MmaWeights:
    """Weights as (OC, KH, KW, padded C) of the element, and the vectors that go with them."""
    op = layer.op
    element = x_element(layer)
    raw = op.weight if layer.quantised is None else layer.quantised.weight
    channels = op.weight.shape[1]
    taps = op.window.kernel[0] * op.window.kernel[1]
    stored = Element.S8 if layer.quantised is not None else element
    packed = pack_gemm(raw, channels, taps, arena, stored, element.padded(channels))
    return with_finish(packed, layer, arena)


def steps(layer: Layer[Conv], x: Value, y: Value, held: MmaWeights, places: Places) -> tuple[Step, ...]:
    """One launch."""
    op = layer.op
    window = op.window
    out_h, out_w = window.output_size(x.shape[2], x.shape[3])
    if op.pool:
        out_h, out_w = out_h // 2 * 2, out_w // 2 * 2
    rows, out_channels = x.shape[0] * out_h * out_w, op.weight.shape[0]
    tile = _tile(layer, rows)
    _check_limits(layer, x, tile, rows)
    return (
        Step(
            kernel=activated(tile.conv_kernel(x.element, y.element, op.pool), op),
            grid=conv_grid(tile, rows, out_channels),
            block=Block(tile.threads),
            arguments=(
                *(y.pointer, places.maxima, x.pointer, *held),
                *scalars(rows, x.shape[2], x.shape[3], x.pitch, out_h, out_w, out_channels, y.pitch),
                *scalars(*window.kernel, *window.strides, window.pads.top, window.pads.left),
                *activation(op),
                *scalars(1),
            ),
            shared=tile.shared,
            flop=flop(op, x.shape),
            nbytes=x.nbytes + y.nbytes + x.element.nbytes * op.weight.size,
            names=op.names,
            label=label(op),
        ),
    )


def _tile(layer: Layer[Conv], rows: int) -> MmaTile:
    if layer.facts.kind == "cpu":
        return CPU_CONV_TILE
    facts = layer.facts
    return choose_conv_tile(rows, layer.op.weight.shape[0], facts.multiprocessors, facts.shared_nbytes)


def _check_limits(layer: Layer[Conv], x: Value, tile: MmaTile, rows: int) -> None:
    """The kernel has 16 bits for a map's rows and columns, 32 for the bytes of a tile's images."""
    op = layer.op
    image = x.nbytes // x.shape[0]
    images = 2 + tile.px * x.shape[0] // rows  # that the pixels of a tile come from, at most
    side = max(*x.shape[2:], *op.window.kernel, op.window.pads.top, op.window.pads.left)
    if side >= 1 << 15 or image * images >= 1 << 31 or ceil_div(rows, tile.px) >= 1 << 25:
        raise ModelError(
            f"Conv '{op.y}': its input {x.shape}, padded by {tuple(op.window.pads)}, is too large; maps and kernels "
            "may have up to 32767 rows and columns and the images of a tile 2 GB; use a smaller image or batch"
        )


LOWERING = Lowering(
    Conv,
    steps,
    weights,
    family="mma",
    supports=supports,
    takes=lambda layer: (x_element(layer),),
    gives=gives,
)
