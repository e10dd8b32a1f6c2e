"""Define the operators that torch sees: their fake results, gradients, second derivatives."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from vgg16gpu.errors import InputError
from vgg16gpu.pytorch.tensors import is_batched, require_floats


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


LossGradients: TypeAlias = tuple[Tensor, Tensor, Tensor]  # the loss, and its gradients to x and to the target's images


class Differentiable(Protocol):
    """What the operators of features call: `Features`."""

    def empty(self, x: Tensor, precision: str) -> list[Tensor]:
        """Tensors for the values of x."""

    def values(self, x: Tensor, precision: str) -> list[Tensor]:
        """The values of x. precision: as `precision.under_autocast` has it."""

    def gradient(self, x: Tensor, precision: str, cotangents: Sequence[Tensor]) -> Tensor:
        """The gradient to x."""


class Comparing(Protocol):
    """What the operator of losses calls: `PerceptualLoss`.

    images, style: one tensor, or none. scaling: which of the module's normalisations comes first; -1: none. wants:
    whether the gradients to x and to the images are wanted; a gradient that is not has no elements.
    """

    def empty(self, x: Tensor, images: Sequence[Tensor], scaling: int, wants: Sequence[bool]) -> LossGradients:
        """Tensors for what `compared` returns."""

    def compared(
        self,
        x: Tensor,
        images: Sequence[Tensor],
        style: Sequence[Tensor],
        targets: Sequence[Tensor],
        precision: str,
        scaling: int,
        wants: Sequence[bool],
    ) -> LossGradients:
        """The loss of x and its gradients to x and to images, the latter with a row for each row of x."""


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
def features(x: Tensor, number: int, precision: str) -> list[Tensor]:
    """The values of a module's layers. precision: an argument, as operators in a graph do not see autocast."""
    require_floats(x, "the input")
    return list(_method(number, "values")(x, precision))


@features.register_fake
def _(x: Tensor, number: int, precision: str) -> list[Tensor]:
    return list(_method(number, "empty")(x, precision))


@torch.library.custom_op("vgg16gpu::features_gradient", mutates_args=())
def features_gradient(x: Tensor, number: int, precision: str, cotangents: list[Tensor]) -> Tensor:
    """The gradient to x of the values, each weighted by its cotangent."""
    gradient: Tensor = _method(number, "gradient")(x, precision, cotangents)
    return gradient


@features_gradient.register_fake
def _(x: Tensor, number: int, precision: str, cotangents: list[Tensor]) -> Tensor:
    del number, precision, cotangents
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _keep(ctx: Any, inputs: tuple[Tensor, int, str], output: list[Tensor]) -> None:
    del output
    x, ctx.number, ctx.precision = inputs
    ctx.module = _modules.get(ctx.number)  # lives as long as the way back
    ctx.save_for_backward(x)


def _backward(ctx: Any, cotangents: list[Tensor]) -> tuple[Tensor, None, None]:
    (x,) = ctx.saved_tensors
    if is_batched(cotangents):
        raise InputError(
            "several gradients are asked for at once (vmap, is_grads_batched, jacobian(vectorize=True)), and features "
            "have one in a run; ask for one after the other"
        )
    return features_gradient(x, ctx.number, ctx.precision, cotangents), None, None


features.register_autograd(_backward, setup_context=_keep)
features_gradient.register_autograd(refuse)


@torch.library.custom_op("vgg16gpu::perceptual_loss", mutates_args=())
def perceptual_loss(
    x: Tensor,
    number: int,
    images: list[Tensor],
    style: list[Tensor],
    targets: list[Tensor],
    precision: str,
    scaling: int,
    wants_x: bool,
    wants_images: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss of a module and its gradients, as `Comparing.compared` computes them."""
    found: tuple[Tensor, Tensor, Tensor] = _method(number, "compared")(
        x, images, style, targets, precision, scaling, (wants_x, wants_images)
    )
    return found


@perceptual_loss.register_fake
def _(
    x: Tensor,
    number: int,
    images: list[Tensor],
    style: list[Tensor],
    targets: list[Tensor],
    precision: str,
    scaling: int,
    wants_x: bool,
    wants_images: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    del style, targets, precision
    found: tuple[Tensor, Tensor, Tensor] = _method(number, "empty")(x, images, scaling, (wants_x, wants_images))
    return found


def _keep_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, _, images, style, targets, _, _, *ctx.wants = inputs
    ctx.counts = len(style), len(targets)
    ctx.save_for_backward(x, *output[1:], *images)


def _scale_gradients(ctx: Any, slope: Tensor, *_: Tensor) -> tuple[Any, ...]:
    x, to_x, to_images, *images = ctx.saved_tensors
    wants_x, wants_images = ctx.wants
    if not any(ctx.wants) or (x.requires_grad and not wants_x):
        raise InputError(
            "the gradient of a loss is asked for that was recorded without one; record it of an x that requires a "
            "gradient"
        )
    factor = slope.reshape(-1, 1, 1, 1) if slope.dim() else slope
    found = once((to_x * factor).to(x.dtype), x, slope, *images) if wants_x else None
    others: list[Tensor | None] = [None] * len(images)
    if wants_images:
        (goal,) = images
        others = [once(rows_of(to_images * factor, goal).to(goal.dtype), goal, slope, x)]
    style, targets = ([None] * count for count in ctx.counts)
    return found, None, others, style, targets, *[None] * 4


def rows_of(gradient: Tensor, images: Tensor) -> Tensor:
    """Return the gradient to images from that of each row; summed where one image stands for all rows."""
    is_one_for_all = images.shape[0] == 1 and gradient.shape[0] != 1
    return gradient.sum(0, keepdim=True) if is_one_for_all else gradient


perceptual_loss.register_autograd(_scale_gradients, setup_context=_keep_gradients)
