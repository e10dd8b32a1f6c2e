"""Options that are no numbers, or numbers that float32 does not hold: one line of the family where a module is made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vgg16gpu import Engine, LossEngine
from vgg16gpu.errors import Error, InputError

LAYERS = {"relu1_2": 1.0}
pytestmark = pytest.mark.filterwarnings("ignore:.*random weights")


def loss(model: Path, layers: Any = None, style: Any = None, **options: Any) -> Any:
    from vgg16gpu.pytorch import PerceptualLoss

    return PerceptualLoss(model, LAYERS if layers is None else layers, style, **options)


def features(model: Path, layers: Any = "relu1_2", **options: Any) -> Any:
    from vgg16gpu.pytorch import Features

    return Features(model, layers, **options)


def lpips(model: Path, **options: Any) -> Any:
    from vgg16gpu.pytorch import LPIPS

    return LPIPS(**{"lpips": False, "backbone": model, "check_backbone": False, "verbose": False, **options})


MADE: dict[str, tuple[Callable[[Path, Any], Any], str]] = {  # by the option, with a boolean in its place
    "weight": (lambda model, yes: loss(model, {"relu1_2": yes}), "the weight of 'relu1_2' is .*; give a finite number"),
    "weights": (
        lambda model, yes: loss(model, {"relu1_2": [yes] + [1.0] * 7}, distance="unit"),
        r"'relu1_2' is \[.*one for each channel",
    ),
    "style": (lambda model, yes: loss(model, style={"relu1_2": yes}), "the weight of 'relu1_2' is .*; give a finite"),
    "mean": (lambda model, yes: loss(model, mean=[0.5, yes, 0.5]), "mean is .*; give 3 finite numbers"),
    "std": (lambda model, yes: loss(model, std=(yes, yes, yes)), "std is .*; give 3 finite numbers"),
    "loss' batch": (lambda model, yes: loss(model, batch=yes), "batch .*: give a number from 1"),
    "loss' memory": (lambda model, yes: loss(model, memory=yes), "memory .*: give a number of bytes"),
    "loss' layers": (loss, "layers is .*; give a weight by the name"),
    "reduction": (lambda model, yes: loss(model, reduction=yes), "reduction .* is not known"),
    "distance": (lambda model, yes: loss(model, distance=yes), "distance .* is not known"),
    "criterion": (lambda model, yes: loss(model, criterion=yes), "criterion .* is not known"),
    "loss' precision": (lambda model, yes: loss(model, precision=yes), "precision .* is not supported"),
    "layers": (features, "give names of values, nodes or layers"),
    "a layer": (lambda model, yes: features(model, [yes]), "give names of values, nodes or layers"),
    "batch": (lambda model, yes: features(model, batch=yes), "batch .*: give one size, or several"),
    "batches": (lambda model, yes: features(model, batch=[1, yes]), "batch .*: give one size, or several"),
    "memory": (lambda model, yes: features(model, memory=yes), "memory .*: give a number of bytes"),
    "precision": (lambda model, yes: features(model, precision=yes), "precision .* is not supported"),
    "net": (lambda model, yes: lpips(model, net=yes), "net is"),
    "version": (lambda model, yes: lpips(model, version=yes), "version is"),
    "model_path": (lambda model, yes: lpips(model, lpips=True, model_path=yes), "torch cannot read it as weights"),
    "LPIPS' precision": (lambda model, yes: lpips(model, precision=yes), "precision .* is not supported"),
    "LossEngine": (lambda model, yes: LossEngine(model, {"relu1_2": yes}, device="cpu"), "the weight of 'relu1_2' is"),
    "Engine": (lambda model, yes: Engine(model, device="cpu", mean=[yes] * 3, std=[1.0] * 3), "mean .* one finite"),
}


@pytest.mark.parametrize("option", MADE)
def test_booleans_are_no_numbers(torch: Any, model: Path, option: str) -> None:
    del torch
    make, words = MADE[option]
    for yes in (True, np.True_):
        with pytest.raises(Error, match=words) as caught:
            make(model, yes)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"std": [0.2, 1e-39, 0.2]}, r"std is \[0.2, 1e-39, 0.2\], and float32 does not hold it and 1 / std; give num"),
        ({"std": [1e-50] * 3}, "std is .* 1 / std; give numbers from 1.2e-38"),  # 0 in float32
        ({"std": [5e-324] * 3}, "std is .* 1 / std; give numbers from 1.2e-38"),  # 1 / std is inf in float64, too
        ({"std": [1e38] * 3}, "std is .* 1 / std; give numbers from .* to 8.5e37"),  # 1 / std is subnormal
        ({"std": [1e60] * 3}, "std is .* 1 / std; give numbers"),
        ({"mean": [1e39] * 3}, r"mean is \[1e\+39, .*\], and float32 does not hold it and mean / std"),
        ({"mean": [1e20] * 3, "std": [1e-20] * 3}, r"mean is \[1e\+20, .* with std \[1e-20, .* mean / std"),
    ],
)
def test_what_float32_does_not_hold(torch: Any, model: Path, options: dict[str, Any], words: str) -> None:
    del torch
    with pytest.raises(InputError, match=words):
        loss(model, **options)


def test_what_float32_just_holds(torch: Any, model: Path) -> None:
    x = torch.rand(1, 3, 32, 32)
    for unit in (1.2e-38, 8.5e37):
        scaled = loss(model, mean=[unit] * 3, std=[unit] * 3)
        with loss_engine(model) as engine:
            expected = engine.compare((x - 1).numpy(), -x.numpy())[0]
        found = scaled((x.double() * unit).float(), ((1 - x.double()) * unit).float())
        assert np.allclose(found.item(), expected, rtol=1e-4)


def loss_engine(model: Path) -> LossEngine:
    return LossEngine(model, LAYERS, device="cpu")


def test_one_normalisation(torch: Any, model: Path) -> None:
    from vgg16gpu.pytorch.scaling import Scalings

    del torch
    with pytest.raises(InputError, match="mean or std is given beside scalings; give one of them"):
        loss(model, mean=[0.5] * 3, scalings=Scalings([([0.5] * 3, [0.5] * 3)]))
