"""measure/optimise.py on the cpu device: both ends are found, drawn and judged."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.torch_here import torch_module
from vgg16gpu.zoo.generate import make_vgg

torch_module()
optimise = pytest.importorskip("tests.measure.optimise")


@pytest.mark.parametrize("within", [1.0, 0.0], ids=["near", "never near enough"])
def test_both_ends_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, within: float) -> None:
    model, picture = tmp_path / "narrow.onnx", tmp_path / "picture.png"
    make_vgg(model, variant="vgg16", size=32, width=4, hidden=32, classes=20)
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (32, 32, 3), np.uint8)).save(picture)
    monkeypatch.setattr(optimise, "WITHIN", {"fp32": 1e-9 if not within else 0.01, "bf16": within})
    output, drawn = tmp_path / "record.json", tmp_path / "drawn.png"
    words = [str(model), str(picture), "--device", "cpu", "--steps", "5", "--output", str(output)]
    code = optimise.main([*words, "--drawn", str(drawn), *["--decay"] * bool(within)])
    content = json.loads(output.read_text())
    assert content["decays"] is bool(within)
    assert code == int(not within)
    ways = [["vgg16gpu", "torch", "torch, channels_last", "torch, float64"], ["vgg16gpu", "torch"]]
    assert [(end["precision"], end["way"]) for end in content["ends"]] == [
        (precision, way) for precision, names in zip(("fp32", "bf16"), ways, strict=True) for way in names
    ]
    assert 0 <= content["spread"] < 1e-3  # of so few steps
    assert all(end["loss"] < content["first_loss"] for end in content["ends"])
    assert content["ratios"]["fp32"] == pytest.approx(1, abs=1e-3)
    with Image.open(drawn) as image:
        assert image.size == (7 * 32, 32)
