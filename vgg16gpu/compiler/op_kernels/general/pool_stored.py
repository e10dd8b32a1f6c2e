"""Max pooling of what tensor cores store: the Python side of kernels/general/pool_stored.cu."""

from __future__ import annotations

import math
from typing import Final

from vgg16gpu.compiler.graph.ops import Pool
from vgg16gpu.compiler.graph.window import MAX_POOL_2X2, same_window
from vgg16gpu.compiler.op_kernels import mma, mma_pairs, wgmma
from vgg16gpu.compiler.op_kernels.base import (
    BLOCK,
    NoWeights,
    OpContext,
    OpKernel,
    OpMemory,
    ceil_div,
    no_weights,
    scalars,
)
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch
from vgg16gpu.program.types import DType, TensorDesc

SOURCE: Final = "pool_stored.cu"
VECTOR: Final = 8  # channels of a thread
VARIANTS = tuple((("ELEMENT", element.number),) for element in (DType.F16, DType.BF16, DType.F16_PAIR))


def steps(
    layer: OpContext[Pool], x: TensorDesc, y: TensorDesc, held: NoWeights, places: OpMemory
) -> tuple[KernelLaunch, ...]:
    """Return one launch."""
    del held
    _, _, height, width = x.shape
    batch, rows, columns, pitch = y.stored_shape
    return (
        KernelLaunch(
            kernel=Kernel(SOURCE, "pool_stored", (("ELEMENT", x.element.number),)),
            grid=Dim3(ceil_div(rows * columns * pitch // VECTOR, BLOCK), batch),
            block=Dim3(BLOCK),
            arguments=(y.pointer, x.pointer, places.maxima, *scalars(height, width, pitch, rows, columns)),
            flop=math.prod(y.shape) * 4,
            nbytes=x.nbytes + y.nbytes,
            names=layer.op.names,
            label="max pool 2x2 as stored",
        ),
    )


def supports_wgmma(layer: OpContext[Pool]) -> bool:
    """Return whether it is a VGG's pool of a map that Hopper's tensor cores store in floating point."""
    return wgmma.has_wgmma(layer.facts) and layer.precision in wgmma.ELEMENTS and _is_plain(layer.op)


def supports_mma(layer: OpContext[Pool]) -> bool:
    """Return whether it is a VGG's pool of a map that any card's tensor cores store."""
    is_stored = layer.precision in mma.ELEMENTS and mma.supports(layer)
    return (is_stored or mma_pairs.stores_pairs(layer)) and _is_plain(layer.op)


def _is_plain(op: Pool) -> bool:
    return op.kind == "max" and same_window(op.window, MAX_POOL_2X2)


OP_KERNELS = tuple(
    OpKernel(
        Pool,
        steps,
        no_weights,
        family=family,
        supports=supports,
        input_dtypes=lambda layer: (wgmma.ELEMENTS[layer.precision],),
        output_dtype=lambda layer, _: wgmma.ELEMENTS[layer.precision],
    )
    for family, supports in (("wgmma", supports_wgmma), ("mma", supports_mma))
)
