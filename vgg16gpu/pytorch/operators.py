"""Runs and gradients as operators of torch's own, so that its compiler keeps them in one graph.

https://docs.pytorch.org/docs/stable/library.html#torch.library.custom_op
Operators take tensors and numbers alone: a module is known by the number that `register` gives it.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from vgg16gpu.errors import InputError
from vgg16gpu.pytorch.second_derivative import once, refuse
from vgg16gpu.pytorch.tensors import is_batched, require_floats


class Differentiable(Protocol):
    """What the operators of features call: `Features`."""

    def empty(self, x: Tensor) -> list[Tensor]:
        """Tensors for the values of x."""

    def values(self, x: Tensor) -> list[Tensor]:
        """The values of x."""

    def gradient(self, x: Tensor, cotangents: Sequence[Tensor]) -> Tensor:
        """The gradient to x."""


class Comparing(Protocol):
    """What the operator of losses calls: `PerceptualLoss`."""

    def empty(self, x: Tensor, wants_gradient: bool) -> tuple[Tensor, Tensor]:
        """Tensors for the loss of x and its gradient, which has no elements where it is not wanted."""

    def compared(
        self, x: Tensor, images: Sequence[Tensor], style: Sequence[Tensor], targets: Sequence[Tensor], wants: bool
    ) -> tuple[Tensor, Tensor]:
        """The loss of x, and its gradient if that is wanted. images, style: one tensor, or none."""


_numbers = itertools.count(1)
_modules: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def register(module: Differentiable | Comparing) -> int:
    """A number for a module, which lives no longer for it."""
    number = next(_numbers)
    _modules[number] = module
    return number


def _method(number: int, name: str) -> Callable[..., Any]:
    """Return a method of the module with this number. Raises InputError where there is none, or one of another kind."""
    found: Callable[..., Any] | None = getattr(_modules.get(number), name, None)
    if found is None:
        raise InputError(f"the module with number {number} is gone; keep it as long as what was compiled with it")
    return found


@torch.library.custom_op("vgg16gpu::features", mutates_args=())
def features(x: Tensor, number: int) -> list[Tensor]:
    """The values of a module's layers."""
    require_floats(x, "the input")
    return list(_method(number, "values")(x))


@features.register_fake
def _(x: Tensor, number: int) -> list[Tensor]:
    return list(_method(number, "empty")(x))


@torch.library.custom_op("vgg16gpu::features_gradient", mutates_args=())
def features_gradient(x: Tensor, number: int, cotangents: list[Tensor]) -> Tensor:
    """The gradient to x of the values, each weighted by its cotangent."""
    gradient: Tensor = _method(number, "gradient")(x, cotangents)
    return gradient


@features_gradient.register_fake
def _(x: Tensor, number: int, cotangents: list[Tensor]) -> Tensor:
    del number, cotangents
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _keep(ctx: Any, inputs: tuple[Tensor, int], output: list[Tensor]) -> None:
    del output
    x, ctx.number = inputs
    ctx.save_for_backward(x)


def _backward(ctx: Any, cotangents: list[Tensor]) -> tuple[Tensor, None]:
    (x,) = ctx.saved_tensors
    if is_batched(cotangents):
        raise InputError(
            "several gradients are asked for at once (vmap, is_grads_batched, jacobian(vectorize=True)), and features "
            "have one in a run; ask for one after the other"
        )
    return features_gradient(x, ctx.number, cotangents), None


features.register_autograd(_backward, setup_context=_keep)
features_gradient.register_autograd(refuse)


@torch.library.custom_op("vgg16gpu::perceptual_loss", mutates_args=())
def perceptual_loss(
    x: Tensor, number: int, images: list[Tensor], style: list[Tensor], targets: list[Tensor], wants_gradient: bool
) -> tuple[Tensor, Tensor]:
    """The loss of a module and its gradient to x, as `Comparing.compared` computes them."""
    found: tuple[Tensor, Tensor] = _method(number, "compared")(x, images, style, targets, wants_gradient)
    return found


@perceptual_loss.register_fake
def _(
    x: Tensor, number: int, images: list[Tensor], style: list[Tensor], targets: list[Tensor], wants_gradient: bool
) -> tuple[Tensor, Tensor]:
    del images, style, targets
    found: tuple[Tensor, Tensor] = _method(number, "empty")(x, wants_gradient)
    return found


def _keep_gradient(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, _, *lists, _ = inputs
    ctx.element_type, ctx.counts = x.dtype, [len(tensors) for tensors in lists]
    ctx.save_for_backward(x, output[1])


def _scale_gradient(ctx: Any, slope: Tensor, _: Tensor) -> tuple[Any, ...]:
    x, gradient = ctx.saved_tensors
    if gradient.dim() != x.dim():
        raise InputError(
            "the gradient of a loss is asked for that was recorded without one; record it of an x that requires a "
            "gradient"
        )
    factor = slope.reshape(-1, 1, 1, 1) if slope.dim() else slope
    nothing = ([None] * count for count in ctx.counts)
    return once((gradient * factor).to(ctx.element_type), x, slope), None, *nothing, None


perceptual_loss.register_autograd(_scale_gradient, setup_context=_keep_gradient)
