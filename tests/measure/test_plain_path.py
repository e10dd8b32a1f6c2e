"""tests/measure/plain_path.py: the record of the plain path beside the engine, made here by digits on a CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.measure import plain_path
from vgg16gpu.io.shipped import digits_model


@pytest.mark.slow(reason="of a measure that authors run")
def test_plain_layers_stand_beside_those_of_the_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "plain.json"
    assert plain_path.main([str(digits_model()), "--device", "cpu", "--pictures", "2", "--output", str(record)]) == 0
    content = json.loads(record.read_text())
    assert content["passed"]
    assert len(content["plain"]["layers"]) == 11
    assert content["plain"]["ms"] == pytest.approx(sum(layer["ms"] for layer in content["plain"]["layers"]), rel=0.5)
    assert list(content["engine"]) == ["fp32", "fp16"]
    computed = {name for layer in content["engine"]["fp32"]["layers"] for name in layer["names"]}
    assert computed >= {layer["name"] for layer in content["plain"]["layers"]}
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 1 + 11 + 2
    assert rows[3].startswith("maxpool2x2")
    assert len(rows[3].split()) == 3  # the engine pools in the convolution before it: no time of its own


def test_wrong_scores_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_path, "SCORE_TOLERANCE", 1e-12)
    assert plain_path.main([str(digits_model()), "--device", "cpu", "--pictures", "1"]) == 1
