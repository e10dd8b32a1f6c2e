"""Losses of tensors as runs of an engine on their device, and what is kept from call to call."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Final, TypeAlias

import torch

from vgg16gpu.pytorch.tensors import (
    TYPES,
    current_stream,
    is_on_host,
    on_host,
    require_one_device,
    taken,
    view,
)
from vgg16gpu.runtime.on_device.results import RunOptions
from vgg16gpu.runtime.plans.loss_engine import LossEngine
from vgg16gpu.runtime.plans.losses import Enqueued, LossKind

Targets: TypeAlias = tuple[torch.Tensor, ...]
Given: TypeAlias = Sequence[torch.Tensor | None]

_KEPT: Final = 64  # calls; allocators hand out the same places again and again


class LossRuns:
    """Losses by one engine, each image's or (reduction) their mean or sum.

    What a call has enqueued for tensors at their places is kept: the next one with these asks nothing.
    """

    def __init__(self, engine: LossEngine, reduction: str) -> None:
        self.engine, self._reduction = engine, reduction
        self._enqueued: dict[Hashable, Enqueued] = {}

    def compute(self, kind: LossKind, inputs: Given, gradients: int = 0) -> Targets:
        """Return what a program of this kind gives: targets, or the losses and so many gradients to the inputs.

        inputs: of "loss" images and targets, of "pair" images and images, of "targets" images and a style, one of which
        may be None. Those on a GPU are enqueued on the current stream. A gradient comes in the order of its images.
        """
        x = inputs[0] if inputs[0] is not None else inputs[-1]
        assert x is not None  # whoever calls has seen to it
        options: dict[str, Any] = {"gradients": gradients}
        if kind != "targets":
            options["mean"] = self._reduction == "mean"
        if is_on_host(x):
            require_one_device(x, inputs)
            found: list[torch.Tensor] = []
            for arrays, terms, _ in self._engine_runs(
                kind, [given if given is None else on_host(given) for given in inputs]
            ):
                found += map(torch.from_numpy, self.engine.on_host(kind, arrays, terms=terms, **options))
            return tuple(found)
        readable = [given if given is None else taken(given) for given in inputs]
        out = self._targets(x, readable) if kind == "targets" else self._losses(x, inputs[:gradients])
        stream, key = current_stream(x.device), (kind, *map(_place, readable), *map(_place, out))
        known = self._enqueued.get(key)
        if known is None or not self.engine.repeat(known, stream):
            require_one_device(x, inputs)
            enqueued: Enqueued = ()
            views = [given if given is None else view(given) for given in readable]
            for arrays, terms, outs in self._engine_runs(kind, views, list(map(view, out))):
                run = RunOptions(stream, None, outs, wait=False)
                enqueued += self.engine.on_device(kind, arrays, run, terms=terms, **options)[1]
            if len(self._enqueued) >= _KEPT:
                self._enqueued.clear()
            self._enqueued[key] = enqueued
        return out

    def _engine_runs(
        self, kind: LossKind, arrays: Sequence[Any], out: Any = None
    ) -> Sequence[tuple[Sequence[Any], tuple[int, ...], Any]]:
        """Return (inputs, terms, arrays for results) of each run of the engine."""
        if kind != "targets":
            return [(arrays, (), out)]
        images, style = arrays
        return self.engine.target_runs(images, style, out)

    def _losses(self, x: torch.Tensor, images: Given) -> Targets:
        """Return tensors for the losses of images x, and for the gradients to these."""
        losses = torch.empty(x.shape[:1], dtype=torch.float32, device=x.device)
        return losses, *(gradient_for(given) for given in images if given is not None)

    def _targets(self, x: torch.Tensor, inputs: Given) -> Targets:
        """Return tensors for the targets of images and a style."""
        shapes = [given if given is None else tuple(given.shape) for given in inputs]
        forms = zip(self.engine.target_shapes(*shapes), self.engine.target_types(*shapes), strict=True)
        return tuple(torch.empty(shape, dtype=TYPES[name], device=x.device) for shape, name in forms)

    def reduced(self, losses: torch.Tensor) -> torch.Tensor:
        """Return the losses, or their sum, as parts of a mean add up to it; the mean of no losses is NaN, as in torch.

        Always another tensor: whoever keeps losses would keep the place, and the next call would need a new one.
        """
        if self._reduction == "none":
            return losses.clone()
        is_mean_of_none = self._reduction == "mean" and losses.shape[0] == 0
        return losses.mean() if is_mean_of_none else losses.sum()


def _place(tensor: torch.Tensor | None) -> Hashable:
    """Where a tensor lies, and how."""
    if tensor is None:
        return None
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.get_device()


def gradient_for(x: torch.Tensor) -> torch.Tensor:
    """A tensor for the gradient to x, in its order, so that nobody has to bring it into that.

    bfloat16 has the range of float32; in float16 a gradient that nobody has scaled yet would be lost.
    """
    is_last = not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    return torch.empty(
        x.shape,
        dtype=torch.bfloat16 if x.dtype == torch.bfloat16 else torch.float32,
        device=x.device,
        memory_format=torch.channels_last if is_last else torch.contiguous_format,
    )
