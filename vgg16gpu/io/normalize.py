"""How pixels become network inputs: (pixel / 255 - mean) / std per channel.

The engine does this on the device; `normalise` is the same formula on the host, for references.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vgg16gpu.io.labels import IMAGENET_MEAN, IMAGENET_STD

Pixels: TypeAlias = npt.NDArray[np.uint8]
Floats: TypeAlias = npt.NDArray[np.float32]


def default_mean(channels: int) -> tuple[float, ...]:
    """Return ImageNet's mean for 3 channels, else zeros."""
    return IMAGENET_MEAN if channels == 3 else (0.0,) * channels


def default_std(channels: int) -> tuple[float, ...]:
    """Return ImageNet's standard deviation for 3 channels, else ones."""
    return IMAGENET_STD if channels == 3 else (1.0,) * channels


def normalise(pixels: Pixels, mean: Sequence[float], std: Sequence[float]) -> Floats:
    """Normalise (..., H, W, C) pixels to (..., C, H, W) float32."""
    scaled = (pixels.astype(np.float64) / 255 - np.asarray(mean)) / np.asarray(std)
    planes: npt.NDArray[Any] = np.moveaxis(scaled, -1, -3)
    return np.ascontiguousarray(planes, dtype=np.float32)
