"""`examples/basicsr_perceptual.py` beside what BasicSR computes, written with torch's operators in float64."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pytorch.test_features import distance
from vgg16gpu.compiler.graph.ops import Conv
from vgg16gpu.compiler.model import Model
from vgg16gpu.io.labels import IMAGENET_MEAN, IMAGENET_STD
from vgg16gpu.zoo.generate import make_vgg

ROOT = Path(__file__).resolve().parents[2]
WEIGHTS = {"conv1_2": 0.1, "conv3_4": 1.0, "conv5_4": 2.0}
BLOCKS = (2, 2, 4, 4, 4)


@pytest.fixture(scope="module")
def vgg19(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("basicsr") / "vgg19.onnx"
    make_vgg(path, variant="vgg19", size=32, width=8, hidden=8, classes=10)
    return path


def features(torch: Any, model: Path, x: Any) -> dict[str, Any]:
    """Return what VGGFeatureExtractor does: convolutions before their ReLU."""
    functional, found = torch.nn.functional, {}
    convolutions = iter([op for op in Model(model).graph().ops if isinstance(op, Conv)])
    for block, count in enumerate(BLOCKS, 1):
        for place in range(1, count + 1):
            op = next(convolutions)
            weight, bias = (torch.from_numpy(array.astype(np.float64)) for array in (op.weight, op.bias))
            found[f"conv{block}_{place}"] = functional.conv2d(x, weight, bias, padding=1)
            x = torch.relu(found[f"conv{block}_{place}"])
        x = functional.max_pool2d(x, 2)
    return {name: found[name] for name in WEIGHTS}


def gram(value: Any) -> Any:
    flat = value.flatten(2)
    return flat.bmm(flat.transpose(1, 2)) / value[0].numel()


def basicsr(torch: Any, model: Path, x: Any, gt: Any, criterion: str, *, range_norm: bool) -> tuple[Any, Any]:
    mean, std = (torch.tensor(each, dtype=torch.float64).view(1, 3, 1, 1) for each in (IMAGENET_MEAN, IMAGENET_STD))
    compare = {
        "l1": torch.nn.functional.l1_loss,
        "l2": torch.nn.functional.mse_loss,
        "fro": lambda a, b: torch.norm(a - b, p="fro"),
    }[criterion]
    ours, theirs = (
        features(torch, model, ((each + 1) / 2 if range_norm else each).sub(mean) / std) for each in (x, gt.detach())
    )
    percep = sum(weight * compare(ours[name], theirs[name]) for name, weight in WEIGHTS.items())
    style = sum(weight * compare(gram(ours[name]), gram(theirs[name])) for name, weight in WEIGHTS.items())
    return 0.5 * percep, 3.0 * style


@pytest.mark.parametrize("criterion", ["l1", "l2", "fro"])
@pytest.mark.parametrize("range_norm", [False, True])
def test_it_is_basicsrs(torch: Any, vgg19: Path, criterion: str, range_norm: bool) -> None:
    made = runpy.run_path(str(ROOT / "examples" / "basicsr_perceptual.py"))["BasicSRLoss"]
    loss = made(WEIGHTS, vgg19, True, range_norm, 0.5, 3.0, criterion)
    random = np.random.default_rng(0)
    x, gt = (torch.from_numpy(random.uniform(0, 1, (2, 3, 32, 32)).astype(np.float32)) for _ in range(2))
    given, exact = x.clone().requires_grad_(), x.double().requires_grad_()
    found = loss(given, gt)
    right = basicsr(torch, vgg19, exact, gt.double(), criterion, range_norm=range_norm)
    for ours, theirs in zip(found, right, strict=True):
        assert ours.shape == theirs.shape
        assert float(ours.detach()) == pytest.approx(float(theirs.detach()), rel=2e-6)
    sum(found).backward()
    sum(right).backward()
    assert distance(given.grad, exact.grad) < 2e-4  # a ReLU, or a sign, may be another where a value is nearly 0


def test_weights_of_zero_give_none(torch: Any, vgg19: Path) -> None:
    made = runpy.run_path(str(ROOT / "examples" / "basicsr_perceptual.py"))["BasicSRLoss"]
    x = torch.zeros(1, 3, 32, 32)
    assert made(WEIGHTS, vgg19)(x, x)[1] is None
    assert made(WEIGHTS, vgg19, perceptual_weight=0, style_weight=1)(x, x)[0] is None
