"""Factors that bring gradients to where float16 has its bits: the Python side of kernels/general/power_of_two.cu."""

from __future__ import annotations

from dataclasses import replace

from vgg16gpu.compiler.graph.gradient_ops import PowerOfTwo
from vgg16gpu.compiler.lowering.base import (
    BLOCK,
    Layer,
    Lowering,
    NoWeights,
    Places,
    no_weights,
    scalars,
)
from vgg16gpu.compiler.lowering.layout.rescale import largest_slices, slices_of
from vgg16gpu.program.launches import Dim3, Kernel, Step
from vgg16gpu.program.values import Value

SOURCE = "power_of_two.cu"


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


LOWERINGS = (Lowering(PowerOfTwo, steps, no_weights, workspace_nbytes=workspace_nbytes),)
