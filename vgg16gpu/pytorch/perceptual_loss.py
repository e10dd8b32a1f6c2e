"""`PerceptualLoss`: images compared by the features of a network, as a module whose result can be trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import torch

from vgg16gpu.compiler.model import Model, ModelSource
from vgg16gpu.errors import InputError
from vgg16gpu.pytorch import operators
from vgg16gpu.pytorch.loss_runs import Found, LossRuns, Targets, gradient_for
from vgg16gpu.pytorch.module import KernelModule
from vgg16gpu.pytorch.second_derivative import once
from vgg16gpu.pytorch.tensors import is_batched, is_traced, require_floats, require_recorded
from vgg16gpu.runtime.plans.comparison import Comparison, Distance, Weight
from vgg16gpu.runtime.plans.gradients import gradient_options
from vgg16gpu.runtime.plans.loss_engine import LossEngine
from vgg16gpu.runtime.plans.opening import check_memory_bound, warn_of_random_weights

REDUCTIONS: Final = ("mean", "sum", "none")


class PerceptualLoss(KernelModule):
    """How far images are from others by the features of a model, differentiable in the images; its weights are frozen.

    model, layers, style, distance, precision, batch: as for `LossEngine`, which says what is computed. memory: as
    there, on each device. reduction: "mean" of the images, their "sum", or "none", (N,). Of no images (N = 0) these are
    NaN, 0 and (0,), as torch's own losses have it, and the gradient has no rows.

    `forward(x, target, style=None)` takes (N, C, H, W) tensors of any float type, normalised as the model wants them;
    target: images to compare with, of the same size, or what `targets` gave; N of them, or one for all. style: other
    images for the style layers, of any size. A float32 tensor comes back. The gradient to x is computed in the same run
    of the kernels as the loss and belongs to the call: `backward` only scales it, so any number of losses may wait for
    theirs. It has the element type of x; a second derivative is refused, and so is a gradient to the target. Tensors on
    the CPU are computed by our kernels on the CPU; those on a GPU there, on the current stream, and nobody waits for
    them: `check` raises what was wrong. One may capture it in a CUDA graph once it has run for the same sizes;
    `torch.compile` keeps it in one graph, as an operator.

    Call `close` to free what lies on devices. Raises ModelError, InputError, DeviceError, KernelError as `LossEngine`.
    """

    def __init__(
        self,
        model: ModelSource,
        layers: Mapping[str, Weight] | None = None,
        style: Mapping[str, float] | None = None,
        *,
        distance: Distance = "squared",
        precision: str = "fp32",
        reduction: Literal["mean", "sum", "none"] = "mean",
        batch: int = 16,
        memory: int | None = None,
    ) -> None:
        super().__init__()
        if reduction not in REDUCTIONS:
            raise InputError(f"reduction '{reduction}' is not known; accepted: {', '.join(REDUCTIONS)}")
        self.reduction = reduction
        self._model = Model.of(model)
        gradient_options(precision, "auto")
        self._options: dict[str, Any] = {"layers": layers, "style": style, "distance": distance, "batch": batch}
        check_memory_bound(memory)
        self._options |= {"precision": precision, "memory": memory}
        self._engines: dict[str, LossRuns] = {}
        self._handle = operators.register(self)
        Comparison.of(self._model, layers, style, distance)  # what is wrong with names is said now
        warn_of_random_weights(self._model)

    def extra_repr(self) -> str:
        """What torch shows of it."""
        named = {"layers": self._options["layers"], "style": self._options["style"]}
        given = [f"{name} {', '.join(layers)}" for name, layers in named.items() if layers]
        return ", ".join((self._model.name, *given, self._options["distance"], self.reduction))

    def targets(self, images: torch.Tensor | None = None, style: torch.Tensor | None = None) -> Targets:
        """What `forward` compares with, for images that are compared with more than once; on their device.

        Of the shapes and, on a GPU, the element types that `LossEngine` tells (`target_shapes`, `target_types`).
        """
        given = images if images is not None else style
        if given is None:
            raise InputError("there are no images to compare with; give images, style or both")
        for tensor, what in ((images, "the target"), (style, "the style")):
            if tensor is not None:
                require_floats(tensor, what)
        runs = self._runs(given.device)
        return (runs.targets_on_host if given.device.type == "cpu" else runs.targets_on_card)(given, images, style)

    def forward(
        self,
        x: torch.Tensor,
        target: torch.Tensor | Sequence[torch.Tensor] | None = None,
        style: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the loss of images (N, C, H, W) against a target. Raises InputError for what are no such tensors."""
        needs_operator, has_gradient = is_traced(), torch.is_grad_enabled()
        require = require_recorded if needs_operator else require_floats
        require(x, "x")
        targets = tuple(target) if isinstance(target, tuple | list) else None
        for given in (target, style) if targets is None else (*targets, style):
            if isinstance(given, torch.Tensor) and given.requires_grad and has_gradient:
                raise InputError("the target requires a gradient, which goes to x alone; give target.detach()")
        for given in targets or ():
            require(given, "a target")
        if needs_operator:
            return self._as_operator(x, target, targets or (), style)
        if targets is None:
            targets = self.targets(target, style)
        runs = self._runs(x.device)
        if x.requires_grad and has_gradient:
            value: torch.Tensor = _Run.apply(x, runs, targets)
            return value
        return _run(runs, x, targets, wants_gradient=False)[0]

    def _as_operator(self, x: torch.Tensor, target: Any, targets: Targets, style: torch.Tensor | None) -> torch.Tensor:
        """Return the same by one operator of torch's, which costs more, and compilers need."""
        images = [] if targets or target is None else [target]
        styles = [] if style is None else [style]
        for given, what in ((images, "the target"), (styles, "the style")):
            for tensor in given:
                require_recorded(tensor, what)
        wants_gradient = x.requires_grad and torch.is_grad_enabled()
        return operators.perceptual_loss(x, self._handle, images, styles, list(targets), wants_gradient)[0]

    def compared(
        self,
        x: torch.Tensor,
        images: Sequence[torch.Tensor],
        style: Sequence[torch.Tensor],
        targets: Sequence[torch.Tensor],
        wants: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What `operators` calls: the loss, and its gradient, without elements where it is not wanted."""
        require_floats(x, "x")
        for target in targets:
            require_floats(target, "a target")
        found = tuple(targets) or self.targets(*(given[0] if given else None for given in (images, style)))
        value, gradient = _run(self._runs(x.device), x, found, wants_gradient=wants)
        return value, x.new_empty(0) if gradient is None else gradient

    def empty(self, x: torch.Tensor, wants_gradient: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """What `operators` calls: tensors of the shapes, element types and orders of what `compared` returns."""
        value = x.new_empty(x.shape[:1] if self.reduction == "none" else (), dtype=torch.float32)
        if not wants_gradient:
            return value, x.new_empty(0)
        return value, x.new_empty(x.shape, dtype=torch.float32) if x.device.type == "cpu" else gradient_for(x)

    def check(self) -> None:
        """Wait for what runs on GPUs, and raise what was wrong with it since the last check: `LossEngine.check`."""
        for runs in self._engines.values():
            runs.engine.check()

    def close(self) -> None:
        """Free what lies on devices; the next call builds it anew. Safe to call twice."""
        while self._engines:
            self._engines.popitem()[1].engine.close()

    def _runs(self, device: torch.device) -> LossRuns:
        name = "cpu" if device.type == "cpu" else f"cuda:{device.index or 0}"
        found = self._engines.get(name)
        if found is None:
            engine = LossEngine(self._model, device=name, **self._options)
            found = self._engines[name] = LossRuns(engine, self.reduction)
        return found


def _run(runs: LossRuns, x: torch.Tensor, targets: Targets, *, wants_gradient: bool) -> Found:
    """Return the loss and, if it is wanted, its gradient to x."""
    return (runs.on_host if x.device.type == "cpu" else runs.on_card)(x, targets, wants_gradient)


class _Run(torch.autograd.Function):
    """The loss; its gradient is there already when the loss is."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, runs: LossRuns, targets: Targets) -> torch.Tensor:
        value, gradient = _run(runs, x, targets, wants_gradient=True)
        ctx.save_for_backward(x, gradient)
        return value

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        x, gradient = ctx.saved_tensors
        factor = slope.view(-1, 1, 1, 1) if slope.dim() else slope
        if is_batched((slope,)):  # as many gradients as vmap asks for, of one loss
            return (gradient * factor).to(x.dtype), None, None
        factor = factor.detach()
        scaled = torch.mul(gradient, factor, out=torch.empty_like(gradient, dtype=x.dtype))  # one kernel
        return once(scaled, x, slope), None, None
