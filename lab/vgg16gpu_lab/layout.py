"""Maps as kernels want them and as everybody else has them: channels first (N, C, H, W) or last (N, H, W, C)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from vgg16gpu_lab.problem import Array
from vgg16gpu_lab.variant import Layout


def in_layout(x: npt.NDArray[Any], layout: Layout) -> npt.NDArray[Any]:
    """Return (N, C, H, W) as it lies in memory."""
    return np.ascontiguousarray(x if layout == "CHW" else x.transpose(0, 2, 3, 1))


def room(shape: tuple[int, int, int, int], layout: Layout) -> Array:
    """Return uninitialised memory for maps of a shape (N, C, H, W)."""
    batch, channels, rows, columns = shape
    return np.empty(shape if layout == "CHW" else (batch, rows, columns, channels), np.float32)


def channels_first(y: Array, layout: Layout) -> Array:
    """Return (N, C, H, W) of what lies in memory as `layout` says."""
    return y if layout == "CHW" else np.ascontiguousarray(y.transpose(0, 3, 1, 2))
