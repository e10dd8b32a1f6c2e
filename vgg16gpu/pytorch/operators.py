"""Runs and gradients as operators of torch's own, so that its compiler keeps them in one graph.

https://docs.pytorch.org/docs/stable/library.html#torch.library.custom_op
Operators take tensors and numbers alone: a module is known by the number that `register` gives it.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from vgg16gpu.errors import InputError


class Differentiable(Protocol):
    """What the operators call: `Features`."""

    def empty(self, x: Tensor) -> list[Tensor]:
        """Tensors for the values of x."""

    def values(self, x: Tensor) -> list[Tensor]:
        """The values of x."""

    def gradient(self, x: Tensor, cotangents: Sequence[Tensor]) -> Tensor:
        """The gradient to x."""


_numbers = itertools.count(1)
_modules: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def register(module: Differentiable) -> int:
    """A number for a module, which lives no longer for it."""
    number = next(_numbers)
    _modules[number] = module
    return number


def _module(number: int) -> Differentiable:
    found: Differentiable | None = _modules.get(number)
    if found is None:
        raise InputError(f"the module with number {number} is gone; keep it as long as what was compiled with it")
    return found


@torch.library.custom_op("vgg16gpu::features", mutates_args=())
def features(x: Tensor, number: int) -> list[Tensor]:
    """The values of a module's layers."""
    return _module(number).values(x)


@features.register_fake
def _(x: Tensor, number: int) -> list[Tensor]:
    return _module(number).empty(x)


@torch.library.custom_op("vgg16gpu::features_gradient", mutates_args=())
def features_gradient(x: Tensor, number: int, cotangents: list[Tensor]) -> Tensor:
    """The gradient to x of the values, each weighted by its cotangent."""
    return _module(number).gradient(x, cotangents)


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
    return features_gradient(x, ctx.number, cotangents), None


def _refuse(ctx: Any, *cotangents: Tensor) -> Any:
    del ctx, cotangents
    raise InputError("a second derivative is not computed; take the first one without create_graph=True")


features.register_autograd(_backward, setup_context=_keep)
features_gradient.register_autograd(_refuse)
