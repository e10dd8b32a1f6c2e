"""A 3x3 convolution with the few outputs of an image: the Python side of kernels/conv/conv_few.cu."""

from __future__ import annotations

from typing import Final

from vgg16gpu.compiler.graph.ops import Conv
from vgg16gpu.compiler.op_kernels import mma
from vgg16gpu.compiler.op_kernels.activation import CLIPS, activated, activation
from vgg16gpu.compiler.op_kernels.base import (
    OpContext,
    OpKernel,
    OpMemory,
    PlainWeights,
    WeightPacker,
    ceil_div,
    scalars,
)
from vgg16gpu.compiler.op_kernels.conv.common import TAPS, is_same_3x3, label
from vgg16gpu.compiler.op_kernels.layout.pack import pack_gemm
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch
from vgg16gpu.program.types import DType, TensorDesc

SOURCE: Final = "conv_few.cu"
THREADS: Final = 128
CHUNK: Final = 64  # channels of a step
MOST_OUTPUTS: Final = 4  # an output pixel is one store
LARGE: Final = 16, 16  # rows and columns of a block's outputs
SMALL: Final = 8, 16
BLOCKS_AT_ONCE: Final = 4  # large tiles pay where each multiprocessor gets so many
MIN_BLOCKS: Final = (5, 5, 5, 4)  # on a multiprocessor, by the outputs: caps the registers


def kernel(element: DType, outputs: int, chunks: int, tile: tuple[int, int]) -> Kernel:
    """Return the kernel for `outputs` output channels and `chunks` times 64 input channels."""
    rows, columns = tile
    macros = {"ELEMENT": element.number, "OUTPUTS": outputs, "CHUNKS": chunks, "TILE_H": rows, "TILE_W": columns}
    return Kernel(SOURCE, "conv_few", (*macros.items(), ("MIN_BLOCKS", MIN_BLOCKS[outputs - 1])))


VARIANTS = tuple(
    kernel(element, outputs, chunks, tile).defines
    for element in mma.ELEMENTS.values()
    for outputs, chunks in ((1, 1), (3, 1), (4, 8))
    for tile in (LARGE, SMALL)
)
VARIANTS += ((*kernel(DType.F16, 3, 1, LARGE).defines, CLIPS),)  # tools/ptxas.py


def weights(layer: OpContext[Conv], arena: WeightPacker) -> PlainWeights:
    """Pack weights as (OC, 9, padded C) of the element, as conv_mma reads them, and 4 floats of bias."""
    op = layer.op
    element = mma.ELEMENTS[layer.precision]
    outputs, channels = op.weight.shape[:2]
    packed = pack_gemm(op.weight, channels, TAPS, arena, element, element.padded(channels))
    return PlainWeights(packed, arena.add_vector(op.bias, outputs, MOST_OUTPUTS))


def steps(
    layer: OpContext[Conv], x: TensorDesc, y: TensorDesc, held: PlainWeights, places: OpMemory
) -> tuple[KernelLaunch, ...]:
    """Return one launch."""
    del places
    op = layer.op
    batch, _, height, width = x.shape
    outputs = op.weight.shape[0]
    rows, columns = tile = choose_tile(batch, height, width, layer.facts.multiprocessors)
    across = ceil_div(width, columns)
    return (
        KernelLaunch(
            kernel=activated(kernel(x.element, outputs, x.pitch // CHUNK, tile), op),
            grid=Dim3(across * ceil_div(height, rows), batch),
            block=Dim3(THREADS),
            arguments=(y.pointer, x.pointer, *held, *scalars(height, width, across), *activation(op)),
            flop=op.flop(x.shape),
            nbytes=x.nbytes + y.nbytes + x.element.nbytes * op.weight.size,
            names=op.names,
            label=label(op),
        ),
    )


def choose_tile(batch: int, height: int, width: int, multiprocessors: int) -> tuple[int, int]:
    """Return (rows, columns) of a block's outputs: large tiles read less twice, small ones occupy the whole card."""
    rows, columns = LARGE
    blocks = batch * ceil_div(height, rows) * ceil_div(width, columns)
    return LARGE if blocks >= BLOCKS_AT_ONCE * multiprocessors else SMALL


def supports(layer: OpContext[Conv]) -> bool:
    """Return whether it is 3x3, stride 1, padding 1, up to 4 outputs, not pooled, of channels stored in 64s."""
    op = layer.op
    if layer.quantised is not None or op.pool or not is_same_3x3(op) or not mma.supports(layer):
        return False
    outputs, channels = op.weight.shape[:2]
    return outputs <= MOST_OUTPUTS and mma.ELEMENTS[layer.precision].padded(channels) % CHUNK == 0


OP_KERNEL = OpKernel(
    Conv,
    steps,
    weights,
    family="mma",
    priority=1,
    supports=supports,
    input_dtypes=lambda layer: (mma.ELEMENTS[layer.precision],),
)
