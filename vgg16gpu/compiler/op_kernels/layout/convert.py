"""Where values of different elements meet: the Python side of kernels/layout/convert.cu."""

from __future__ import annotations

import math

import numpy as np

from vgg16gpu.compiler.op_kernels.base import BLOCK, ceil_div, scalars
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch, Scalar
from vgg16gpu.program.types import DType, Pointer, TensorDesc

SOURCE = "convert.cu"
MAX_CHUNKS = 1024  # blocks per image
GROUP = 4  # channels of a thread
VARIANTS = tuple(
    (("INPUT", read.number), ("OUTPUT", stored.number), *factor)
    for read, stored, factor in (
        (DType.F32, DType.F16_PAIR, ()),
        (DType.F16_PAIR, DType.F32, ()),
        (DType.F16_PAIR, DType.F32, (("FACTOR", 1),)),
        (DType.F32, DType.F16, ()),
        (DType.BF16, DType.F32, ()),
        (DType.F32, DType.U8, ()),
        (DType.S8, DType.F32, ()),
    )
)  # tools/ptxas.py


def convert(x: TensorDesc, y: TensorDesc, maxima: Pointer) -> KernelLaunch:
    """Convert an NHWC value, or matrix, to the element of y. `maxima`: words for each image's largest magnitude."""
    batch, *spatial, _ = x.stored_shape
    pixels = math.prod(spatial)
    numbers = (pixels, x.shape[1], x.pitch, y.pitch)
    macros = ("INPUT", x.element.number), ("OUTPUT", y.element.number)
    factors = Scalar(x.step, "f"), Scalar(float(np.float32(1) / np.float32(y.step)), "f")
    return KernelLaunch(
        kernel=Kernel(SOURCE, "convert", (*macros, *((("FACTOR", 1),) if x.factor else ()))),
        grid=Dim3(min(MAX_CHUNKS, ceil_div(pixels * y.pitch // GROUP, BLOCK)), batch),
        block=Dim3(BLOCK),
        arguments=(
            *(y.pointer, x.pointer, y.scale or y.pointer, x.factor or x.scale or x.pointer, maxima),
            *scalars(*numbers),
            *factors,
        ),
        nbytes=x.nbytes + y.nbytes,
        names=(y.name,),
        label=f"{x.element.name} to {y.element.name}",
    )
