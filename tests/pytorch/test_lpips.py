"""LPIPS by `PerceptualLoss` (distance="unit") beside torchmetrics' and its authors', with the 1x1 weights of each.

Their networks have random weights here, those of ours: what LPIPS computes of features is compared, not how well it
judges.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pytorch.test_features import distance
from tests.support.torch_here import torch_with_cuda
from vgg16gpu.compiler.graph.ops import Conv
from vgg16gpu.compiler.model import Model
from vgg16gpu.zoo.generate import make_vgg

NAMES = ("relu1_2", "relu2_2", "relu3_3", "relu4_3", "relu5_3")
SHAPES = ((2, 3, 32, 32), (1, 3, 45, 37))
EXACT = (
    1e-5  # of values; of gradients FLIPS, as a ReLU or a pool may choose otherwise where two values are nearly equal
)
FLIPS = 2e-2
OF_PRECISION = {"fp32": (EXACT, FLIPS), "bf16": (3e-2, 0.6)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lpips") / "vgg16.onnx"
    make_vgg(path, variant="vgg16", size=32, hidden=8, classes=10)
    return path


def torchmetrics_lpips() -> Any:
    """Return torchmetrics' module; its network has random weights, as the trained ones would be downloaded."""
    name = "torchmetrics.functional.image.lpips"
    return pytest.importorskip(name, reason="torchmetrics is not installed")._LPIPS(net="vgg", pnet_rand=True)


def authors_lpips() -> Any:
    """Return the module of the package lpips, likewise."""
    package = pytest.importorskip("lpips", reason="lpips is not installed")
    return package.LPIPS(net="vgg", pnet_rand=True, verbose=False)


@pytest.fixture(scope="module", params=[torchmetrics_lpips, authors_lpips], ids=["torchmetrics", "lpips"])
def lpips(torch: Any, model: Path, request: pytest.FixtureRequest) -> Any:
    """Each of them in float64, around the convolutions of the model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("torchvision", reason="torchvision is not installed")
        found = request.param()
    theirs = [module for module in found.net.modules() if isinstance(module, torch.nn.Conv2d)]
    ours = [op for op in Model(model).graph().ops if isinstance(op, Conv)]
    for module, op in zip(theirs, ours, strict=True):
        module.weight.copy_(torch.from_numpy(op.weight.copy()))
        module.bias.copy_(torch.from_numpy(op.bias.copy()))
    return found.requires_grad_(False).double()


def weights_of(lpips: Any) -> dict[str, Any]:
    return {
        name: lin.model[-1].weight.detach().float().numpy().ravel() for name, lin in zip(NAMES, lpips.lins, strict=True)
    }


def pictures(torch: Any, shape: tuple[int, ...]) -> Iterator[Any]:
    """Between -1 and 1, smooth, as LPIPS is given them: and others that are like them."""
    random = np.random.default_rng(shape[0])
    rows, columns = np.meshgrid(*(np.linspace(0, 3, side) for side in shape[2:]), indexing="ij")
    waves = np.sin(rows + columns * random.uniform(1, 3, (*shape[:2], 1, 1)))
    for noise in (0.0, 0.3):
        yield torch.from_numpy(np.clip(waves + noise * random.standard_normal(shape), -1, 1))


def check(torch: Any, lpips: Any, loss: Any, device: str, shape: tuple[int, ...], bounds: tuple[float, float]) -> None:
    """Values of single images, and the gradient to the first picture, through the scaling of the input."""
    x, y = pictures(torch, shape)
    exact = x.clone().requires_grad_()
    expected = lpips(exact, y).reshape(-1)
    given = x.float().to(device).requires_grad_()
    shift, scale = (getattr(lpips.scaling_layer, name).float().to(device) for name in ("shift", "scale"))
    found = loss((given - shift) / scale, (y.float().to(device) - shift) / scale)
    assert found.shape == (shape[0],)
    np.testing.assert_allclose(found.detach().cpu().numpy(), expected.detach().numpy(), rtol=bounds[0])
    expected.sum().backward()
    found.sum().backward()
    assert distance(given.grad.cpu(), exact.grad) < bounds[1]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_and_gradients_are_theirs(torch: Any, model: Path, lpips: Any, shape: tuple[int, ...]) -> None:
    from vgg16gpu.pytorch import PerceptualLoss

    loss = PerceptualLoss(model, weights_of(lpips), distance="unit", reduction="none", batch=2)
    check(torch, lpips, loss, "cpu", shape, OF_PRECISION["fp32"])
    loss.close()


def test_other_weights_would_be_seen(torch: Any, model: Path, lpips: Any) -> None:
    """What the bound is worth: the weights of one layer in another order are far beyond it."""
    from vgg16gpu.pytorch import PerceptualLoss

    weights = weights_of(lpips)
    weights["relu3_3"] = weights["relu3_3"][::-1].copy()
    loss = PerceptualLoss(model, weights, distance="unit", reduction="none", batch=2)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check(torch, lpips, loss, "cpu", SHAPES[0], OF_PRECISION["fp32"])
    loss.close()


@pytest.mark.gpu
@pytest.mark.parametrize("precision", OF_PRECISION)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_on_a_gpu(torch: Any, model: Path, lpips: Any, shape: tuple[int, ...], precision: str) -> None:
    from vgg16gpu.pytorch import PerceptualLoss

    torch_with_cuda()
    loss = PerceptualLoss(model, weights_of(lpips), distance="unit", reduction="none", precision=precision, batch=2)
    check(torch, lpips, loss, "cuda", shape, OF_PRECISION[precision])
    loss.check()
    loss.close()
