"""Factors that bring gradients to where float16 has its bits: the Python side of kernels/general/power_of_two.cu."""

from __future__ import annotations

from dataclasses import replace

from vgg16gpu.compiler.graph.gradient_ops import PowerOfTwo
from vgg16gpu.compiler.op_kernels.base import (
    BLOCK,
    NoWeights,
    OpContext,
    OpKernel,
    OpMemory,
    no_weights,
    scalars,
)
from vgg16gpu.compiler.op_kernels.layout.rescale import largest
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch
from vgg16gpu.program.types import TensorDesc

SOURCE = "power_of_two.cu"


def steps(
    layer: OpContext[PowerOfTwo], x: TensorDesc, y: TensorDesc, held: NoWeights, places: OpMemory
) -> tuple[KernelLaunch, ...]:
    """Return two launches: the largest magnitude of each image, then its factor."""
    del held
    batch = x.shape[0]
    return (
        replace(largest(x, places.counters), names=layer.op.names),
        KernelLaunch(
            kernel=Kernel(SOURCE, "power_of_two_f32"),
            grid=Dim3(batch),
            block=Dim3(BLOCK),
            arguments=(y.pointer, places.counters, *scalars(layer.op.exponent, y.pitch)),
            nbytes=4 * batch + y.nbytes,
            names=layer.op.names,
            label="powers of two",
        ),
    )


def counters(layer: OpContext[PowerOfTwo]) -> int:
    """Return one word for each image."""
    return layer.x_shape[0]


OP_KERNELS = (OpKernel(PowerOfTwo, steps, no_weights, counters=counters),)
