"""Factors that bring gradients to where float16 has its bits: the Python side of kernels/general/power_of_two.cu."""

from __future__ import annotations

import math

from vgg16gpu.compiler.graph.gradient_ops import PowerOfTwo
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
from vgg16gpu.program.values import Element, Value

SOURCE = "power_of_two.cu"
SLICE = 16384  # elements of a block, as in the source


def steps(layer: Layer[PowerOfTwo], x: Value, y: Value, held: NoWeights, places: Places) -> tuple[Step, ...]:
    """Two launches: the largest magnitude of each slice, then the factor of each image."""
    del held
    batch, *inner = x.stored_shape
    elements = math.prod(inner)
    slices, names = ceil_div(elements, SLICE), layer.op.names
    return (
        Step(
            kernel=Kernel(SOURCE, "largest_slices_f32"),
            grid=Dim3(slices, batch),
            block=Dim3(BLOCK),
            arguments=(places.workspace, x.pointer, *scalars(elements)),
            nbytes=x.nbytes,
            names=names,
            label="largest magnitudes",
        ),
        Step(
            kernel=Kernel(SOURCE, "power_of_two_f32"),
            grid=Dim3(batch),
            block=Dim3(BLOCK),
            arguments=(y.pointer, places.workspace, *scalars(slices, layer.op.exponent, y.pitch)),
            nbytes=4 * batch * slices + y.nbytes,
            names=names,
            label="powers of two",
        ),
    )


def workspace_nbytes(layer: Layer[PowerOfTwo]) -> int:
    """A number for each slice of each image."""
    batch, channels, *sides = layer.x_shape
    elements = Element.F32.padded(channels) * math.prod(sides)
    return 4 * batch * ceil_div(elements, SLICE)


LOWERINGS = (Lowering(PowerOfTwo, steps, no_weights, workspace_nbytes=workspace_nbytes),)
