"""Tensors on a GPU as engines take them."""

from __future__ import annotations

from typing import Any, Final

import torch

from vgg16gpu.runtime.on_device.views import StridedView

_TAKEN: Final = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}  # by kernels
TYPES: Final = {name: dtype for dtype, name in _TAKEN.items()}


def taken(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a float32 one in place of what kernels do not read."""
    return tensor.resolve_neg() if tensor.dtype in _TAKEN else tensor.float().resolve_neg()


def on_host(tensor: torch.Tensor) -> Any:
    """Return the numbers of a tensor on the CPU as a float32 array, row-major."""
    return tensor.detach().float().contiguous().numpy(force=True)  # with the sign that torch may have noted apart


def view(tensor: torch.Tensor) -> StridedView:
    """Where a tensor lies on its card: what DLPack says, several times as fast."""
    return StridedView(tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), _TAKEN[tensor.dtype])


def current_stream(device: torch.device) -> int:
    """The handle of the stream on which torch works there."""
    return int(torch.cuda.current_stream(device).cuda_stream)


def name_of(device: torch.device) -> str:
    """Return how engines call a device of torch's."""
    return "cpu" if device.type == "cpu" else f"cuda:{device.index or 0}"
