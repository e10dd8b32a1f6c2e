"""measure/gradient_errors.py on the cpu device: distances are those of rounding, and what is larger is told."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.torch_here import torch_module
from vgg16gpu.zoo.generate import make_vgg

torch_module()
gradient_errors = pytest.importorskip("tests.measure.gradient_errors")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("measured") / "narrow.onnx"
    make_vgg(path, variant="vgg16", size=32, width=8, hidden=32, classes=20)
    return path


def test_gradients_are_compared(model: Path, tmp_path: Path) -> None:
    output = tmp_path / "record.json"
    gradient_errors.main([str(model), "--images", "5", "--device", "cpu", "--output", str(output)])
    distances = json.loads(output.read_text())["distances"]
    for precision, most in (("fp32", 1e-3), ("fp16", 0.2), ("bf16", 0.7)):
        for errors in distances[precision].values():
            assert len(errors) == 5
            assert 0 < np.median(errors) < most


def test_larger_ones_are_told(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = gradient_errors._ours
    monkeypatch.setattr(gradient_errors, "_ours", lambda *words: lambda x, best: 1.5 * ours(*words)(x, best))
    assert gradient_errors.main([str(model), "--images", "1", "--device", "cpu"]) == 1
