"""The first convolution of a network on mma.sync: the Python side of kernels/conv/conv_mma_first.cu.

It reads the run-time input as the user gives it, so that the input is stored in no other form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from vgg16gpu.compiler.graph.ops import Array, Conv
from vgg16gpu.compiler.op_kernels import mma
from vgg16gpu.compiler.op_kernels.activation import CLIPS, CLIPS_INPUT, activated, activation, input_limits, taking
from vgg16gpu.compiler.op_kernels.base import (
    HostInput,
    InputKernel,
    OpContext,
    OpMemory,
    WeightPacker,
    ceil_div,
    scalars,
)
from vgg16gpu.compiler.op_kernels.conv.common import is_same_3x3, label
from vgg16gpu.compiler.op_kernels.layout.pack import pack_gemm
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch, Scalar
from vgg16gpu.program.types import DType, Pointer, TensorDesc

if TYPE_CHECKING:
    from vgg16gpu.compiler.quantization.scheme import Integers8

SOURCE: Final = "conv_mma_first.cu"
KINDS: Final = ("cuda",)  # of devices where it is planned; it runs on any
MAX_CHANNELS: Final = 4
TILE_CHANNELS: Final = 64
TILE_COLUMNS: Final = 32
MIN_BLOCKS: Final = 4  # on a multiprocessor: caps the registers
ROWS: Final = (14, 8, 4, 2)  # of a block, even: more read less of the input twice, fewer occupy all of a card
_ROW_NBYTES: Final = 2 * TILE_COLUMNS * 16  # of shared memory
_FILL_ROWS: Final = 3  # what a block costs before its first row, in rows


class MmaFirstConvWeights(NamedTuple):
    """Hold what the kernel reads beside its input, in its order."""

    weight: Pointer  # as `fragments` has them, of the element
    dequant: Pointer  # int8: what takes the scales of weights and input out of a sum; else not read
    bias: Pointer  # a float for each output, rounded up to whole tiles, as of dequant


def kernel(element: DType, source: str, channels: int, pixel: DType | None = None) -> Kernel:
    """Return the kernel that stores this element, of images of type "float32" or "uint8" with `channels` channels.

    pixel: int8: what pixels are rounded to; float16 holds these integers.
    """
    macros = {
        "ELEMENT": (DType.F16 if pixel else element).number,
        "IMAGE": int(source == "uint8"),
        "IN_CHANNELS": channels,
        "TILE_COLUMNS": TILE_COLUMNS,
        "MIN_BLOCKS": MIN_BLOCKS,
    }
    macros |= {"X_ELEMENT": pixel.number, "OUT_ELEMENT": element.number} if pixel else {}
    return Kernel(SOURCE, "conv_mma_first", tuple(macros.items()))


VARIANTS = (  # tools/ptxas.py
    *(
        kernel(element, source, channels).defines
        for element in mma.ELEMENTS.values()
        for source in ("float32", "uint8")
        for channels in (1, 3, 4)
    ),
    (*kernel(DType.F16, "uint8", 3).defines, CLIPS, CLIPS_INPUT),
    *(
        kernel(element, source, channels, pixel).defines
        for element, source, channels, pixel in (
            (DType.U8, "float32", 3, DType.S8),
            (DType.U8, "uint8", 3, DType.S8),
            (DType.S8, "float32", 4, DType.S8),
            (DType.S8, "uint8", 1, DType.U8),
            (DType.F32, "float32", 3, DType.S8),
        )
    ),
    (*kernel(DType.U8, "uint8", 3, DType.S8).defines, CLIPS, CLIPS_INPUT),
)


def supports(layer: OpContext[Conv]) -> bool:
    """Return whether it is a same-size 3x3 convolution of the run-time input, of up to four channels, without a pool.

    Not what a loss compares, which may want float32.
    """
    op = layer.op
    reads_image = layer.reads_input and op.weight.shape[1] <= MAX_CHANNELS
    known = layer.facts.kind in KINDS and mma.supports(layer)
    return reads_image and known and is_same_3x3(op) and not op.pool and not layer.compared


def weights(layer: OpContext[Conv], arena: WeightPacker) -> MmaFirstConvWeights:
    """Pack weights as fragments, and their vectors."""
    op, quantised = layer.op, layer.quantised
    outputs = op.weight.shape[0]
    found = fragments(op.weight if quantised is None else quantised.weight)
    element = mma.ELEMENTS[layer.precision] if quantised is None else DType.F16
    packed = pack_gemm(found, found.shape[1], 1, arena, element, 1)
    bias = arena.add_vector(op.bias, outputs, TILE_CHANNELS)
    dequant = bias if quantised is None else arena.add_vector(quantised.dequant, outputs, TILE_CHANNELS)
    return MmaFirstConvWeights(packed, dequant=dequant, bias=bias)


def fragments(
    weight: Array | Integers8, tile: int = TILE_CHANNELS, alignment: int = TILE_CHANNELS
) -> npt.NDArray[np.float32]:
    """Reorder (OC, C, 3, 3) to (rows, 8): eight values for each lane of a warp, by channel tiles, kh, 16 channels.

    Lane 4g + t has of rows g and g + 8 the values 2t, 2t + 1 of k, then the same of 2t + 8, 2t + 9; k is 4 kw + c, and
    row 8h + g of products i is channel tile/8 g + 2i + h: the outputs of a lane are neighbours. alignment: of channels.
    """
    outputs, channels = weight.shape[:2]
    tiles = ceil_div(outputs, alignment) * alignment // tile
    slots = np.zeros((tiles * tile, 3, 4, 4), np.float32)  # channel, kh, kw, c
    slots[:outputs, :, :3, :channels] = weight.transpose(0, 2, 3, 1)
    parts = slots.reshape(tiles, 8, tile // 16, 2, 3, 2, 4, 2)  # tile, g, i, h, kh, half of k, t, of two
    return np.ascontiguousarray(parts.transpose(0, 4, 2, 1, 6, 5, 3, 7).reshape(-1, 8))


def steps(
    layer: OpContext[Conv], x: HostInput, y: TensorDesc, held: MmaFirstConvWeights, places: OpMemory
) -> tuple[KernelLaunch, ...]:
    """Return one launch."""
    op, quantised = layer.op, layer.quantised
    batch, channels, height, width = layer.x_shape
    outputs = op.weight.shape[0]
    across = ceil_div(outputs, TILE_CHANNELS) * ceil_div(width, TILE_COLUMNS) * batch
    rows = choose_rows(height, across, layer.facts.multiprocessors)
    normalisation = x.normalisation or (held.bias, held.bias)  # not read with float32 inputs
    pixel = mma.x_element(layer) if quantised else None
    scales = (quantised.x, quantised.y) if quantised else (None, None)
    return (
        KernelLaunch(
            kernel=taking(activated(kernel(y.element, x.element_type, channels, pixel), op), x.limits),
            grid=Dim3(across * ceil_div(height, rows)),
            block=Dim3(4 * TILE_COLUMNS),
            arguments=(
                *(y.pointer, places.maxima, x.pointer, *held, *normalisation, places.control.status),
                *(Scalar(float(scale.inverse) if scale else 1.0, "f") for scale in scales),
                *scalars(height, width, outputs, y.pitch, rows),
                *activation(op),
                *scalars(1),
                *input_limits(x.limits),
            ),
            shared=(rows + 2) * _ROW_NBYTES,
            flop=op.flop(layer.x_shape),
            nbytes=(1 if x.normalisation else 4) * batch * channels * height * width + y.nbytes,
            names=op.names,
            label=label(op),
        ),
    )


def choose_rows(height: int, across: int, multiprocessors: int, resident: int = MIN_BLOCKS) -> int:
    """Return the rows of a block that minimise the work of a multiprocessor, for `across` tiles beside each other."""

    def work(rows: int) -> int:
        blocks = across * ceil_div(height, rows)
        return ceil_div(blocks, resident * multiprocessors) * (rows + _FILL_ROWS)

    return min(ROWS, key=work)


OP_KERNEL = InputKernel(
    Conv,
    steps,
    weights,
    family="mma",
    priority=2,
    supports=supports,
    output_dtype=lambda layer, wanted: mma.output_dtype(layer, wanted if layer.quantised else ()),
)
