"""Losses of tensors as calls of an engine on their device, and what is kept from call to call."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, TypeAlias

import torch

from vgg16gpu.compiler.graph.ops import Shape
from vgg16gpu.pytorch.tensors import TYPES, current_stream, on_host, require_one_device, taken, view
from vgg16gpu.runtime.on_device.views import StridedView
from vgg16gpu.runtime.plans.loss_engine import LossEngine
from vgg16gpu.runtime.plans.losses import Enqueued

Targets: TypeAlias = tuple[torch.Tensor, ...]
Forms: TypeAlias = list[tuple[Shape, torch.dtype]]
Found: TypeAlias = tuple[torch.Tensor, torch.Tensor | None]  # the loss and, if it is wanted, its gradient
FoundPair: TypeAlias = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]

_KEPT: Final = 64  # calls; allocators hand out the same places again and again


class LossRuns:
    """Losses by one engine, each image's or (reduction) their mean or sum.

    What a call has enqueued for tensors at their places is kept: the next one with these asks nothing.
    """

    def __init__(self, engine: LossEngine, reduction: str) -> None:
        self.engine, self._reduction = engine, reduction
        self._options: dict[str, Any] = {"mean": reduction == "mean"}
        self._enqueued: dict[Hashable, Enqueued] = {}
        self._forms: dict[tuple[Shape | None, ...], Forms] = {}

    def run(self, x: torch.Tensor, targets: Targets, wants_gradient: bool) -> Found:
        """Return the loss of images against targets and, if it is wanted, its gradient to the images."""
        return (self.on_host if x.is_cpu else self.on_card)(x, targets, wants_gradient)

    def targets(self, given: torch.Tensor, *images: torch.Tensor | None) -> Targets:
        """Return what images, and a style, make; one of these two is `given`."""
        return (self.targets_on_host if given.is_cpu else self.targets_on_card)(given, *images)

    def pair(self, x: torch.Tensor, y: torch.Tensor, wants_x: bool, wants_y: bool) -> FoundPair:
        """Return the loss of images against images, and its gradients to both, each if it is wanted.

        y: as many images as x, or one for all. Its gradient has a row for each row of x in either case.
        """
        if wants_y and not wants_x:  # all distances are symmetric
            losses, to_y, _ = self.pair(self._rows(y, x), x, wants_x=True, wants_y=False)
            return losses, None, to_y
        if y.shape[0] != x.shape[0] and not wants_y:  # the features of one are computed once
            losses, to_x = self.run(x, self.targets(y, y, None), wants_gradient=wants_x)
            return losses, to_x, None
        given, count = (x, self._rows(y, x)), wants_x + wants_y
        losses, *gradients = (self.pair_on_host if x.is_cpu else self.pair_on_card)(*given, count)
        return self._reduced(losses), *gradients, *(None,) * (2 - count)

    @staticmethod
    def _rows(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return as many images as x has."""
        return y if y.shape[0] == x.shape[0] else y.expand(x.shape[0], -1, -1, -1).contiguous()

    def pair_on_host(self, x: torch.Tensor, y: torch.Tensor, gradients: int) -> Sequence[torch.Tensor]:
        """Return the losses of tensors on the CPU, and so many gradients."""
        found = self.engine.compare(on_host(x), on_host(y), gradients=gradients, **self._options)
        return tuple(map(torch.from_numpy, found))

    def pair_on_card(self, x: torch.Tensor, y: torch.Tensor, gradients: int) -> Sequence[torch.Tensor]:
        """Return the same of tensors on a GPU, enqueued on the current stream; gradients in the order of the images."""
        first, second = taken(x), taken(y)
        losses = torch.empty(x.shape[:1], dtype=torch.float32, device=x.device)
        out = (losses, *map(gradient_for, (x, y)[:gradients]))

        def enqueue(stream: int) -> Enqueued:
            return self.engine.enqueue_pair(view(first), view(second), _views(out), stream, **self._options)

        self._run(x.device, (first, second, *out), enqueue)
        return out

    def on_host(self, x: torch.Tensor, targets: Targets, wants_gradient: bool) -> Found:
        """Of tensors on the CPU."""
        require_one_device(x, targets)
        given = on_host(x), list(map(on_host, targets))
        if not wants_gradient:
            return self._reduced(torch.from_numpy(self.engine.value(*given, **self._options))), None
        losses, gradient = map(torch.from_numpy, self.engine.value_and_gradient(*given, **self._options))
        return self._reduced(losses), gradient

    def on_card(self, x: torch.Tensor, targets: Targets, wants_gradient: bool) -> Found:
        """Of tensors on a GPU, enqueued on the current stream. A gradient comes in the order of x."""
        images, *goals = map(taken, (x, *targets))
        losses = torch.empty(x.shape[:1], dtype=torch.float32, device=x.device)
        gradient = gradient_for(x) if wants_gradient else None
        out = (losses,) if gradient is None else (losses, gradient)

        def enqueue(stream: int) -> Enqueued:
            require_one_device(x, goals)
            return self.engine.enqueue(view(images), _views(goals), _views(out), stream, **self._options)

        self._run(x.device, (images, *goals, *out), enqueue)
        return self._reduced(losses), gradient

    def targets_on_host(self, given: torch.Tensor, *images: torch.Tensor | None) -> Targets:
        """Of images and a style on the CPU; one of them is `given`."""
        require_one_device(given, images)
        arrays = (x if x is None else on_host(x) for x in images)
        return tuple(map(torch.from_numpy, self.engine.targets(*arrays)))

    def targets_on_card(self, given: torch.Tensor, *images: torch.Tensor | None) -> Targets:
        """Of images and a style on a GPU; of the element types that the engine names."""
        require_one_device(given, images)
        pair = [x if x is None else taken(x) for x in images]
        shapes = tuple(x if x is None else tuple(x.shape) for x in pair)
        found = tuple(
            torch.empty(shape, dtype=dtype, device=given.device) for shape, dtype in self._target_forms(shapes)
        )

        def enqueue(stream: int) -> Enqueued:
            content, style = (x if x is None else view(x) for x in pair)
            return self.engine.enqueue_targets(content, style, _views(found), stream)

        self._run(given.device, (*pair, *found), enqueue)
        return found

    def _target_forms(self, shapes: tuple[Shape | None, ...]) -> Forms:
        """Shapes and types of targets for images and a style of these shapes."""
        if shapes not in self._forms:
            types = map(TYPES.__getitem__, self.engine.target_types(*shapes))
            if len(self._forms) >= _KEPT:
                self._forms.clear()
            self._forms[shapes] = list(zip(self.engine.target_shapes(*shapes), types, strict=True))
        return self._forms[shapes]

    def _run(
        self, device: torch.device, tensors: Sequence[torch.Tensor | None], enqueue: Callable[[int], Enqueued]
    ) -> None:
        """What `enqueue` does on the current stream, or the same once more where these tensors lay before."""
        stream, key = current_stream(device), tuple(map(_place, tensors))
        known = self._enqueued.get(key)
        if known is not None and self.engine.repeat(known, stream):
            return
        done = enqueue(stream)
        if len(self._enqueued) >= _KEPT:
            self._enqueued.clear()
        self._enqueued[key] = done

    def _reduced(self, losses: torch.Tensor) -> torch.Tensor:
        """Parts of the mean add up to it; the mean of no losses is NaN, as torch has it.

        Always another tensor: whoever keeps losses would keep the place, and the next call would need a new one.
        """
        if self._reduction == "none":
            return losses.clone()
        is_mean_of_none = self._reduction == "mean" and not len(losses)
        return losses.mean() if is_mean_of_none else losses.sum()


def _place(tensor: torch.Tensor | None) -> Hashable:
    """Where a tensor lies, and how."""
    if tensor is None:
        return None
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.get_device()


def _views(tensors: Sequence[torch.Tensor]) -> tuple[StridedView, ...]:
    return tuple(map(view, tensors))


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
