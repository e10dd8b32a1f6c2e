"""measure/perceptual.py on the cpu device: every way computes the same, what fails or is far off is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.torch_here import torch_module
from vgg16gpu.zoo.generate import make_vgg

torch_module()
perceptual = pytest.importorskip("tests.measure.perceptual")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("measured") / "narrow.onnx"
    make_vgg(path, variant="vgg16", size=32, width=4, hidden=32, classes=20)
    return path


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perceptual, "SECONDS", 0.0)
    monkeypatch.setattr(perceptual, "ROUNDS", 2)


def measured(model: Path, output: Path, *options: str) -> tuple[int, Any]:
    words = [str(model), "--device", "cpu", "--peers", "torch", "--output", str(output), *options]
    return perceptual.main(words), json.loads(output.read_text())


def test_every_way_computes_the_same(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = ("--precision", "fp32,bf16", "--case", "1x16,2x16", "--sustained", "0.01")
    code, content = measured(model, tmp_path / "record.json", *case)
    assert code == 0
    cells = content["cells"]
    assert [(cell["precision"], cell["task"], cell["count"]) for cell in cells] == [
        (precision, task, count) for precision in ("fp32", "bf16") for task in ("features", "loss") for count in (1, 2)
    ]
    for cell in cells:
        assert [way["way"].split(",")[0] for way in cell["ways"]] == ["vgg16gpu"] * 2 + ["torch"] * 2
        assert all(way["median_ms"] >= way["best_ms"] > 0 for way in cell["ways"])
        assert all(("sustained_ms" in way) == (cell["count"] == 2) for way in cell["ways"])
        assert all(way["distance"] < (1e-5 if cell["precision"] == "fp32" else 0.05) for way in cell["ways"])
    assert "loss, bf16, median ms a call" in capsys.readouterr().out


def test_what_fails_and_what_is_far_off_is_told(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(_: object) -> Iterator[tuple[str, Any]]:
        yield "nothing", lambda: [np.zeros((1, 4, 16, 16), np.float32)]
        raise MemoryError("no room")

    monkeypatch.setattr(perceptual.perceptual_ways, "ours", wrong)
    code, content = measured(model, tmp_path / "record.json", "--precision", "fp32", "--case", "1x16")
    assert code == 1
    (nothing, failed, *others) = content["cells"][0]["ways"]
    assert nothing["is_far"]
    assert (failed["way"], failed["error"]) == ("vgg16gpu, after nothing", "MemoryError: no room")
    assert len(others) == 2
    assert "no room" in capsys.readouterr().out
