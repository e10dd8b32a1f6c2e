"""Features and losses on two streams of torch at once: the bits of one stream, whichever way back comes first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pytorch.test_features import LAYERS, images
from tests.support.torch_here import torch_with_cuda
from vgg16gpu.zoo.generate import make_vgg

pytestmark = pytest.mark.gpu

SHAPES = ((2, 3, 64, 48), (3, 3, 33, 40))  # one a stream
TURNS = 20


@pytest.fixture(scope="module")
def torch() -> Any:
    return torch_with_cuda()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pytorch") / "vgg16.onnx"
    make_vgg(path, variant="vgg16", size=48, width=64, hidden=64, classes=10)
    return path


@pytest.fixture(params=["fp32", "fp16", "bf16"])
def precision(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["features", "loss"])
def compute(model: Path, precision: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A number for each stream's images, differentiable in them."""
    from vgg16gpu.pytorch import Features, PerceptualLoss

    if request.param == "features":
        features = Features(model, LAYERS, precision=precision, batch=3)
        yield lambda x: sum((value.float() ** 2).mean() for value in features(x))
        features.close()
        return
    loss = PerceptualLoss(model, dict.fromkeys(LAYERS, 1.0), precision=precision, batch=3)
    yield lambda x: loss(x, x.detach().flip(-1))
    loss.check()
    loss.close()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=str)
def test_two_streams(torch: Any, compute: Any, order: tuple[int, int]) -> None:
    given = [images(torch, *shape).cuda().requires_grad_() for shape in SHAPES]
    expected = []
    for x in given:
        value = compute(x)
        expected.append((value.detach().clone(), torch.autograd.grad(value, x)[0]))
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in SHAPES]
    for _ in range(TURNS):
        values, leaves = [], []
        for x, stream in zip(given, streams, strict=True):
            with torch.cuda.stream(stream):
                leaves.append(x.detach().requires_grad_())
                values.append(compute(leaves[-1]))
        gradients = {}
        for i in order:
            with torch.cuda.stream(streams[i]):
                gradients[i] = torch.autograd.grad(values[i], leaves[i])[0]
        torch.cuda.synchronize()
        for i, (value, gradient) in enumerate(expected):
            assert torch.equal(values[i].detach(), value)
            assert torch.equal(gradients[i], gradient)
