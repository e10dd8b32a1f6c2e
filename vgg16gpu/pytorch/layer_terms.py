"""Losses between features by elementwise operators of torch, for forms that no kernel has: masks, single layers, maps.

Our kernels compute features, and the way back through the network; no convolution of torch's runs. It costs more than
`LossEngine`'s one program: features come out of it, and the way back computes them once more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import torch

from vgg16gpu.errors import InputError
from vgg16gpu.io.shown import shown
from vgg16gpu.pytorch.features import Features
from vgg16gpu.pytorch.tensors import Constants, is_traced, require_floats, require_one_device
from vgg16gpu.runtime.plans.losses import Weight

STYLE: Final = "style."  # before the name of a layer whose Gram matrices are compared
EPSILON: Final = 1e-8  # beside the square of a length, as in kernels/general/feature_loss.cu
Terms: TypeAlias = dict[str, torch.Tensor]
_OF_MASKS: Final = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool)


@dataclass(frozen=True)
class FeatureMaps:
    """Features (N, C, h, w) of a layer by its name; of x, of what its layers and of what its style is compared with."""

    x: Mapping[str, torch.Tensor]
    target: Mapping[str, torch.Tensor]
    style: Mapping[str, torch.Tensor]  # (N, C, C) Gram matrices are taken, too


class LayerTerms:
    """The terms of a loss. distance: "squared", "absolute", "unit" or "norm", the Frobenius norm of all images.

    gram_distance: that of Gram matrices; all but "unit".
    """

    def __init__(
        self,
        features: Features,
        layers: Mapping[str, Weight] | None,
        style: Mapping[str, float] | None,
        distance: str,
        gram_distance: str,
    ) -> None:
        self._net, self._kind, self._gram_kind = features, distance, gram_distance
        self._layers, self._style = tuple(layers or ()), {name: float(w) for name, w in (style or {}).items()}
        self._weights = Constants(
            [np.asarray(weight, float).reshape(-1).tolist() for weight in (layers or {}).values()]
        )

    def of(
        self,
        x: torch.Tensor,
        target: torch.Tensor | None,
        style: torch.Tensor | None,
        kept: Sequence[torch.Tensor],
        mask: torch.Tensor | None,
    ) -> Terms:
        """Return the weighted term of each layer, of each image (N,); (1,) of "norm". style: None: the target.

        kept: what `targets` gave, in place of images. mask: (N or 1, 1, H, W); means over pixels are weighted by it.
        """
        found, masks = self._compared(x, target, style, kept), _Masks(mask)
        with torch.autocast(x.device.type, enabled=False):  # features only follow it
            terms = {
                name: masks.mean(self._pixels(i, found.x[name], found.target[name]))
                if self._kind != "norm"
                else self._norm(i, found.x[name] - found.target[name])
                for i, name in enumerate(self._layers)
            }
            for name, weight in self._style.items():
                terms[STYLE + name] = weight * self._gram_term(found, name, masks, is_own=style is None and not kept)
        return terms

    def maps(self, x: torch.Tensor, target: torch.Tensor) -> Terms:
        """Return the weighted distance at each pixel of each layer, (N, 1, h, w)."""
        found = self._compared(x, target, None, ())
        with torch.autocast(x.device.type, enabled=False):
            return {name: self._pixels(i, found.x[name], found.target[name]) for i, name in enumerate(self._layers)}

    def _compared(
        self,
        x: torch.Tensor,
        target: torch.Tensor | None,
        style: torch.Tensor | None,
        kept: Sequence[torch.Tensor],
    ) -> FeatureMaps:
        count = len(self._layers) + len(self._style)
        if kept and len(kept) != count:
            raise InputError(f"{len(kept)} targets are given, and {count} are compared; use targets(...)")
        require_one_device(x, kept)
        of_x = self._named(x)
        if kept:
            layers = dict(zip(self._layers, kept, strict=False))
            grams = dict(zip(self._style, kept[len(layers) :], strict=True))
            return FeatureMaps(
                of_x,
                {name: _as_map(value, of_x[name]) for name, value in layers.items()},
                {name: _as_gram(value, of_x[name]) for name, value in grams.items()},
            )
        of_target = {} if target is None else self._named(target)
        return FeatureMaps(of_x, of_target, of_target if style is None else self._named(style))

    def _named(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the features of images as float32."""
        return {name: value.float() for name, value in zip(self._net.layers, self._net(images), strict=True)}

    def _pixels(self, index: int, f: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        """Return the weighted distance at each pixel, (N, 1, h, w)."""
        weight = self._weights.at(index, f.device)
        if self._kind == "unit":
            return (weight * (_unit(f) - _unit(t)).square()).sum(1, keepdim=True)
        distances = _magnitude(f - t) if self._kind == "absolute" else (f - t).square()
        return weight * distances.mean(1, keepdim=True)

    def _norm(self, index: int, difference: torch.Tensor) -> torch.Tensor:
        """Return the weighted Frobenius norm, (1,)."""
        return self._weights.at(index, difference.device).view(-1) * torch.linalg.vector_norm(difference)

    def _gram_term(self, found: FeatureMaps, name: str, masks: _Masks, *, is_own: bool) -> torch.Tensor:
        """Return the distance of Gram matrices of each image, (N,). is_own: of what the mask lies over, too."""
        ours, theirs = masks.gram(found.x[name]), found.style[name]
        if theirs.dim() == 4:
            theirs = (masks if is_own else _Masks(None)).gram(theirs)
        difference = ours - theirs
        if self._gram_kind == "norm":
            return torch.linalg.vector_norm(difference).view(1)
        means = (_magnitude(difference) if self._gram_kind == "absolute" else difference.square()).mean((1, 2))
        return masks.without_empty(means, found.x[name])


class _Masks:
    """A mask at the size of each layer, by averages over areas, as parts of its sum; or none.

    That of an image with a number below 0, NaN or Inf is NaN throughout, and so is all that it weights: on a GPU, and
    where torch records calls, no wait can tell the caller, and a sum with negative weights would pass for a loss.
    """

    def __init__(self, mask: torch.Tensor | None) -> None:
        if mask is not None:
            mask = mask.detach().float()
            is_weight = ((mask >= 0) & torch.isfinite(mask)).all(3, keepdim=True).all(2, keepdim=True)
            mask = torch.where(is_weight, mask, torch.nan)
        self._mask = mask

    def mean(self, values: torch.Tensor) -> torch.Tensor:
        """Return means over pixels (N, 1, h, w) -> (N,), weighted; 0 where the mask is."""
        if self._mask is None:
            return values.mean((1, 2, 3))
        return (values * self._parts(values)[0]).sum((1, 2, 3))

    def gram(self, values: torch.Tensor) -> torch.Tensor:
        """Return Gram matrices of features: means over pixels of products of channels, divided by C."""
        flat = values.flatten(2)
        scaled = flat / flat.shape[2] if self._mask is None else flat * self._parts(values)[0].flatten(2)
        return scaled @ flat.mT / flat.shape[1]

    def without_empty(self, terms: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Return terms (N,) of features, 0 where the mask is."""
        return terms if self._mask is None else terms * (self._parts(values)[1].view(-1) > 0)

    def _parts(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return each pixel's part of the sum, (N or 1, 1, h, w), and the sum."""
        mask: Any = torch.nn.functional.interpolate(self._mask, values.shape[2:], mode="area")
        total = mask.sum((2, 3), keepdim=True)
        return mask / torch.where(total > 0, total, 1.0), total


def _unit(value: torch.Tensor) -> torch.Tensor:
    return value * (EPSILON + value.square().sum(1, keepdim=True)).rsqrt()


def _magnitude(difference: torch.Tensor) -> torch.Tensor:
    """Return the magnitudes of differences; the slope of NaN is NaN, as in our kernels, where that of `abs` is 0."""
    return difference.abs() * torch.where(difference.isnan(), difference.detach(), 1.0)


def _as_map(kept: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a kept target (N, h * w, C) as a map (N, C, h, w). Raises InputError for one of another size."""
    n, c, h, w = like.shape
    _require_kept(kept, (n, h * w, c))
    return kept.float().view(-1, h, w, c).permute(0, 3, 1, 2)


def _as_gram(kept: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a kept Gram matrix (N, C, C). Raises InputError for one of another size."""
    n, c = like.shape[:2]
    _require_kept(kept, (n, c, c))
    return kept.float()


def _require_kept(kept: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Raise InputError for a kept target of another shape, or of one for all."""
    if tuple(kept.shape) not in (shape, (1, *shape[1:])):
        raise InputError(
            f"a target is {kept.dtype} {tuple(kept.shape)}; for these images it is {shape}, or one for all; use "
            "targets(...)"
        )


def require_mask(mask: Any, x: torch.Tensor) -> None:
    """Raise InputError for a mask that is none of images (N, C, H, W): (N or 1, 1, H, W) of numbers that are 0 or more.

    Numbers of a mask on a GPU are not looked at, as nobody waits for them, nor are those that torch records calls of:
    there the terms of an image whose mask has others become NaN.
    """
    wanted = f"({x.shape[0]} or 1, 1, {x.shape[2]}, {x.shape[3]})"
    if not isinstance(mask, torch.Tensor):
        raise InputError(f"mask is {shown(mask)}; give a tensor {wanted}")
    if mask.layout is not torch.strided or mask.is_nested:
        require_floats(mask, "mask")  # says how to make a dense one
    is_number = mask.dtype in _OF_MASKS
    is_shaped = mask.dim() == 4 and mask.shape[0] in (1, x.shape[0]) and mask.shape[1:] == (1, *x.shape[2:])
    if not (is_number and is_shaped):
        raise InputError(f"mask is {mask.dtype} {tuple(mask.shape)}; give floats or bool {wanted}")
    if mask.device != x.device:
        raise InputError(f"mask is on {mask.device}, and the images on {x.device}; bring all to one device")
    if mask.requires_grad and torch.is_grad_enabled():
        raise InputError("mask requires a gradient, which goes to images alone; detach it")
    if mask.is_cpu and not is_traced() and not bool(torch.isfinite(mask.float()).all() and (mask >= 0).all()):
        least = float(mask.min())
        found = f"numbers below 0, the least {least:g}" if least < 0 else "NaN or numbers beyond float32"
        raise InputError(f"mask has {found}; give weights of 0 and more")
