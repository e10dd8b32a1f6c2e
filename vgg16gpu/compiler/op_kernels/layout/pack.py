"""Weights from the file's order into the kernels' order, on the device: the Python side of kernels/layout/pack.cu."""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.compiler.op_kernels.base import WeightPacker, ceil_div, linear, scalars
from vgg16gpu.program.launch import Kernel, KernelLaunch
from vgg16gpu.program.types import Arena, DType, Pointer, padded_channels

Weights: TypeAlias = npt.NDArray[np.generic]  # float32, or int8 for 8-bit elements

SOURCE = "pack.cu"
BLOCKS_SOURCE = "pack_blocks.cu"
STAGING = Pointer(Arena.STAGING, 0)
SLAB_NBYTES = 32 << 20  # of raw weights in the staging buffer at a time


def pack_conv(weight: Array, row_alignment: int, arena: WeightPacker) -> Pointer:
    """Pack (OC, C, KH, KW) to (KH * KW * padded C, rounded up to `row_alignment`, padded OC)."""
    key = "conv", id(weight)
    return arena.once(key, lambda: _pack_conv(weight, row_alignment, arena))


def _pack_conv(weight: Array, row_alignment: int, arena: WeightPacker) -> Pointer:
    out_channels, channels, kernel_h, kernel_w = weight.shape
    rows = ceil_div(kernel_h * kernel_w * padded_channels(channels), row_alignment) * row_alignment
    columns = padded_channels(out_channels)
    target = arena.reserve(4 * rows * columns)
    grid, block = linear(rows * columns)
    shape = scalars(rows, out_channels, columns, channels, padded_channels(channels), kernel_h * kernel_w)
    arena.add_packed(weight, KernelLaunch(Kernel(SOURCE, "pack_conv_f32"), grid, block, (target, STAGING, *shape)))
    return target


def pack_gemm(
    weight: Weights, channels: int, pixels: int, arena: WeightPacker, element: DType = DType.F32, alignment: int = 4
) -> Pointer:
    """Pack (OUT, C * pixels) to (OUT, pixels, C padded to `alignment`) of `element`, unless it is so already.

    Kernels that want the same form share one copy.
    """
    padded = ceil_div(channels, alignment) * alignment
    key = "gemm", id(weight), channels, padded, pixels, element
    return arena.once(key, lambda: _pack_gemm(weight, channels, padded, pixels, element, arena))


def _pack_gemm(
    weight: Weights, channels: int, padded: int, pixels: int, element: DType, arena: WeightPacker
) -> Pointer:
    rows = weight.shape[0]
    if element is DType.F32 and pixels == 1 and padded == channels:
        return arena.add(weight)
    row_nbytes = element.nbytes * pixels * padded
    kernel = Kernel(SOURCE, "pack_gemm_f32")
    if element is not DType.F32:
        kernel = Kernel(BLOCKS_SOURCE, "pack_rows", (("ELEMENT", element.number),))
    target = arena.reserve(rows * row_nbytes)
    slab_rows = max(1, SLAB_NBYTES // (weight.itemsize * weight.shape[1]))
    for first in range(0, rows, slab_rows):
        slab = weight[first : first + slab_rows]
        grid, block = linear(slab.shape[0] * pixels * padded)
        shape = scalars(slab.shape[0], channels, padded, pixels)
        place = Pointer(target.arena, target.offset + first * row_nbytes)
        arena.add_packed(slab, KernelLaunch(kernel, grid, block, (place, STAGING, *shape)))
    return target


def gemm_input(x_shape: tuple[int, ...], flattens: bool) -> tuple[int, int]:
    """Return (channels, pixels) of the input of a Gemm as its weights see it."""
    return (x_shape[1], math.prod(x_shape[2:])) if flattens else (x_shape[-1], 1)
