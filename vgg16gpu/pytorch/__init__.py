"""Layers of a VGG, and losses by them, as torch modules: our kernels forward and backward, on both devices."""

from vgg16gpu.errors import InputError

try:
    import torch as _torch
except ModuleNotFoundError as error:
    raise InputError("vgg16gpu.pytorch needs torch, which is not installed: pip install '.[torch]'") from error

del _torch

from vgg16gpu.pytorch.features import Features  # noqa: E402 - torch is looked for first
from vgg16gpu.pytorch.lpips import LPIPS  # noqa: E402
from vgg16gpu.pytorch.perceptual_loss import PerceptualLoss  # noqa: E402

__all__ = ["LPIPS", "Features", "PerceptualLoss"]
