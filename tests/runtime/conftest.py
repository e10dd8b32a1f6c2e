"""Models for tests of engines; a file whose tests want another `model` defines its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.narrow_vgg import SCORES, SIZES
from vgg16gpu.zoo.generate import make_vgg


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """VGGs with an eighth of the channels, small maps and a small classifier."""
    folder = tmp_path_factory.mktemp("models")
    paths = {}
    for name, size in SIZES.items():
        variant = name.partition("-")[0]
        paths[name] = folder / f"{name}.onnx"
        options: dict[str, Any] = {"variant": variant.removesuffix("_bn"), "batch_norm": variant.endswith("_bn")}
        make_vgg(paths[name], size=size, width=8, hidden=64, classes=SCORES, **options)
    return paths


@pytest.fixture
def model(models: dict[str, Path]) -> Path:
    return models["vgg16-48"]
