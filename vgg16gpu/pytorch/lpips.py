"""`LPIPS` as the package lpips 0.1.4 has it, by our kernels: a script changes its import alone.

R. Zhang et al., "The Unreasonable Effectiveness of Deep Features as a Perceptual Metric", https://arxiv.org/abs/1801.03924
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from vgg16gpu.compiler.model import Model, ModelSource
from vgg16gpu.errors import InputError
from vgg16gpu.io.shipped import DATA
from vgg16gpu.io.shown import printable, shown
from vgg16gpu.pytorch.perceptual_loss import PerceptualLoss
from vgg16gpu.pytorch.scaling import TORCH, Scalings
from vgg16gpu.pytorch.tensors import is_traced, require_floats, require_recorded

LAYERS: Final = ("relu1_2", "relu2_2", "relu3_3", "relu4_3", "relu5_3")
CHANNELS: Final = (64, 128, 256, 512, 512)
BACKBONE: Final = "torchvision/vgg16"
# lpips' ScalingLayer, of pictures in [-1, 1].
_SHIFT: Final = (-0.030, -0.088, -0.188)
_SCALE: Final = (0.458, 0.448, 0.450)
_OF_LPIPS: Final = re.compile(r"(net|lins|lin\d|scaling_layer)\.")  # names in checkpoints that lpips' module wrote
_LINEAR: Final = re.compile(r"(?:lin|lins\.)(\d)\.model\.[01]\.weight")


class LPIPS(nn.Module):
    """How different pictures look to people, by a VGG16's features: lpips 0.1.4's `LPIPS(net="vgg")`, all frozen.

    The parameters are lpips' in its order, with its defaults but net="vgg". lpips=False: the features count alike.
    spatial: a map (N, 1, H, W) in place of (N, 1, 1, 1). model_path: other linear weights, a .pth file as lpips has it.
    use_dropout changes nothing: it is for training linear weights. verbose: print a line, as lpips does. net "alex" and
    "squeeze", version "0.0", pretrained=False, pnet_rand, pnet_tune and eval_mode=False are refused.

    backbone: the weights of the VGG16, whatever `Model` takes. precision: as for `PerceptualLoss`.
    check_backbone: the linear weights belong to torchvision's VGG16: of another one, one warning says so, and random
        weights are refused. False: nothing is looked at.

    `forward(in0, in1, retPerLayer=False, normalize=False)` takes pictures (N, 3, H, W) of any float type in [-1, 1], or
    in [0, 1] with normalize=True; ranges are neither checked nor corrected. Either may be one for all. float32 comes
    back, with retPerLayer=True as a pair with the list of the layers' values. The gradient goes to both.

    `state_dict()` is empty, and what lpips wrote into a checkpoint is passed over when it is loaded. `check`, `close`:
    as of `PerceptualLoss`. Raises ModelError, InputError, DeviceError, KernelError.
    """

    def __init__(
        self,
        pretrained: bool = True,
        net: str = "vgg",
        version: str = "0.1",
        lpips: bool = True,
        spatial: bool = False,
        pnet_rand: bool = False,
        pnet_tune: bool = False,
        use_dropout: bool = True,
        model_path: str | Path | None = None,
        eval_mode: bool = True,
        verbose: bool = True,
        *,
        backbone: ModelSource = BACKBONE,
        precision: str = TORCH,
        check_backbone: bool = True,
    ) -> None:
        super().__init__()
        del use_dropout
        _refuse(net, version, pnet_rand=pnet_rand, pnet_tune=pnet_tune, eval_mode=eval_mode)
        if lpips and not pretrained:
            raise InputError(
                "pretrained=False has random linear weights, to be trained; use lpips=False, or model_path"
            )
        model = Model.of(backbone)
        if check_backbone:
            _check_backbone(model)
        self.pnet_type, self.version, self.spatial, self.lpips = net, version, spatial, lpips
        weights: Mapping[str, Any] = dict.fromkeys(LAYERS, 1.0)
        if lpips:
            weights = dict(zip(LAYERS, linear_weights(model_path), strict=True))
        scalings = Scalings([(_SHIFT, _SCALE), _of_unit_range()])
        self._loss = PerceptualLoss(
            model, weights, distance="unit", precision=precision, reduction="none", scalings=scalings
        )
        if verbose:
            kind, maps = "LPIPS" if lpips else "baseline", "on" if spatial else "off"
            print(f"Setting up [{kind}] perceptual loss: trunk [{net}], v[{version}], spatial [{maps}]")

    def forward(self, in0: torch.Tensor, in1: torch.Tensor, retPerLayer: bool = False, normalize: bool = False) -> Any:
        """Return the distance of each pair of pictures. Raises InputError for what are no pictures."""
        scaling = 1 if normalize else 0
        if self.spatial or retPerLayer:
            return self._by_layers(in0, in1, retPerLayer, scaling)
        if isinstance(in0, torch.Tensor) and isinstance(in1, torch.Tensor) and in0.dim() and in0.shape[0] == 1:
            in0 = _for_each(in0, in1)
        return self._loss.forward(in0, in1, scaling=scaling).view(-1, 1, 1, 1)

    def _by_layers(self, in0: torch.Tensor, in1: torch.Tensor, wants_layers: bool, scaling: int) -> Any:
        """Return the distance, and of each layer if wanted; of all pictures or each pixel."""
        for given, what in ((in0, "in0"), (in1, "in1")):
            (require_recorded if is_traced() else require_floats)(given, what)
        maps = self._loss.maps(_for_each(in0, in1), in1, scaling)
        if self.spatial:
            resize = nn.functional.interpolate
            each = [resize(value, in0.shape[2:], mode="bilinear", align_corners=False) for value in maps]
        else:
            each = [value.mean((2, 3), keepdim=True) for value in maps]
        total = torch.stack(each).sum(0)
        return (total, each) if wants_layers else total

    def extra_repr(self) -> str:
        """What torch shows of it."""
        return f"net={self.pnet_type}, lpips={self.lpips}, spatial={self.spatial}"

    def check(self) -> None:
        """Wait for what runs on GPUs, and raise what was wrong with it since the last check."""
        self._loss.check()

    def close(self) -> None:
        """Free what lies on devices; the next call builds it anew. Safe to call twice."""
        self._loss.close()

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *given: Any) -> None:
        """Pass over what lpips' own module, whose weights are here anyway, wrote into a checkpoint."""
        super()._load_from_state_dict(state_dict, prefix, *given)
        unexpected = given[3]
        unexpected[:] = [
            name for name in unexpected if not (name.startswith(prefix) and _OF_LPIPS.match(name, len(prefix)))
        ]


def linear_weights(path: str | Path | None = None) -> list[np.ndarray[Any, np.dtype[np.float32]]]:
    """Return the weights of each layer's channels: version 0.1's of VGG16, or those of a .pth file.

    Raises InputError for a file that does not hold them.
    """
    if path is None:
        with np.load(DATA / "lpips_vgg.npz") as stored:
            return [stored[f"lin{i}"] for i in range(len(LAYERS))]
    where = printable(str(path))
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file raises whatever its pickle leads to
        reason = printable((str(error).splitlines() or [type(error).__name__])[0])[:200]
        raise InputError(
            f"model_path {where}: torch cannot read it as weights ({reason}); give lpips' own vgg.pth"
        ) from error
    items = state.items() if isinstance(state, Mapping) else ()
    found = {
        int(match[1]): np.asarray(value.detach().float()).ravel()
        for name, value in items
        if isinstance(value, torch.Tensor) and (match := _LINEAR.fullmatch(str(name)))
    }
    missing = [f"lin{i}" for i, count in enumerate(CHANNELS) if i not in found or len(found[i]) != count]
    if missing:
        raise InputError(
            f"model_path {where}: the linear weights {', '.join(missing)} of a VGG16 are missing; give lpips' vgg.pth, "
            "and a backbone as backbone="
        )
    return [found[i] for i in range(len(LAYERS))]


def _refuse(net: str, version: str, *, pnet_rand: bool, pnet_tune: bool, eval_mode: bool) -> None:
    """Raise InputError for what lpips has and this module does not."""
    if net not in ("vgg", "vgg16"):
        raise InputError(f"net is {shown(net)}; the networks here are VGGs: net='vgg', or the package lpips for others")
    if version != "0.1":
        raise InputError(f"version is {shown(version)}; accepted: '0.1', as 0.0 did not scale its input")
    if pnet_rand:
        raise InputError("pnet_rand=True is a random network; give its weights as backbone= and check_backbone=False")
    if pnet_tune:
        raise InputError("pnet_tune=True trains the network, whose weights are frozen here; use the package lpips")
    if not eval_mode:
        raise InputError("eval_mode=False is for training linear weights, frozen here; leave it out, or use lpips")


def _check_backbone(model: Model) -> None:
    """Raise InputError for random weights, and warn of those that may not be torchvision's."""
    from vgg16gpu.compiler.vgg.provenance import provenance  # noqa: PLC0415 - not read where nothing is checked

    found = provenance(model)
    if found.kind == "random":
        raise InputError(
            f"{model.name} has random weights ({found.reason}), and distances by them mean nothing; give torchvision's "
            f"VGG16, backbone='{BACKBONE}', or check_backbone=False"
        )
    if found.arch != BACKBONE.rpartition("/")[2]:
        warnings.warn(
            f"{model.name}: {found.reason}, and LPIPS' linear weights belong to torchvision's VGG16: another "
            "network gives other distances; check_backbone=False says nothing",
            stacklevel=3,
        )


def _of_unit_range() -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and deviation for pictures in [0, 1], which lpips brings to [-1, 1] first."""
    return tuple((1 + shift) / 2 for shift in _SHIFT), tuple(scale / 2 for scale in _SCALE)


def _for_each(in0: torch.Tensor, in1: torch.Tensor) -> torch.Tensor:
    """Return the first pictures as many times as there are second ones, where one stands for all."""
    if in0.dim() and in1.dim() and in0.shape[0] == 1 != in1.shape[0]:
        return in0.expand(in1.shape[0], *in0.shape[1:])
    return in0
