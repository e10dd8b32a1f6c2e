"""Where values of different elements meet: the Python side of kernels/layout/convert.cu."""

from __future__ import annotations

import math

import numpy as np

from vgg16gpu.compiler.lowering.base import BLOCK, ceil_div, scalars
from vgg16gpu.program.launches import Dim3, Kernel, Scalar, Step
from vgg16gpu.program.values import Element, Pointer, Value

SOURCE = "convert.cu"
MAX_CHUNKS = 1024  # blocks per image
GROUP = 4  # channels of a thread
VARIANTS = tuple(
    (("INPUT", read.number), ("OUTPUT", stored.number), *factor)
    for read, stored, factor in (
        (Element.F32, Element.F16_PAIR, ()),
        (Element.F16_PAIR, Element.F32, ()),
        (Element.F16_PAIR, Element.F32, (("FACTOR", 1),)),
        (Element.F32, Element.F16, ()),
        (Element.BF16, Element.F32, ()),
        (Element.F32, Element.U8, ()),
        (Element.S8, Element.F32, ()),
    )
)  # tools/ptxas.py


def convert(x: Value, y: Value, maxima: Pointer) -> Step:
    """The same NHWC value, or matrix, in the element of y. `maxima`: words for the largest magnitude of each image."""
    batch, *spatial, _ = x.stored_shape
    pixels = math.prod(spatial)
    numbers = (pixels, x.shape[1], x.pitch, y.pitch)
    macros = ("INPUT", x.element.number), ("OUTPUT", y.element.number)
    factors = Scalar(x.step, "f"), Scalar(float(np.float32(1) / np.float32(y.step)), "f")
    return Step(
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
