"""Bytes to normalised values: the Python side of kernels/preprocess.cu."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vgg16gpu.ops.base import BLOCK, WeightArena, scalars
from vgg16gpu.ops.layout import input_blocks
from vgg16gpu.program import Dim3, Kernel, Pointer, Step, Value


@dataclass(frozen=True)
class Normalisation:
    """value = (byte / 255 - mean) / std, per channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


def weights(normalisation: Normalisation, arena: WeightArena) -> tuple[Pointer, Pointer]:
    """The same as byte * scale + shift."""
    mean, std = np.array(normalisation.mean, np.float64), np.array(normalisation.std, np.float64)
    scale, shift = (1 / (255 * std)).astype(np.float32), (-mean / std).astype(np.float32)
    return arena.add_channels(scale, scale.size), arena.add_channels(shift, shift.size)


def from_bytes(source: Pointer, y: Value, status: Pointer, pointers: Sequence[Pointer]) -> Step:
    """(N, H, W, C) bytes at `source` into normalised values at `y`."""
    batch, channels, *spatial = y.shape
    return Step(
        kernel=Kernel("preprocess.cu", "preprocess_u8"),
        grid=Dim3(input_blocks(y.shape), batch),
        block=Dim3(BLOCK),
        arguments=(y.pointer, source, status, *pointers, *scalars(math.prod(spatial), channels, y.pitch)),
        flop=2 * math.prod(y.shape),
        nbytes=math.prod(y.shape) + y.nbytes,
        names=(y.name,),
        label="bytes to normalised NHWC",
    )
