"""`memory` of `Features` and `PerceptualLoss`: what their engines have on the device at most, with the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vgg16gpu.errors import DeviceError, InputError

LAYERS = {"relu1_2": 1.0, "relu2_2": 0.5}


def test_losses_within_a_bound(torch: Any, model: Path) -> None:
    from vgg16gpu.pytorch import PerceptualLoss

    x, y = torch.randn(2, 5, 3, 32, 40)
    found, used = [], []
    for memory in (None, 600_000):
        loss = PerceptualLoss(model, LAYERS, memory=memory)
        given = x.clone().requires_grad_()
        value = loss(given, y)
        value.backward()
        found.append((value.detach(), given.grad))
        used.append(loss._runs(x.device).engine.nbytes)
        loss.close()
    assert used[1] <= 600_000 < used[0]
    torch.testing.assert_close(found[1], found[0], rtol=1e-6, atol=0)
    with pytest.raises(DeviceError, match=r"memory=5000 allows 0\.0 MB in all; give more"):
        PerceptualLoss(model, LAYERS, memory=5000)(x, y)
    with pytest.raises(InputError, match="memory 0: give a number of bytes"):
        PerceptualLoss(model, LAYERS, memory=0)


def test_features_within_a_bound(torch: Any, model: Path) -> None:
    from vgg16gpu.pytorch import Features

    x = torch.randn(4, 3, 32, 40)
    found, used = [], []
    for memory in (None, 1_500_000):
        features = Features(model, tuple(LAYERS), batch=4, memory=memory)
        given = x.clone().requires_grad_()
        sum((value**2).mean() for value in features(given)).backward()
        found.append(given.grad)
        used.append(features._engine(x.device).sizes.nbytes)
        features.close()
    assert used[1] <= 1_500_000 < used[0]
    assert torch.equal(*found)
    with pytest.raises(InputError, match="memory True: give a number of bytes"):
        Features(model, "relu1_2", memory=True)
