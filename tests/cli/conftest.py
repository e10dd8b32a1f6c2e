"""A model that every test of commands can have."""

import pytest

from vgg16gpu.zoo.generate import make_vgg


@pytest.fixture(scope="session")
def narrow(tmp_path_factory):
    """Write a narrow VGG11 of 3x32x32 with random weights and 40 classes."""
    path = tmp_path_factory.mktemp("models") / "narrow.onnx"
    make_vgg(path, variant="vgg11", size=32, width=8, hidden=32, classes=40)
    return path
