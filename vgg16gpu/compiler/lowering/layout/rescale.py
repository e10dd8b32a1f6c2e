"""Pairs of float16 with a factor for each image: the Python side of kernels/layout/rescale.cu."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vgg16gpu.compiler.graph.ops import Shape
from vgg16gpu.compiler.lowering.base import BLOCK, ceil_div, scalars
from vgg16gpu.program.launches import Dim3, Kernel, Step
from vgg16gpu.program.values import Element, Pointer, Value

SOURCE = "rescale.cu"
VECTOR = 8  # channels of a thread, as in the source
SLICE = 16384  # elements of a block of largest_slices


@dataclass(frozen=True)
class Largest:
    """The largest magnitudes of parts of each image of a value."""

    pointer: Pointer
    parts: int  # of an image


def factors_nbytes(batch: int) -> int:
    """Room for the factors of images, and for those of results."""
    return 2 * 4 * batch


def of_results(factors: Pointer, batch: int) -> Pointer:
    """Where the factors of results lie."""
    return Pointer(factors.arena, factors.offset + 4 * batch)


def parts_nbytes(shape: Shape) -> int:
    """Room for the largest magnitudes of a float32 map of this shape."""
    return 4 * shape[0] * slices_of(shape)


def largest(x: Value, room: Pointer) -> tuple[Largest, Step]:
    """The largest magnitudes of the slices of each image, and what finds them."""
    found = Largest(room, slices_of(x.shape))
    return found, largest_slices(x, room)


def rescale(x: Value, y: Value, found: Largest, growth: int, maxima: Pointer) -> tuple[Step, ...]:
    """A float32 NHWC map as pairs y, whose `factor` is written, too, and behind it that of results.

    growth: results may be 2^growth times as large. maxima: words for the largest magnitude of each image.
    """
    assert y.factor is not None  # whoever calls gives it room
    batch, *spatial, pitch = y.stored_shape
    pixels = math.prod(spatial)
    return (
        Step(
            kernel=Kernel(SOURCE, "image_factors"),
            grid=Dim3(batch),
            block=Dim3(BLOCK),
            arguments=(y.factor, maxima, found.pointer, *scalars(found.parts, growth)),
            nbytes=4 * batch * found.parts,
            names=(y.name,),
            label="factors of images",
        ),
        Step(
            kernel=Kernel(SOURCE, "rescale"),
            grid=Dim3(ceil_div(pixels * pitch // VECTOR, BLOCK), batch),
            block=Dim3(BLOCK),
            arguments=(y.pointer, x.pointer, y.factor, *scalars(pixels, x.pitch, pitch)),
            nbytes=x.nbytes + y.nbytes,
            names=(y.name,),
            label=f"{x.element.name} to {Element.F16_PAIR.name} with factors",
        ),
    )


def slices_of(shape: Shape) -> int:
    """How many slices an image of a float32 value has."""
    _, channels, *sides = shape
    return ceil_div(Element.F32.padded(channels) * math.prod(sides), SLICE)


def largest_slices(x: Value, parts: Pointer) -> Step:
    """The largest magnitude of each slice of each image."""
    batch, *inner = x.stored_shape
    elements = math.prod(inner)
    return Step(
        kernel=Kernel(SOURCE, "largest_slices_f32"),
        grid=Dim3(slices_of(x.shape), batch),
        block=Dim3(BLOCK),
        arguments=(parts, x.pointer, *scalars(elements)),
        nbytes=x.nbytes,
        names=(x.name,),
        label="largest magnitudes",
    )
