"""Powers of two that bring values and weights into float16's range: the Python side of kernels/layout/scales.cu."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from vgg16gpu.compiler.op_kernels.base import BLOCK, ActivationScale, WeightPacker, ceil_div, scalars
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch, Scalar
from vgg16gpu.program.types import Pointer, TensorDesc

SOURCE = "scales.cu"
CHANNELS_PER_BLOCK = 64
TILE_CHANNELS = 64
MAX_CHUNKS = 256  # of pixels


class WeightRows(NamedTuple):
    """The weights of an op as rows, one for each output: where element (row, c, tap) lies, in floats."""

    weight: Pointer
    rows: int
    channels: int
    taps: int
    row_stride: int
    channel_stride: int
    tap_stride: int


def reserve(channels: int, uniform: bool, arena: WeightPacker) -> ActivationScale:
    """Reserve the scales of a value, in whole tiles of channels, and the magnitudes they are chosen from."""
    stored = ceil_div(channels, TILE_CHANNELS) * TILE_CHANNELS
    return ActivationScale(arena.add_zeros(stored), arena.add_zeros(stored), arena.add_zeros(stored), stored, uniform)


def unit(channels: int, arena: WeightPacker) -> ActivationScale:
    """Add fixed scales of 1, in whole tiles of channels."""
    stored = ceil_div(channels, TILE_CHANNELS) * TILE_CHANNELS
    ones = arena.add(np.ones(stored, np.float32))
    return ActivationScale(ones, ones, ones, stored, uniform=True)


def observe(value: TensorDesc, scaling: ActivationScale) -> KernelLaunch:
    """Note the largest magnitude of each channel of a float32 NHWC value, or matrix, beside earlier ones."""
    pixels = math.prod(value.stored_shape[:-1])
    return KernelLaunch(
        kernel=Kernel(SOURCE, "observe_f32"),
        grid=Dim3(ceil_div(value.pitch, CHANNELS_PER_BLOCK), min(MAX_CHUNKS, ceil_div(pixels, 4))),
        block=Dim3(BLOCK),
        arguments=(scaling.observed, value.pointer, *scalars(pixels, value.pitch)),
        label=f"largest magnitudes of {value.name}",
    )


class RowScales(NamedTuple):
    """A float for each row of weights, written by the build: powers of two, `dequant` times the correction."""

    scale: Pointer  # what the weights are multiplied by
    dequant: Pointer  # what takes the scales of weights and input out of a sum
    plain: Pointer  # the same for weights that are not scaled


def scale_rows(
    rows: WeightRows,
    stored: int,
    x: ActivationScale,
    level: Pointer,
    arena: WeightPacker,
    *,
    folds: bool,
    correction: float = 1.0,
) -> RowScales:
    """Reserve scales for `rows` rows of weights, `stored` with padding; the build sets them once it knows x.

    With `folds`, the scales of x are divided out of the weights channel by channel; else x has one scale for all
    channels, which stays in the sums. `level`: where the rows write how large their outputs may be. `correction`: what
    makes up for sums that come out too small.
    """
    made = RowScales(*(arena.add_zeros(stored) for _ in range(3)))
    strides = scalars(rows.channels, rows.taps, rows.row_stride, rows.channel_stride, rows.tap_stride, int(folds))
    step = KernelLaunch(
        kernel=Kernel(SOURCE, "row_scale_f32"),
        grid=Dim3(rows.rows),
        block=Dim3(BLOCK),
        arguments=(
            *(made.scale, made.dequant, made.plain, level, rows.weight, x.scale),
            *(*strides, Scalar(correction, "f")),
        ),
        label="scales of weights",
    )
    arena.finish.append(step)
    return made


def choose(scaling: ActivationScale) -> KernelLaunch:
    """Fix the scales of a value."""
    return KernelLaunch(
        kernel=Kernel(SOURCE, "choose_scale_f32"),
        grid=Dim3(1),
        block=Dim3(BLOCK),
        arguments=(scaling.scale, scaling.observed, scaling.level, *scalars(scaling.channels, int(scaling.uniform))),
        label="scales of a value",
    )
