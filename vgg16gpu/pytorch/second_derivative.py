"""What is differentiable once: gradients that say so when somebody asks for theirs."""

from __future__ import annotations

from typing import Any

import torch

from vgg16gpu.errors import InputError


def once(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A gradient to x that a backward pass hands back. Its own gradient is refused, with an InputError."""
    return _Once.apply(gradient, x) if torch.is_grad_enabled() else gradient


class _Once(torch.autograd.Function):
    """The gradient itself; x stands beside it so that torch comes here for a second derivative."""

    @staticmethod
    def forward(ctx: Any, gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        del ctx, x
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> Any:
        del ctx, slopes
        raise InputError("a second derivative is not computed; take the first one without create_graph=True")
