"""torch, and a narrow VGG16 whose file says 48 pixels; files that need another model have their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.torch_here import torch_module, torch_with_cuda
from vgg16gpu.zoo.generate import make_vgg


@pytest.fixture(scope="session")
def torch() -> Any:
    return torch_module()


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pytorch") / "vgg16.onnx"
    make_vgg(path, variant="vgg16", size=48, width=8, hidden=64, classes=10)
    return path


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def where(torch: Any, request: pytest.FixtureRequest) -> Any:
    """Each device of torch's in turn."""
    if request.param == "cuda":
        torch_with_cuda()
    return torch.device(request.param)
