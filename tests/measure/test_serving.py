"""measure/serving.py on the cpu device: a server, clients, and what it is compared with, all for real."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.measure import serving
from tests.serving.running import require_extra
from tests.support.picture_files import jpeg


@pytest.mark.slow(reason="half a minute; tests/bench and tests/serving have the parts")
def test_a_server_beside_its_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_extra()
    monkeypatch.setattr(serving, "REPEATS", 3)
    pictures, output = tmp_path / "pictures", tmp_path / "server.json"
    pictures.mkdir()
    for number in range(240):  # so many that their rows do not come at once
        (pictures / f"{number:03}.jpg").write_bytes(jpeg(40, 40 + number % 24, 1, seed=number))
    words = ["digits", "--pictures", str(pictures), "--device", "cpu", "--precision", "fp32", "--seconds", "0.3"]
    assert serving.main([*words, "--clients", "1,2", "--front-ends", "2", "--output", str(output)]) == 0
    content = json.loads(output.read_text())
    assert content["front_ends"] == {"cpu": 2}
    for form in ("jpeg", "uint8"):
        assert content["ratios"][f"vgg16gpu, {form}: answers/s"] > 0
        assert content["ratios"][f"vgg16gpu, {form}: ms of a lone request"] > 0
    loads = content["serving"]["loads"]
    assert not any(load["errors"] for load in loads)
    assert content["serving"]["stats"]["model_stats"][0]["inference_count"] >= sum(load["answers"] for load in loads)
    assert content["ratios"]["vgg16gpu, jpeg: by the pipeline"] > 0
    assert content["environment"]["device"]


def test_what_the_figures_come_to() -> None:
    def load(kind: str, amount: float, rate: float, p50: float, p99: float) -> dict[str, Any]:
        told = {"p50": p50, "p99": p99}
        names = {"server": "vgg16gpu", "form": "jpeg", "load": kind, "amount": amount}
        return {**names, "answers_per_s": rate, "latency_s": told}

    loads = [load("closed", 1, 300.0, 0.004, 0.006), load("closed", 64, 1000.0, 0.05, 0.09)]
    loads += [load("open", amount, amount, 0.003, 0.001 * amount) for amount in (250, 500, 800)]
    content = {
        "alone": {"decode_s": 0.001, "run_s": 0.002},
        "pipeline": {"runs": [{"rows_per_s": rate, "decode": by} for by, rate in (("cpu", 1250.0), ("gpu", 500.0))]},
        "serving": {"loads": loads},
    }
    assert serving._ratios(content) == pytest.approx(
        {
            "pipeline, decoded by the CPU: pictures/s": 1250.0,
            "pipeline, decoded by the GPU: pictures/s": 500.0,
            "vgg16gpu, jpeg: answers/s": 1000.0,
            "vgg16gpu, jpeg: ms of a lone request": 4.0,
            "vgg16gpu, jpeg: ms beyond decoding and running": 1.0,
            "vgg16gpu, jpeg: ms, p99 at half load": 500.0,
            "vgg16gpu, jpeg: by the pipeline": 0.8,
        }
    )


def test_promises_are_judged() -> None:
    assert serving._judged("vgg16gpu, uint8: answers/s", 4999.0) == " (at least 5000: not met)"
    assert serving._judged("vgg16gpu, jpeg: ms, p99 at half load", 9.5) == " (at most 10: met)"
    assert serving._judged("fastapi, jpeg: ms, p99 at half load", 9.5) == ""
