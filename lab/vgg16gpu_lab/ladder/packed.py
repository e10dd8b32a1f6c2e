"""The launches of the ladder's convolutions whose weights are packed once: rungs H to K."""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np

from vgg16gpu.compiler.graph.ops import Array, Conv
from vgg16gpu.compiler.op_kernels.base import ceil_div, scalars
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch
from vgg16gpu_lab.ladder.kernels import REGISTER_THREADS, Maker, Placed
from vgg16gpu_lab.ladder.layers import Site

VECTORS = "ladder/conv_vectors.cu"
WARPS = "ladder/conv_warps.cu"
SWIZZLE = "ladder/conv_swizzle.cu"
PIPELINE = "ladder/conv_pipeline.cu"

TILE_K: Final = 16  # taps of a step
TILE_OC: Final = 64  # output channels of a block


def packed(site: Site) -> Array | None:
    """Return a convolution's weights as (K, OC), with zeros up to whole tiles; those of other layers as they are."""
    if not isinstance(site.layer, Conv):
        return site.weight
    rows = site.layer.weight.reshape(site.y_shape[0], -1).T
    excess = [(0, -length % tile) for length, tile in zip(rows.shape, (TILE_K, TILE_OC), strict=True)]
    return np.ascontiguousarray(np.pad(rows, excess))


def _conv(source: str, name: str, tile_px: int, placed: Placed) -> KernelLaunch:
    site = placed.site
    outputs, rows, columns = site.y_shape
    height, width = site.window.kernel
    pads = site.window.pads
    numbers = scalars(*site.x_shape, *site.y_shape, *site.window.strides, pads.top, pads.left)
    return KernelLaunch(
        Kernel(source, name, (("KERNEL_H", height), ("KERNEL_W", width))),
        Dim3(ceil_div(rows * columns, tile_px), ceil_div(outputs, TILE_OC)),
        Dim3(REGISTER_THREADS),
        (*placed.arguments, *numbers),
        label=site.layer.y,
    )


conv_vectors: Maker = partial(_conv, VECTORS, "conv_vectors_f32", 64)
conv_warps: Maker = partial(_conv, WARPS, "conv_warps_f32", 128)
conv_swizzle: Maker = partial(_conv, SWIZZLE, "conv_swizzle_f32", 128)
conv_pipeline: Maker = partial(_conv, PIPELINE, "conv_pipeline_f32", 128)
