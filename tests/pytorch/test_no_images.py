"""`Features` and `PerceptualLoss` of tensors without images: what torch's own operators and losses give for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

SHAPE = (0, 3, 40, 33)
LAYERS = {"relu1_2": 1.0, "relu2_2": 0.5}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_features(torch: Any, model: Path, dtype: str) -> None:
    from vgg16gpu.pytorch import Features

    x = torch.zeros(SHAPE, dtype=getattr(torch, dtype), requires_grad=True)
    features = Features(model, tuple(LAYERS), batch=2)
    first, second = features(x)
    assert (first.shape, second.shape) == ((0, 8, 40, 33), (0, 16, 20, 16))
    (first.sum() + second.mean()).backward()  # a slope of NaN, to nobody
    assert (x.grad.shape, x.grad.dtype) == (x.shape, x.dtype)
    features.close()


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("distance", ["squared", "absolute", "unit"])
def test_losses(torch: Any, model: Path, reduction: Any, distance: Any) -> None:
    from vgg16gpu.pytorch import PerceptualLoss

    loss = PerceptualLoss(model, LAYERS, {"relu2_2": 3.0}, distance=distance, reduction=reduction)
    for needs in (True, False):
        x = torch.zeros(SHAPE, requires_grad=needs)
        for target in (torch.zeros(SHAPE), loss.targets(torch.zeros(SHAPE)), torch.zeros(1, *SHAPE[1:])):
            value = loss(x, target)
            expected = torch.nn.functional.mse_loss(torch.zeros(0), torch.zeros(0), reduction=reduction)
            torch.testing.assert_close(value.detach(), expected, equal_nan=True)
            if needs:
                (slope,) = torch.autograd.grad(value.sum(), x)
                assert slope.shape == x.shape
    loss.close()


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_losses_as_on_a_card(torch: Any, model: Path, reduction: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.pytorch.test_loss_runs import on_a_card

    with on_a_card(model, monkeypatch, reduction=reduction) as (loss, engine):
        x = torch.zeros(SHAPE, requires_grad=True)
        for _ in range(3):  # launch by launch, then what was enqueued once more
            value = loss(x, torch.zeros(SHAPE))
            expected = torch.nn.functional.mse_loss(torch.zeros(0), torch.zeros(0), reduction=reduction)
            torch.testing.assert_close(value.detach(), expected, equal_nan=True)
            assert torch.autograd.grad(value.sum(), x)[0].shape == x.shape
        engine.check()
