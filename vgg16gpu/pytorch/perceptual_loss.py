"""`PerceptualLoss`: images compared by the features of a network, as a module whose result can be trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import torch
from torch import nn

from vgg16gpu.compiler.model import Model, ModelSource
from vgg16gpu.errors import InputError
from vgg16gpu.pytorch.second_derivative import once
from vgg16gpu.pytorch.views import TYPES, current_stream, taken, view
from vgg16gpu.runtime.plans.gradients import gradient_options
from vgg16gpu.runtime.plans.loss_engine import Comparison, Distance, LossEngine, Weight

Targets: TypeAlias = tuple[torch.Tensor, ...]

REDUCTIONS: Final = ("mean", "sum", "none")


class PerceptualLoss(nn.Module):
    """How far images are from others by the features of a model, differentiable in the images; its weights are frozen.

    model, layers, style, distance, precision, batch: as for `LossEngine`, which says what is computed. reduction:
    "mean" of the images, their "sum", or "none", (N,).

    `forward(x, target, style=None)` takes (N, C, H, W) tensors of any float type, normalised as the model wants them;
    target: images to compare with, of the same size, or what `targets` gave; N of them, or one for all. style: other
    images for the style layers, of any size. A float32 tensor comes back. The gradient to x is computed in the same run
    of the kernels as the loss and belongs to the call: `backward` only scales it, so any number of losses may wait for
    theirs. It has the element type of x; a second derivative is refused, and so is a gradient to the target. Tensors on
    the CPU are computed by our kernels on the CPU; those on a GPU there, on the current stream, and nobody waits for
    them: `check` raises what was wrong. One may capture it in a CUDA graph once it has run for the same sizes.

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
    ) -> None:
        super().__init__()
        if reduction not in REDUCTIONS:
            raise InputError(f"reduction '{reduction}' is not known; accepted: {', '.join(REDUCTIONS)}")
        self.reduction = reduction
        self._model = Model.of(model)
        gradient_options(precision, "auto")
        self._options: dict[str, Any] = {"layers": layers, "style": style, "distance": distance, "batch": batch}
        self._options["precision"] = precision
        self._engines: dict[str, LossEngine] = {}
        Comparison.of(self._model, layers, style, distance)  # what is wrong with names is said now

    def extra_repr(self) -> str:
        """What torch shows of it."""
        named = {"layers": self._options["layers"], "style": self._options["style"]}
        given = [f"{name} {', '.join(layers)}" for name, layers in named.items() if layers]
        return ", ".join((self._model.name, *given, self._options["distance"], self.reduction))

    def targets(self, images: torch.Tensor | None = None, style: torch.Tensor | None = None) -> Targets:
        """What `forward` compares with, for images that are compared with more than once; on their device."""
        given = images if images is not None else style
        if given is None:
            raise InputError("there are no images to compare with; give images, style or both")
        engine = self._engine(given.device)
        pair = tuple(x if x is None else _taken_on(given.device, x) for x in (images, style))
        if given.device.type == "cpu":
            return tuple(map(torch.from_numpy, engine.targets(*pair)))
        of = [x if x is None else tuple(x.shape) for x in pair]
        forms = zip(engine.target_shapes(*of), engine.target_types(*of), strict=True)
        found = tuple(torch.empty(shape, dtype=TYPES[name], device=given.device) for shape, name in forms)
        options = _unwaited(given.device, found)
        engine.targets(*(x if x is None else view(x) for x in pair), **options)
        return found

    def forward(
        self, x: torch.Tensor, target: torch.Tensor | Targets | None = None, style: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The loss of images (N, C, H, W) against a target."""
        for given in (target, style):
            if isinstance(given, torch.Tensor) and given.requires_grad and torch.is_grad_enabled():
                raise InputError("the target requires a gradient, which goes to x alone; give target.detach()")
        found = target if isinstance(target, tuple) else self.targets(target, style)
        losses: torch.Tensor = _Run.apply(x, self._engine(x.device), found)
        return losses if self.reduction == "none" else losses.mean() if self.reduction == "mean" else losses.sum()

    def check(self) -> None:
        """Wait for what runs on GPUs, and raise what was wrong with it since the last check: `LossEngine.check`."""
        for engine in self._engines.values():
            engine.check()

    def close(self) -> None:
        """Free what lies on devices; the next call builds it anew. Safe to call twice."""
        while self._engines:
            self._engines.popitem()[1].close()

    def _engine(self, device: torch.device) -> LossEngine:
        name = "cpu" if device.type == "cpu" else f"cuda:{device.index or 0}"
        if name not in self._engines:
            self._engines[name] = LossEngine(self._model, device=name, **self._options)
        return self._engines[name]


class _Run(torch.autograd.Function):
    """The loss of each image; its gradient is there already when the loss is."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, engine: LossEngine, targets: Targets) -> torch.Tensor:
        wants_gradient = ctx.needs_input_grad[0]
        found = (_on_host if x.device.type == "cpu" else _on_card)(x, engine, targets, wants_gradient)
        if wants_gradient:
            ctx.save_for_backward(x, found[1])
        return found[0]

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        x, gradient = ctx.saved_tensors
        return once((gradient * slope[:, None, None, None]).to(x.dtype), x), None, None


def _on_host(x: torch.Tensor, engine: LossEngine, targets: Targets, wants_gradient: bool) -> list[torch.Tensor]:
    """The losses and, if it is wanted, their gradient."""
    arrays = [_taken(target) for target in targets]
    found = engine.value_and_gradient(_taken(x), arrays) if wants_gradient else (engine.value(_taken(x), arrays),)
    return list(map(torch.from_numpy, found))


def _on_card(x: torch.Tensor, engine: LossEngine, targets: Targets, wants_gradient: bool) -> list[torch.Tensor]:
    """The same, enqueued on the current stream."""
    shapes = (x.shape[:1], x.shape) if wants_gradient else (x.shape[:1],)
    found = [torch.empty(shape, dtype=torch.float32, device=x.device) for shape in shapes]
    images, *goals = (_taken_on(x.device, tensor) for tensor in (x, *targets))
    compute = engine.value_and_gradient if wants_gradient else engine.value
    compute(view(images), list(map(view, goals)), **_unwaited(x.device, found))
    return found


def _unwaited(device: torch.device, out: Sequence[torch.Tensor]) -> dict[str, Any]:
    """Options of a run on the current stream that nobody waits for."""
    return {"stream": current_stream(device), "out": tuple(map(view, out)), "wait": False}


def _taken(x: torch.Tensor) -> Any:
    """The tensor as engines take it: on the CPU a float32 array. Raises InputError for one of whole numbers."""
    if not x.is_floating_point():
        raise InputError(f"the images are {x.dtype}; give floats, normalised as the model wants it: x.float() / 255")
    if x.device.type == "cpu":
        return x.detach().float().contiguous().numpy()
    return taken(x.detach())


def _taken_on(device: torch.device, x: torch.Tensor) -> Any:
    """The same. Raises InputError for one that lies elsewhere."""
    if x.device != device:
        raise InputError(f"the images lie on {device}, and a target or a style on {x.device}; bring all to one device")
    return _taken(x)
