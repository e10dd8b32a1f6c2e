"""Bytes to normalised values: the Python side of kernels/layout/preprocess.cu."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from vgg16gpu.compiler.graph.ops import Array, Limits
from vgg16gpu.compiler.op_kernels.activation import input_limits, taking
from vgg16gpu.compiler.op_kernels.base import BLOCK, WeightPacker, scalars
from vgg16gpu.program.launch import Dim3, Kernel, KernelLaunch
from vgg16gpu.program.types import Pointer, TensorDesc


@dataclass(frozen=True)
class Normalisation:
    """value = (byte / 255 - mean) / std, per channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def scale_and_shift(self) -> tuple[Array, Array]:
        """The same as byte * scale + shift."""
        mean, std = np.array(self.mean, np.float64), np.array(self.std, np.float64)
        with np.errstate(all="ignore"):  # is_usable looks at the result
            return (1 / (255 * std)).astype(np.float32), (-mean / std).astype(np.float32)

    @property
    def is_usable(self) -> bool:
        """Return whether std is positive and float32 can hold the scale and the shift."""
        return min(self.std) > 0 and all(bool(np.isfinite(values).all()) for values in self.scale_and_shift)


def weights(normalisation: Normalisation, arena: WeightPacker) -> tuple[Pointer, Pointer]:
    """Add scale and shift of each channel."""
    scale, shift = normalisation.scale_and_shift
    return arena.add_channels(scale, scale.size), arena.add_channels(shift, shift.size)


def from_bytes(
    source: Pointer, y: TensorDesc, normalisation: tuple[Pointer, Pointer], blocks: int, limits: Limits | None = None
) -> KernelLaunch:
    """Normalise (N, H, W, C) bytes at `source` into `y`, clipped to limits, by `blocks` blocks an image."""
    batch, channels, *spatial = y.shape
    return KernelLaunch(
        kernel=taking(Kernel("preprocess.cu", "preprocess_u8"), limits),
        grid=Dim3(blocks, batch),
        block=Dim3(BLOCK),
        arguments=(
            *(y.pointer, source, *normalisation),
            *scalars(math.prod(spatial), channels, y.pitch),
            *input_limits(limits),
        ),
        flop=2 * math.prod(y.shape),
        nbytes=math.prod(y.shape) + y.nbytes,
        names=(y.name,),
        label="bytes to normalised NHWC",
    )
