"""Pictures that are too small for the layers: one InputError, the same sentence on every way of a loss."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.pytorch.test_features import images
from vgg16gpu import LossEngine
from vgg16gpu.errors import InputError

LAYERS = {"relu1_2": 1.0, "relu5_3": 1.0}
FITS = 16  # pixels; four pools come before relu5_3
SAYS = (
    "image size 15x40 (height x width) does not fit: Conv '/features/features.23/MaxPool_output_0': a 2x2 window does "
    "not fit a 1x5 map; use a larger input image; height from 16 on, width from 16 on would fit, or give outputs=[...] "
    "that end before it"
)


def losses(model: Path) -> dict[str, Any]:
    from vgg16gpu.pytorch import LPIPS, Features, PerceptualLoss

    def lpips(**options: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return LPIPS(lpips=False, backbone=model, check_backbone=False, verbose=False, **options)

    return {
        "Features": Features(model, list(LAYERS)),
        "fast": PerceptualLoss(model, LAYERS),
        "fro": PerceptualLoss(model, LAYERS, criterion="fro"),
        "per_layer": PerceptualLoss(model, LAYERS, per_layer=True),
        "scaled": PerceptualLoss(model, LAYERS, mean=[0.5] * 3),
        "styled": PerceptualLoss(model, {"relu1_2": 1.0}, {"relu5_3": 1.0}),
        "style alone": PerceptualLoss(model, None, {"relu5_3": 1.0}),
        "LPIPS": lpips(),
        "maps": lpips(spatial=True),
    }


WAYS: dict[str, Callable[[dict[str, Any], Any], Any]] = {  # by the losses, and too small pictures x
    "Features": lambda on, x: on["Features"](x),
    "fast": lambda on, x: on["fast"](x, x),
    "fast, with a gradient": lambda on, x: on["fast"](x.clone().requires_grad_(), x),
    "to kept targets": lambda on, x: on["fast"](x, on["fast"].targets(large(x))),
    "targets": lambda on, x: on["fast"].targets(x),
    "fro": lambda on, x: on["fro"](x, x),
    "per_layer": lambda on, x: on["per_layer"](x, x),
    "mask": lambda on, x: on["fast"](x, x, mask=x[:, :1].abs()),
    "scaled": lambda on, x: on["scaled"](x, x),
    "style": lambda on, x: on["styled"](large(x), large(x), x),
    "style by layers": lambda on, x: on["styled"](large(x), large(x).requires_grad_(), x),
    "style alone": lambda on, x: on["style alone"](large(x), x),
    "LPIPS": lambda on, x: on["LPIPS"](x, x),
    "retPerLayer": lambda on, x: on["LPIPS"](x, x, retPerLayer=True),
    "spatial": lambda on, x: on["maps"](x, x),
}


def sentence(caught: Any) -> str:
    """Return what an error says; a pool behind a layer that is compared is a step of its own."""
    return str(caught.value).replace("Pool '", "Conv '")


def large(x: Any) -> Any:
    """Return the pictures with the last row repeated until their height fits."""
    return x[:, :, [min(row, x.shape[2] - 1) for row in range(max(FITS, x.shape[2]))]]


@pytest.fixture(scope="module")
def on(torch: Any, model: Path) -> dict[str, Any]:
    del torch
    return losses(model)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_says_the_same(torch: Any, on: dict[str, Any], way: str) -> None:
    x = images(torch, 1, 3, FITS - 1, 40)
    with pytest.raises(InputError) as caught:
        WAYS[way](on, x)
    assert sentence(caught) == SAYS
    WAYS[way](on, images(torch, 1, 3, FITS, 40))


@pytest.mark.parametrize("way", ["Features", "fast", "mask", "style", "LPIPS"])
def test_so_do_compiled_ones(torch: Any, on: dict[str, Any], way: str) -> None:
    compiled = torch.compile(lambda x: WAYS[way](on, x), backend="eager", dynamic=True)
    compiled(images(torch, 1, 3, FITS + 1, 40))
    with pytest.raises(InputError) as caught:
        compiled(images(torch, 1, 3, FITS - 1, 40))
    assert sentence(caught) == SAYS
    torch._dynamo.reset()


def test_fake_tensors_say_it_too(torch: Any, on: dict[str, Any]) -> None:
    """Operators say it that are called past the modules, and recorded."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), pytest.raises(InputError) as caught:
        torch.ops.vgg16gpu.features(torch.empty(1, 3, FITS - 1, 40), on["Features"]._handle, "torch")
    assert sentence(caught) == SAYS


def test_engines_without_torch(torch: Any, model: Path) -> None:
    with LossEngine(model, LAYERS, device="cpu") as engine:
        x = images(torch, 1, 3, FITS - 1, 40).numpy()
        for call in (engine.targets, lambda x: engine.compare(x, x), lambda x: engine.target_shapes(x.shape)):
            with pytest.raises(InputError) as caught:
                call(x)
            assert sentence(caught) == SAYS
