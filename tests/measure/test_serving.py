"""measure/serving.py on the cpu device: a server, clients, and what it is compared with, all for real."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.measure import serving
from tests.server.running import require_extra
from tests.support.picture_files import jpeg


@pytest.mark.slow(reason="half a minute; tests/bench and tests/server have the parts")
def test_a_server_beside_its_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_extra()
    monkeypatch.setattr(serving, "REPEATS", 3)
    pictures, output = tmp_path / "pictures", tmp_path / "server.json"
    pictures.mkdir()
    for number in range(24):  # three batches of infer
        (pictures / f"{number}.jpg").write_bytes(jpeg(40, 40 + number, 1, seed=number))
    words = ["digits", "--pictures", str(pictures), "--device", "cpu", "--precision", "fp32", "--seconds", "0.3"]
    assert serving.main([*words, "--clients", "1,2", "--output", str(output)]) == 0
    content = json.loads(output.read_text())
    for form in ("jpeg", "uint8"):
        assert content["ratios"][f"vgg16gpu, {form}: answers/s"] > 0
        assert content["ratios"][f"vgg16gpu, {form}: ms of a lone request"] > 0
    loads = content["serving"]["loads"]
    assert not any(load["errors"] for load in loads)
    assert content["serving"]["stats"]["model_stats"][0]["inference_count"] >= sum(load["answers"] for load in loads)
    assert content["ratios"]["vgg16gpu, jpeg: by the pipeline"] > 0
    assert content["environment"]["device"]
