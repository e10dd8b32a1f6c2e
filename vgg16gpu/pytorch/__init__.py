"""Layers of a VGG, and losses by them, as torch modules: our kernels forward and backward, on both devices."""

from typing import TYPE_CHECKING, Any

from vgg16gpu.errors import InputError

try:
    import torch as _torch
except ModuleNotFoundError as error:
    raise InputError("vgg16gpu.pytorch needs torch, which is not installed: pip install '.[torch]'") from error

del _torch

from vgg16gpu.pytorch.features import Features  # noqa: E402 - torch is looked for first
from vgg16gpu.pytorch.lpips import LPIPS  # noqa: E402
from vgg16gpu.pytorch.perceptual_loss import PerceptualLoss  # noqa: E402

if TYPE_CHECKING:
    from vgg16gpu.pytorch.metric import LearnedPerceptualImagePatchSimilarity as LearnedPerceptualImagePatchSimilarity

__all__ = ["LPIPS", "Features", "PerceptualLoss"]  # and LearnedPerceptualImagePatchSimilarity, by its name alone


def __getattr__(name: str) -> Any:
    """Return what needs torchmetrics, which is imported then. Raises InputError where that is not installed."""
    if name == "LearnedPerceptualImagePatchSimilarity":
        from vgg16gpu.pytorch.metric import LearnedPerceptualImagePatchSimilarity  # noqa: PLC0415 - torchmetrics is optional

        return LearnedPerceptualImagePatchSimilarity
    raise AttributeError(f"module {__name__} has no attribute {name}")
