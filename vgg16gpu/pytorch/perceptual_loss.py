"""`PerceptualLoss`: images compared by the features of a network, as a module whose result can be trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import torch

from vgg16gpu.compiler.model import Model, ModelSource
from vgg16gpu.errors import InputError
from vgg16gpu.io.shown import shown
from vgg16gpu.pytorch import operators
from vgg16gpu.pytorch.features import Features
from vgg16gpu.pytorch.layer_terms import LayerTerms, require_mask
from vgg16gpu.pytorch.loss_runs import LossRuns, Targets, gradient_for
from vgg16gpu.pytorch.module import KernelModule
from vgg16gpu.pytorch.operators import once, rows_of
from vgg16gpu.pytorch.scaling import TORCH, Scalings, check_precision, chosen, scalings_of, under_autocast
from vgg16gpu.pytorch.tensors import (
    is_batched,
    is_traced,
    name_of,
    require_floats,
    require_one_device,
    require_recorded,
)
from vgg16gpu.runtime.plans.gradients import PRECISIONS
from vgg16gpu.runtime.plans.loss_engine import LossEngine
from vgg16gpu.runtime.plans.losses import Distance, FeatureComparison, Weight
from vgg16gpu.runtime.plans.opening import check_batch, check_memory_bound, warn_of_random_weights

REDUCTIONS: Final = ("mean", "sum", "none")
CRITERIA: Final[Mapping[str, Distance]] = {"l1": "absolute", "l2": "squared"}  # and "fro", which no kernel has
PerLayer: TypeAlias = tuple[torch.Tensor, dict[str, torch.Tensor]]
_STEPS: Final = (1, 4)  # sizes of batches of the general way, beside `batch`
_IMAGES: Final = 4  # dimensions


class PerceptualLoss(KernelModule):
    """How far images are from others by the features of a model, differentiable in both; its weights are frozen.

    model, layers, style, distance, batch: as for `LossEngine`, which says what is computed. memory: as there, of each
    engine; there is one for each device and precision. reduction: "mean" of the images, their "sum", or "none", (N,).
    Of no images (N = 0) these are NaN, 0 and (0,), as torch's own losses have it, and the gradient has no rows.

    precision: "fp32", "fp16", "bf16", or "torch": what torch's own convolutions compute in at the time of the call.
        That is autocast's type where autocast is on. Else it is, on a GPU, "fp32" if TF32 is forbidden for
        convolutions (`torch.backends.cudnn.allow_tf32 = False`), and "fp16" if not: float16 has the digits of TF32, and
        factors keep gradients in its range. On the CPU, and on a GPU without tensor cores of 16 bits, it is "fp32".
    criterion: in place of distance, as losses elsewhere call it: "l1" (mean absolute), "l2" (mean squared), or "fro",
        the Frobenius norm of the difference of all images; of style, too. per_layer: `forward` returns the terms, too.
    mean, std: of each channel; images become (x - mean) / std inside. scalings: several such pairs in their place, for
        modules around this one; `forward` takes the first, and `compare` is told which.

    `forward(x, target, style=None, mask=None)` takes (N, C, H, W) tensors of any float type, normalised as the model
    wants them, unless mean and std do that; target: images to compare with, of the same size, or what `targets` gave; N
    of them, or one for all. style: other images for the style layers, of any size, as the target has where style alone
    is compared. mask: (N or 1, 1, H, W), 0 or more: means over pixels are weighted by it, averaged over areas to the
    size of each layer; a layer where it is 0 everywhere gives 0. Numbers below 0, NaN and Inf are refused on the CPU.
    On a GPU, where nobody waits for them, and in compiled calls the loss of that image and its gradient are NaN.

    A float32 tensor comes back; with per_layer=True a pair of it and a dict of the term of each layer, reduced
    likewise, those of style as "style.NAME". The gradient to x, to the target's images or to both is computed together
    with the loss and belongs to the call: `backward` only scales it, so any number of losses may wait for theirs. Each
    has the element type of its images; a second derivative is refused, and so is a gradient to kept targets or to style
    images. Masks, per_layer, "fro", style by "l1", and a gradient to a target beside style images take longer: features
    leave the engine there, and torch's elementwise operators compare them.

    Tensors on the CPU are computed by our kernels on the CPU; those on a GPU there, on the current stream, and nobody
    waits for them: `check` raises what was wrong. One may capture it in a CUDA graph once it has run for the same
    sizes; `torch.compile` keeps it in one graph.

    Call `close` to free what lies on devices. Raises ModelError, InputError, DeviceError, KernelError as `LossEngine`.
    """

    def __init__(
        self,
        model: ModelSource,
        layers: Mapping[str, Weight] | None = None,
        style: Mapping[str, float] | None = None,
        *,
        distance: Distance = "squared",
        criterion: Literal["l1", "l2", "fro"] | None = None,
        precision: str = TORCH,
        reduction: Literal["mean", "sum", "none"] = "mean",
        per_layer: bool = False,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        scalings: Scalings | None = None,
        batch: int = 16,
        memory: int | None = None,
    ) -> None:
        super().__init__()
        if reduction not in REDUCTIONS:
            raise InputError(f"reduction '{reduction}' is not known; accepted: {', '.join(REDUCTIONS)}")
        kind = _distance(distance, criterion, reduction)
        self.reduction, self.precision, self.per_layer, self._distance = reduction, precision, per_layer, kind
        self._model = Model.of(model)
        check_precision(precision, PRECISIONS)
        check_memory_bound(memory)
        check_batch(batch)
        by_engine: Distance = "squared" if kind == "norm" else kind
        self._options: dict[str, Any] = {"layers": layers, "style": style, "distance": by_engine, "batch": batch}
        self._options |= {"memory": memory}
        self._engines: dict[tuple[torch.device, str], LossRuns] = {}
        self._handle = operators.register(self)
        # What is wrong with names is said now.
        compared = FeatureComparison.of(self._model, layers, style, by_engine)
        self._has_content = bool(compared.content)
        item = compared.graph.input
        self._channels, self._is_channels_last = item.shape[1], item.channels_last
        if scalings is not None and (mean is not None or std is not None):
            raise InputError("mean or std is given beside scalings; give one of them")
        self._scalings = scalings or scalings_of(mean, std, item.shape[1])
        self._is_general = per_layer or kind == "norm" or (bool(style) and kind == "absolute" and criterion == "l1")
        if self._is_channels_last and (self._is_general or self._scalings.first == 0):
            raise InputError(
                f"{self._model.name} has its channels last; per_layer, 'fro', mean and std want them first"
            )
        sizes = tuple(sorted({min(size, batch) for size in (*_STEPS, batch)}))
        self._features = Features(self._model, compared.names, precision, batch=sizes, memory=memory)
        gram_kind = kind if criterion else "squared"
        self._terms = LayerTerms(self._features, layers, style, kind, gram_kind)
        warn_of_random_weights(self._model)

    def extra_repr(self) -> str:
        """What torch shows of it."""
        named = {"layers": self._options["layers"], "style": self._options["style"]}
        given = [f"{name} {', '.join(layers)}" for name, layers in named.items() if layers]
        return ", ".join((self._model.name, *given, self._distance, self.reduction, self.precision))

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
        require_one_device(given, (images, style))
        return self._runs(given.device).compute("targets", self._scaled(self._scalings.first, images, style))

    def _scaled(self, scaling: int, *images: torch.Tensor | None) -> list[torch.Tensor | None]:
        """Return images as targets are made of them: normalised, and apart from what may be differentiated."""
        return [x if x is None else self._scalings.apply(scaling, x.detach()) for x in images]

    def forward(
        self,
        x: torch.Tensor,
        target: torch.Tensor | Sequence[torch.Tensor] | None = None,
        style: torch.Tensor | None = None,
        *,
        mask: torch.Tensor | None = None,
        scaling: int | None = None,
    ) -> Any:
        """Return the loss of images (N, C, H, W) against a target. Raises InputError for what are no such tensors.

        scaling: the number of the normalisation; None: the first.
        """
        scaling = self._scalings.first if scaling is None else scaling
        is_recorded = is_traced()
        images, targets = _given(x, target, style, require_recorded if is_recorded else require_floats)
        has_gradient = torch.is_grad_enabled()
        wants = [has_gradient and x.requires_grad, images is not None and has_gradient and images.requires_grad]
        is_apart = style is not None or self._has_other_size(x, images)
        if self._is_general or mask is not None or (wants[1] and is_apart):
            return self._by_layers(x, images, style, targets, mask, scaling)
        if is_apart and style is None:  # a program for images and images has them of one size
            images, style = None, images
        if is_recorded:
            return self._recorded(x, images, style, targets, scaling, wants)
        runs, apply = self._runs(x.device), self._scalings.apply
        if images is not None and style is None:
            self._require_pair(x, images)
            if images.shape[0] == x.shape[0] or wants[1]:
                if any(wants):
                    return _Pair.apply(x, images, self, runs, scaling)
                return runs.reduced(runs.compute("pair", (apply(scaling, x), apply(scaling, images)))[0])
        if images is not None or style is not None:  # the features of one for all are computed once
            require_one_device(x, (images, style))
            targets = runs.compute("targets", self._scaled(scaling, images, style))
        if wants[0]:
            return _Run.apply(x, self, runs, targets, scaling)
        return runs.reduced(runs.compute("loss", (apply(scaling, x), *targets))[0])

    def compare(
        self,
        x: torch.Tensor,
        target: torch.Tensor | Sequence[torch.Tensor] | None,
        style: torch.Tensor | None,
        mask: torch.Tensor | None,
        scaling: int,
    ) -> Any:
        """Return the same, with the normalisation of this number."""
        return self.forward(x, target, style, mask=mask, scaling=scaling)

    def _recorded(
        self,
        x: torch.Tensor,
        images: torch.Tensor | None,
        style: torch.Tensor | None,
        targets: Targets,
        scaling: int,
        wants: Sequence[bool],
    ) -> torch.Tensor:
        """Return the loss by an operator of torch's, which a compiler keeps in its graph."""
        for given in (x, images, style):
            if given is not None:
                self._features.require_size(given)
        precision = under_autocast(self.precision, x.device.type)
        lists = ([] if given is None else [given] for given in (images, style))
        return operators.perceptual_loss(x, self._handle, *lists, list(targets), precision, scaling, *wants)[0]

    def _by_layers(
        self,
        x: torch.Tensor,
        images: torch.Tensor | None,
        style: torch.Tensor | None,
        targets: Targets,
        mask: torch.Tensor | None,
        scaling: int,
    ) -> torch.Tensor | PerLayer:
        """Return the loss by terms of each layer."""
        if self._is_channels_last:
            raise InputError(f"{self._model.name} has its channels last; a mask wants them first")
        if not targets:
            self._require_images(x, images, style)
        if mask is not None:
            require_mask(mask, x)
            if self._distance == "norm":
                raise InputError("criterion 'fro' is a norm of all pixels and takes no mask; use 'l1' or 'l2'")
        scaled = (given if given is None else self._scalings.apply(scaling, given) for given in (x, images, style))
        ours, theirs, styled = scaled
        assert ours is not None
        terms = self._terms.of(ours, theirs, styled, targets, mask)
        reduce = {"mean": torch.mean, "sum": torch.sum, "none": torch.Tensor.clone}[self.reduction]
        each = {name: reduce(term) for name, term in terms.items()}
        total: torch.Tensor = torch.stack(tuple(each.values())).sum(0)
        return (total, each) if self.per_layer else total

    def maps(self, x: torch.Tensor, target: torch.Tensor, scaling: int) -> list[torch.Tensor]:
        """Return the weighted distances at each pixel of the layers, (N, 1, h, w) each, differentiable in both."""
        self._require_images(x, target, None)
        x, target = (self._scalings.apply(scaling, given) for given in (x, target))
        return list(self._terms.maps(x, target).values())

    def compared(
        self,
        x: torch.Tensor,
        images: Sequence[torch.Tensor],
        style: Sequence[torch.Tensor],
        targets: Sequence[torch.Tensor],
        precision: str,
        scaling: int,
        wants: Sequence[bool],
    ) -> operators.LossGradients:
        """What `operators` calls: the loss, and its gradients, without elements where they are not wanted."""
        require_floats(x, "x")
        for target in targets:
            require_floats(target, "a target")
        for tensors, what in ((images, "the target"), (style, "the style")):
            for tensor in tensors:
                require_floats(tensor, what)
        runs, apply = self._runs(x.device, precision), self._scalings.apply
        is_pair = bool(images) and not style
        if is_pair:
            self._require_pair(x, images[0])
        if is_pair and (images[0].shape[0] == x.shape[0] or wants[1]):
            pair = _in_order(apply(scaling, x), apply(scaling, images[0]), wants)
            losses, *found = runs.compute("pair", pair, sum(wants))
            gradients = _of_both(found, wants)
        else:
            if images or style:
                pictures, styled = (tensors[0] if tensors else None for tensors in (images, style))
                require_one_device(x, (*images, *style))
                targets = runs.compute("targets", self._scaled(scaling, pictures, styled))
            losses, *found = runs.compute("loss", (apply(scaling, x), *targets), int(wants[0]))
            gradients = _of_both(found, (wants[0], False))
        value = runs.reduced(losses)
        factor = self._scalings.factor(scaling, x.device)
        to_x, to_images = (
            x.new_empty(0) if gradient is None else gradient if factor is None else gradient * factor
            for gradient in gradients
        )
        return value, to_x, to_images

    def empty(
        self, x: torch.Tensor, images: Sequence[torch.Tensor], scaling: int, wants: Sequence[bool]
    ) -> operators.LossGradients:
        """What `operators` calls: tensors of the shapes, element types and orders of what `compared` returns."""
        value = x.new_empty(x.shape[:1] if self.reduction == "none" else (), dtype=torch.float32)
        to_x, to_images = (
            _empty_gradient(given, x, scaling) if wanted else x.new_empty(0)
            for given, wanted in zip((x, images[0] if images else x), wants, strict=True)
        )
        return value, to_x, to_images

    def check(self) -> None:
        """Wait for what runs on GPUs, and raise what was wrong with it since the last check: `LossEngine.check`."""
        for runs in self._engines.values():
            runs.engine.check()
        self._features.check()

    def close(self) -> None:
        """Free what lies on devices; the next call builds it anew. Safe to call twice."""
        while self._engines:
            self._engines.popitem()[1].engine.close()
        self._features.close()

    def _require_images(self, x: torch.Tensor, images: torch.Tensor | None, style: torch.Tensor | None) -> None:
        """Raise InputError where images are missing, or are of another size than x."""
        if images is None and self._has_content:
            raise InputError("images to compare with are missing; give images, and style where layers have one")
        require_one_device(x, (style,))
        if style is not None and style.dim() == _IMAGES and style.shape[0] not in (1, x.shape[0]):
            raise InputError(f"style has {style.shape[0]} images, and x has {x.shape[0]}; give as many, or one for all")
        if images is not None:
            self._require_pair(x, images)

    def _has_other_size(self, x: torch.Tensor, images: torch.Tensor | None) -> bool:
        """Return whether style alone is compared, and images for that are of another size than x."""
        if images is None or self._has_content or self._is_channels_last:
            return False
        return x.dim() == images.dim() == _IMAGES and bool(x.shape[2:] != images.shape[2:])

    def _require_pair(self, x: torch.Tensor, images: torch.Tensor) -> None:
        """Raise InputError for images of another size or number than x; of style alone any size is compared."""
        require_one_device(x, (images,))
        channels = -1 if self._is_channels_last else 1
        for given, what in ((x, "x"), (images, "the target")):
            if given.dim() != _IMAGES or self._channels not in (None, given.shape[channels]):
                wanted = f"N, H, W, {self._channels or 'C'}" if channels < 0 else f"N, {self._channels or 'C'}, H, W"
                name = str(given.dtype).removeprefix("torch.")
                raise InputError(
                    f"{what} is {name} {tuple(given.shape)}; give floats ({wanted}), normalised as the model wants it"
                )
        sides = slice(1, 3) if self._is_channels_last else slice(2, 4)
        if self._has_content and images.shape[sides] != x.shape[sides]:
            theirs, ours = ("x".join(map(str, given.shape[sides])) for given in (images, x))
            raise InputError(
                f"the target's images are {theirs} pixels (height x width), and x has {ours}; resize one of them: "
                "torch.nn.functional.interpolate(target, x.shape[2:], mode='bilinear')"
            )
        if images.shape[0] not in (1, x.shape[0]):
            raise InputError(
                f"the target has {images.shape[0]} images, and x has {x.shape[0]}; give as many, or one for all"
            )

    def _runs(self, device: torch.device, asked: str | None = None) -> LossRuns:
        """Return what runs on a device. asked: as `under_autocast` has it; None: what it is now."""
        precision = chosen(self.precision, asked, device)
        found = self._engines.get((device, precision))
        if found is None:
            engine = LossEngine(self._model, device=name_of(device), precision=precision, **self._options)
            found = self._engines[device, precision] = LossRuns(engine, self.reduction)
        return found


def _distance(distance: str, criterion: str | None, reduction: str) -> Any:
    """Return the distance, also of a criterion's name. Raises InputError for one that is not known."""
    if criterion is None:
        return distance
    if distance != "squared":
        raise InputError(f"distance {shown(distance)} and criterion {shown(criterion)} are given; give one of them")
    if criterion == "fro":
        if reduction == "none":
            raise InputError("criterion 'fro' is one norm of all images; leave reduction='none' out, or use 'l1', 'l2'")
        return "norm"
    if not isinstance(criterion, str) or criterion not in CRITERIA:
        raise InputError(f"criterion {shown(criterion)} is not known; accepted: {', '.join((*CRITERIA, 'fro'))}")
    return CRITERIA[criterion]


def _given(
    x: torch.Tensor,
    target: torch.Tensor | Sequence[torch.Tensor] | None,
    style: torch.Tensor | None,
    require: Callable[[object, str], None],
) -> tuple[torch.Tensor | None, Targets]:
    """Return the images to compare x with, if there are some, and the kept targets. Raises InputError for others."""
    require(x, "x")
    targets = tuple(target) if isinstance(target, tuple | list) else ()
    _require_no_gradient(targets, style)
    for given in targets:
        require(given, "a target")
    images: Any = None if isinstance(target, tuple | list) else target
    for given, what in ((images, "the target"), (style, "the style")):
        if given is not None:
            require(given, what)
    if target is None and style is None:
        raise InputError("there are no images to compare with; give images, style or both")
    return images, targets


def _require_no_gradient(targets: Targets, style: object) -> None:
    """Raise InputError for kept targets or a style that require a gradient, and for both of them in one call."""
    for given in (*targets, style):
        if isinstance(given, torch.Tensor) and given.requires_grad and torch.is_grad_enabled():
            raise InputError(
                "a kept target or a style requires a gradient, which goes to x and to the target's images alone; "
                "detach it"
            )
    if targets and style is not None:
        raise InputError(
            "kept targets and style images are given; keep both, targets(images, style), and give these alone"
        )


def _empty_gradient(given: torch.Tensor, x: torch.Tensor, scaling: int) -> torch.Tensor:
    """Return a tensor for a gradient as an operator returns it: a row for each row of x."""
    rows = given if given.shape[0] == x.shape[0] else given.expand(x.shape[0], -1, -1, -1)
    if x.device.type == "cpu":
        return x.new_empty(rows.shape, dtype=torch.float32)
    found = gradient_for(rows)
    return found if scaling < 0 else found.float()


class _Run(torch.autograd.Function):
    """The loss against kept targets; its gradient is there already when the loss is."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, loss: PerceptualLoss, runs: LossRuns, targets: Targets, scaling: int
    ) -> torch.Tensor:
        losses, gradient = runs.compute("loss", (loss._scalings.apply(scaling, x), *targets), 1)
        ctx.save_for_backward(x, gradient)
        ctx.factor = loss._scalings.factor(scaling, x.device)
        return runs.reduced(losses)

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        x, gradient = ctx.saved_tensors
        return _scaled(gradient, slope, ctx.factor, x), None, None, None, None


class _Pair(torch.autograd.Function):
    """The loss of images against images; its gradients are there already when the loss is."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, y: torch.Tensor, loss: PerceptualLoss, runs: LossRuns, scaling: int
    ) -> torch.Tensor:
        apply, wants = loss._scalings.apply, ctx.needs_input_grad[:2]
        pair = _in_order(apply(scaling, x), apply(scaling, y), wants)
        losses, *found = runs.compute("pair", pair, sum(wants))
        ctx.save_for_backward(x, y if wants[1] else None, *_of_both(found, wants))
        ctx.factor = loss._scalings.factor(scaling, x.device)
        return runs.reduced(losses)

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, y, to_x, to_y = ctx.saved_tensors
        found_x = None if to_x is None else _scaled(to_x, slope, ctx.factor, x, *(() if y is None else (y,)))
        return found_x, None if to_y is None else _scaled(to_y, slope, ctx.factor, y, x), None, None, None


def _in_order(x: torch.Tensor, y: torch.Tensor, wants: Sequence[bool]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return as many images y as x has, and x: first the ones whose gradient is wanted, as all distances are symmetric.

    y: as many images as x, or one for all. Its gradient has a row for each row of x in either case.
    """
    others = y if y.shape[0] == x.shape[0] else y.expand(x.shape[0], -1, -1, -1).contiguous()
    return (others, x) if wants[1] and not wants[0] else (x, others)


def _of_both(
    gradients: Sequence[torch.Tensor], wants: Sequence[bool]
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return the gradients to x and to y from those of a run of `_in_order`."""
    found = iter(gradients)
    to_x, to_y = (next(found) if wanted else None for wanted in wants)
    return to_x, to_y


def _scaled(
    gradient: torch.Tensor, slope: torch.Tensor, scale: torch.Tensor | None, x: torch.Tensor, *others: torch.Tensor
) -> torch.Tensor:
    """Return the gradient to images x: that of the run, times the slope of the loss and that of the normalisation.

    others: what it depends on, too.
    """
    factor = slope.view(-1, 1, 1, 1) if slope.dim() else slope
    if scale is not None:
        factor = factor * scale
    if is_batched((slope,)):  # as many gradients as vmap asks for, of one loss
        return rows_of(gradient * factor, x).to(x.dtype)
    factor = factor.detach()
    if x.shape[0] != gradient.shape[0]:
        return once(rows_of(gradient * factor, x).to(x.dtype), x, slope, *others)
    scaled = torch.mul(gradient, factor, out=torch.empty_like(gradient, dtype=x.dtype))  # one kernel
    return once(scaled, x, slope, *others)
