"""Fully connected layers on Hopper: the Python side of kernels/gemv.cu (batch 1) and gemm_wgmma.cu (above).

Both read one copy of the weights, (OUT, K) row-major; for fp32 that is the float32 copy of the portable kernel.
"""

from __future__ import annotations

import math

import numpy as np

from vgg16gpu.graph import Gemm
from vgg16gpu.ops import scales
from vgg16gpu.ops.base import BLOCK, Constants, Layer, Lowering, Places, WeightArena, ceil_div, scalars
from vgg16gpu.ops.pack import gemm_input, pack_gemm
from vgg16gpu.ops.wgmma import computes, finish_bytes, is_wide, x_element, y_element
from vgg16gpu.program import Dim3, Element, Kernel, Step, TensorMap, Value

GEMV, GEMM = "gemv.cu", "gemm_wgmma.cu"
TILE_OUT = 128  # outputs of a block of gemm_wgmma
TILES_N = (16, 32, 64, 128)
MAX_PART = 8192  # products: longer float32 sums would lose what the splitting of weights keeps
MAX_SPLITS = 8  # the last block to arrive adds the parts alone
BOX_NBYTES = 128
SHARED_NBYTES = 220 << 10
MAX_STAGES = 12


def supports(layer: Layer) -> bool:
    """Fully connected layers of more than a few features and outputs."""
    return computes(layer) and is_wide(layer, gemm_input(layer.x_shape, layer.op.flattens)[0])


def takes(layer: Layer) -> tuple[Element, ...]:
    """One image may also come as float32 where the weights are float32."""
    element = x_element(layer)
    return (element, Element.F32) if element is Element.F16_PAIR and layer.x_shape[0] == 1 else (element,)


def gives(layer: Layer, wanted: tuple[Element, ...]) -> Element:
    """float32 where the reader takes it, as the last layer's does."""
    return Element.F32 if Element.F32 in wanted else y_element(layer)


def weights(layer: Layer, arena: WeightArena) -> Constants:
    """Weights; bias; dequant for pairs in both kernels, and for float32; output scale; row scale."""
    op: Gemm = layer.op
    element = x_element(layer)
    outputs = op.weight.shape[0]
    channels, pixels = gemm_input(layer.x_shape, op.flattens)
    stored, raw = (Element.F32, op.weight) if element is Element.F16_PAIR else (element, op.weight)
    if layer.quantised is not None:
        stored, raw = Element.S8, layer.quantised.weight
    weight = pack_gemm(raw, channels, pixels, arena, stored, element.channel_alignment)
    if layer.quantised is not None:
        finish = finish_bytes(layer, arena)
        return weight, finish.bias, finish.dequant, finish.dequant, finish.dequant, finish.out_scale, finish.dequant
    bias = arena.add_channels(op.bias, outputs, element)
    ones = arena.add_channels(np.ones(outputs, np.float32), outputs, element)
    if element is not Element.F16_PAIR:
        return weight, bias, ones, ones, ones, ones, ones
    assert layer.x_scaling is not None and layer.y_scaling is not None  # pairs have scales
    length = pixels * element.padded(channels)
    rows = scales.Rows(weight, outputs, length, 1, length, 1, 0)
    padded = element.padded(outputs)
    made = scales.scale_rows(rows, padded, layer.x_scaling, layer.y_scaling.level, arena, folds=False)
    return weight, bias, made.dequant, made.plain, ones, layer.y_scaling.scale, made.scale


def splits(layer: Layer) -> int:
    """Blocks of gemm_wgmma that share a sum: as many as keep every multiprocessor busy once, but no longer sums."""
    outputs, reduction = layer.op.weight.shape
    tiles = ceil_div(outputs, TILE_OUT) * ceil_div(layer.x_shape[0], tile_n(layer.x_shape[0]))
    busy = min(layer.facts.multiprocessors // tiles, ceil_div(reduction, 2 * tile_k(layer)), MAX_SPLITS)
    return max(1, busy, ceil_div(reduction, MAX_PART))


def tile_k(layer: Layer) -> int:
    """Products of a stage of gemm_wgmma: at most 128 bytes of activations, which bytes have to be."""
    return 128 if layer.quantised is not None else 64


def tile_n(batch: int) -> int:
    """Images of a block of gemm_wgmma."""
    return next((tile for tile in TILES_N if batch <= tile), TILES_N[-1])


def workspace_nbytes(layer: Layer) -> int:
    """Room for the parts of split sums."""
    batch = layer.x_shape[0]
    if batch == 1:
        return 0
    tile = tile_n(batch)
    tiles = ceil_div(layer.op.weight.shape[0], TILE_OUT) * ceil_div(batch, tile)
    return 4 * tiles * splits(layer) * TILE_OUT * tile


def counters(layer: Layer) -> int:
    """Two words for each tile of gemm_wgmma."""
    batch = layer.x_shape[0]
    return 0 if batch == 1 else 2 * ceil_div(layer.op.weight.shape[0], TILE_OUT) * ceil_div(batch, tile_n(batch))


def steps(layer: Layer, x: Value, y: Value, constants: Constants, places: Places) -> tuple[Step, ...]:
    """One launch."""
    return (_gemv if x.shape[0] == 1 else _gemm)(layer, x, y, constants, places)


def _gemv(layer: Layer, x: Value, y: Value, constants: Constants, places: Places) -> tuple[Step, ...]:
    op: Gemm = layer.op
    weight, bias, _, plain, ones, out_scale, _ = constants
    outputs = op.weight.shape[0]
    stored = _stored(x.element)
    rows, unroll, split = gemv_tile(stored, outputs, _length(x))
    macros = {"WEIGHT": stored.number, "INPUT": x.element.number, "OUTPUT": y.element.number}
    macros |= {"ROWS": rows, "UNROLL_K": unroll, "SPLIT_K": split}
    per_block = BLOCK // 32 // split * rows
    return (
        _step(
            layer,
            Kernel(GEMV, "gemv", tuple(macros.items())),
            Dim3(ceil_div(max(outputs, y.pitch), per_block)),
            BLOCK,
            (
                *(y.pointer, x.pointer, weight, bias, plain if x.element is Element.F16_PAIR else ones),
                *(out_scale, places.maxima),
                *scalars(1, x.shape[0], outputs, _length(x), y.pitch, int(op.relu)),
            ),
            0,
            x,
            y,
        ),
    )


def gemv_tile(weight: Element, outputs: int, length: int) -> tuple[int, int, int]:
    """(ROWS, UNROLL_K, SPLIT_K) with the most bandwidth on an H200 for weights of that size."""
    large = outputs * length * weight.nbytes > LARGE_NBYTES
    if weight is Element.F32:
        return (1, 4, 1) if large else (2, 2, 8)
    if outputs < SMALL_OUTPUTS:
        return 2, 2, 8
    return (4, 1, 8) if large else (4, 1, 4)


LARGE_NBYTES = 100 << 20
SMALL_OUTPUTS = 2048


def _gemm(layer: Layer, x: Value, y: Value, constants: Constants, places: Places) -> tuple[Step, ...]:
    op: Gemm = layer.op
    weight, bias, dequant, _, _, out_scale, row_scale = constants
    batch, outputs, length = x.shape[0], op.weight.shape[0], _length(x)
    stored, tile, parts = _stored(x.element), tile_n(batch), splits(layer)
    depth = tile_k(layer)
    stage_nbytes = depth * (TILE_OUT * stored.nbytes + tile * x.element.planes * x.element.nbytes)
    stages = min(MAX_STAGES, SHARED_NBYTES // stage_nbytes)
    macros = {"WEIGHT": stored.number, "INPUT": x.element.number, "OUTPUT": y.element.number}
    macros |= {"TILE_N": tile, "TILE_K": depth, "STAGES": stages}
    box = BOX_NBYTES // stored.nbytes
    weight_map = TensorMap(weight, stored, (length, outputs), (length * stored.nbytes,), (box, TILE_OUT))
    size = x.element.nbytes
    input_map = TensorMap(
        x.pointer,
        x.element,
        (length, batch, x.element.planes),
        (length * size, length * size * batch),
        (BOX_NBYTES // size, tile, x.element.planes),
    )
    return (
        _step(
            layer,
            Kernel(GEMM, "gemm_wgmma", tuple(macros.items())),
            Dim3(ceil_div(batch, tile), ceil_div(outputs, TILE_OUT), parts),
            384,
            (
                *(weight_map, input_map, _output_map(y, tile)),
                *(y.pointer, bias, dequant, out_scale, row_scale, places.workspace, places.counters, places.maxima),
                *(places.control.error, *scalars(layer.number, batch, length, y.pitch, 1, int(op.relu))),
            ),
            1024 + stages * stage_nbytes,
            x,
            y,
        ),
    )


def _output_map(y: Value, tile: int) -> TensorMap:
    """The stored output; where it is float32 the kernel does not use the map."""
    element = Element.F16 if y.element is Element.F32 else y.element
    batch, size = y.shape[0], element.nbytes
    pitch = ceil_div(y.pitch, 64) * 64
    dimensions = pitch, 1, batch, element.planes
    strides = pitch * size, pitch * size, pitch * size * batch
    return TensorMap(y.pointer, element, dimensions, strides, (64, 1, tile, 1))


def _stored(element: Element) -> Element:
    """What weights are stored as for activations of this element."""
    if element in (Element.F16_PAIR, Element.F32):
        return Element.F32
    return Element.S8 if element is Element.U8 else element


def _length(x: Value) -> int:
    """Stored features of an image."""
    return math.prod(x.stored_shape[1:])


def _step(
    layer: Layer,
    kernel: Kernel,
    grid: Dim3,
    threads: int,
    arguments: tuple[object, ...],
    shared: int,
    x: Value,
    y: Value,
) -> Step:
    op: Gemm = layer.op
    batch, outputs = x.shape[0], op.weight.shape[0]
    return Step(
        kernel=kernel,
        grid=grid,
        block=Dim3(threads),
        arguments=arguments,  # type: ignore[arg-type]
        shared=shared,
        flop=2 * batch * op.weight.size,
        nbytes=x.nbytes + y.nbytes + _stored(x.element).nbytes * op.weight.size + 4 * outputs,
        names=op.names,
        label=f"gemm {op.weight.shape[1]}->{outputs}" + " + relu" * op.relu,
        early=batch <= 8,
    )


LOWERING = Lowering(
    Gemm, steps, weights, workspace_nbytes, counters, family="wgmma", supports=supports, takes=takes, gives=gives
)
