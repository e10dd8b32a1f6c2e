"""A narrow VGG whose file says 48 pixels, cut off before anything needs that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vgg16gpu.compiler.model import Model
from vgg16gpu.zoo.generate import make_vgg

CUT = "relu3_1"


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The whole model, whose size a Gemm fixes."""
    path = Path(tmp_path_factory.mktemp("any size")) / "vgg16-48.onnx"
    options: dict[str, Any] = {"variant": "vgg16", "size": 48, "width": 8, "hidden": 64, "classes": 10}
    make_vgg(path, **options)
    return Model(path)
