"""What is differentiable once: gradients that say so when somebody asks for theirs."""

from __future__ import annotations

from typing import Any

import torch

from vgg16gpu.errors import InputError


def once(gradient: torch.Tensor, *sources: torch.Tensor) -> torch.Tensor:
    """Return a gradient from a backward pass, so that a gradient of it to one of its sources raises InputError.

    sources: what it depends on, images and slopes, though torch has not seen how.
    """
    return _Once.apply(gradient, *sources) if torch.is_grad_enabled() else gradient


def refuse(*_: object) -> Any:
    """Raise InputError: somebody asks for the gradient of a gradient."""
    raise InputError(
        "a second derivative is asked for, and gradients are computed once; leave create_graph out, or detach the "
        "gradient"
    )


class _Once(torch.autograd.Function):
    """The gradient itself; its sources stand beside it so that torch comes here for a second derivative."""

    @staticmethod
    def forward(ctx: Any, gradient: torch.Tensor, *sources: torch.Tensor) -> torch.Tensor:
        del ctx, sources
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> Any:
        return refuse(ctx, *slopes)
