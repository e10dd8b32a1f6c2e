"""A model that every test of bench can have."""

from __future__ import annotations

from pathlib import Path

import pytest

from vgg16gpu.zoo.generate import make_vgg


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a narrow VGG11 of 3x32x32 with random weights."""
    path = tmp_path_factory.mktemp("bench") / "narrow.onnx"
    make_vgg(path, variant="vgg11", width=8, hidden=32, size=32, classes=10)
    return path
