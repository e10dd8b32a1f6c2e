"""Values of float16 with a factor for each image: the Python side of kernels/layout/rescale.cu."""

from __future__ import annotations

import math
from typing import Final

from vgg16gpu.compiler.op_kernels.base import BLOCK, Rescaling, ceil_div, scalars
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch
from vgg16gpu.program.types import DType, Pointer, TensorDesc

SOURCE: Final = "rescale.cu"
VECTOR: Final = 8  # channels of a thread, as in the source
SLICE: Final = 16384  # elements of a block of largest_f32
EXPONENT: Final = 15  # what is stored is below 2^EXPONENT
VARIANTS = tuple((("OUT", element.number),) for element in (DType.F16, DType.F16_PAIR))  # tools/ptxas.py


def factors_nbytes(batch: int) -> int:
    """Return the room for the factors of images, and for those of results."""
    return 2 * 4 * batch


def of_results(factors: Pointer, batch: int) -> Pointer:
    """Return where the factors of results lie."""
    return Pointer(factors.arena, factors.offset + 4 * batch)


def largest(x: TensorDesc, words: Pointer) -> KernelLaunch:
    """Return what raises a word for each image, zero at first, to the largest magnitude of a float32 value."""
    batch, *inner = x.stored_shape
    elements = math.prod(inner)
    return KernelLaunch(
        kernel=Kernel(SOURCE, "largest_f32"),
        grid=Dim3(ceil_div(elements, SLICE), batch),
        block=Dim3(BLOCK),
        arguments=(words, x.pointer, *scalars(elements)),
        nbytes=x.nbytes,
        names=(x.name,),
        label="largest magnitudes",
    )


def rescale(x: TensorDesc, y: TensorDesc, how: Rescaling, maxima: Pointer) -> KernelLaunch:
    """Return what brings a float32 NHWC map to float16 or pairs y, and writes its `factor`, behind it that of results.

    how: with one bound, that of x. maxima: words for the largest magnitude of each image.
    """
    assert y.factor is not None  # whoever calls gives it room
    batch, *spatial, pitch = y.stored_shape
    pixels = math.prod(spatial)
    return KernelLaunch(
        kernel=Kernel(SOURCE, "rescale", (("OUT", y.element.number),)),
        grid=Dim3(ceil_div(pixels * pitch // VECTOR, BLOCK), batch),
        block=Dim3(BLOCK),
        arguments=(
            *(y.pointer, y.factor, maxima, x.pointer, *how.bounds),
            *scalars(pixels, x.pitch, pitch, how.exponent, how.growth),
        ),
        nbytes=x.nbytes + y.nbytes,
        names=(y.name,),
        label=f"{x.element.name} to {y.element.name} with factors",
    )
