"""Factors that bring gradients to where float16 has its bits: the Python side of kernels/general/power_of_two.cu."""

from __future__ import annotations

import math
from dataclasses import replace

from vgg16gpu.compiler.graph.gradient_ops import PowerOfTwo
from vgg16gpu.compiler.graph.ops import Shape
from vgg16gpu.compiler.lowering.base import (
    BLOCK,
    Layer,
    Lowering,
    NoWeights,
    Places,
    ceil_div,
    no_weights,
    scalars,
)
from vgg16gpu.program.launches import Dim3, Kernel, Step
from vgg16gpu.program.values import Element, Pointer, Value

SOURCE = "power_of_two.cu"
SLICE = 16384  # elements of a block, as in the source


def steps(layer: Layer[PowerOfTwo], x: Value, y: Value, held: NoWeights, places: Places) -> tuple[Step, ...]:
    """Two launches: the largest magnitude of each slice, then the factor of each image."""
    del held
    batch, slices = x.shape[0], slices_of(x.shape)
    return (
        replace(largest_slices(x, places.workspace), names=layer.op.names),
        Step(
            kernel=Kernel(SOURCE, "power_of_two_f32"),
            grid=Dim3(batch),
            block=Dim3(BLOCK),
            arguments=(y.pointer, places.workspace, *scalars(slices, layer.op.exponent, y.pitch)),
            nbytes=4 * batch * slices + y.nbytes,
            names=layer.op.names,
            label="powers of two",
        ),
    )


def workspace_nbytes(layer: Layer[PowerOfTwo]) -> int:
    """A number for each slice of each image."""
    return 4 * layer.x_shape[0] * slices_of(layer.x_shape)


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


LOWERINGS = (Lowering(PowerOfTwo, steps, no_weights, workspace_nbytes=workspace_nbytes),)
