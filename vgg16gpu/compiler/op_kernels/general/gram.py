"""Gram matrices of feature maps: the Python side of kernels/general/gram.cu, and their gradient by matmul.cu."""

from __future__ import annotations

import math

from vgg16gpu.compiler.graph.loss import Gram, GramGradient
from vgg16gpu.compiler.graph.ops import Shape
from vgg16gpu.compiler.op_kernels.base import (
    BLOCK,
    MultiOpKernel,
    NoWeights,
    OpContext,
    OpKernel,
    OpMemory,
    ceil_div,
    no_weights,
    scalars,
)
from vgg16gpu.compiler.op_kernels.general.matmul import Product, product_step
from vgg16gpu.compiler.op_kernels.strided import View, view
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch, Scalar
from vgg16gpu.program.types import TensorDesc

SOURCE = "gram.cu"
TILE = 64  # channels of a block, as in the source
SLICE = 1024  # pixels of a block


def steps(
    layer: OpContext[Gram], x: TensorDesc, y: TensorDesc, held: NoWeights, places: OpMemory
) -> tuple[KernelLaunch, ...]:
    """Return two launches: sums over slices of the pixels, then those of the slices."""
    del held
    batch, channels, *sides = x.shape
    pixels, tiles, elements = math.prod(sides), ceil_div(channels, TILE), channels * channels
    parts = 4 * batch * _slices(x.shape) * elements
    return (
        KernelLaunch(
            kernel=Kernel(SOURCE, "gram_f32"),
            grid=Dim3(tiles * (tiles + 1) // 2, _slices(x.shape), batch),
            block=Dim3(BLOCK),
            arguments=(places.workspace, x.pointer, *scalars(pixels, channels, x.pitch)),
            flop=batch * pixels * channels * (channels + 1),
            nbytes=x.nbytes + parts,
            names=layer.op.names,
            label=f"gram {channels}x{channels}",
        ),
        KernelLaunch(
            kernel=Kernel(SOURCE, "gram_sum_f32"),
            grid=Dim3(ceil_div(elements, BLOCK), batch),
            block=Dim3(BLOCK),
            arguments=(
                *(y.pointer, places.workspace),
                *scalars(elements, _slices(x.shape)),
                Scalar(1 / (channels * pixels), "f"),
            ),
            flop=parts // 4,
            nbytes=parts + y.nbytes,
            names=layer.op.names,
            label="sum of its slices",
        ),
    )


def workspace_nbytes(layer: OpContext[Gram]) -> int:
    """Return the bytes of a float32 matrix for each slice of the pixels of each image."""
    batch, channels = layer.x_shape[:2]
    return 4 * batch * _slices(layer.x_shape) * channels * channels


def gradient_steps(
    layer: OpContext[GramGradient], x: tuple[TensorDesc, ...], y: TensorDesc, held: NoWeights, places: OpMemory
) -> tuple[KernelLaunch, ...]:
    """Return one launch: the map times the gradient, which is symmetric, and so counts twice."""
    del held, places
    gradient, inp = x
    channels, pixels = inp.shape[1], math.prod(inp.shape[2:])
    out = _pixels_by_channels(y)
    made = Product(_pixels_by_channels(inp), view(gradient), None, out, (*out.shape[:2], y.pitch))
    nbytes = gradient.nbytes + inp.nbytes + y.nbytes
    alpha = 2 / (channels * pixels)
    return (product_step(made, alpha=alpha, names=layer.op.names, nbytes=nbytes, label="gradient of gram"),)


def _pixels_by_channels(value: TensorDesc) -> View:
    """View an NHWC map as a matrix (pixels, channels) for each image."""
    batch, channels, *sides = value.shape
    pixels = math.prod(sides)
    return View(value.pointer, (batch, pixels, channels), (pixels * value.pitch, value.pitch, 1))


def _slices(shape: Shape) -> int:
    return ceil_div(math.prod(shape[2:]), SLICE)


OP_KERNELS = (
    OpKernel(Gram, steps, no_weights, workspace_nbytes=workspace_nbytes),
    MultiOpKernel(GramGradient, gradient_steps, no_weights),
)
