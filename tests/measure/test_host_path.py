"""measure/host_path.py: it measures on any device, and a figure beyond its bound fails it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.measure import host_path
from vgg16gpu.io.shipped import digits_model

GOOD = {
    "precision": "fp32",
    "device_float32_s": 300e-6,
    "device_uint8_s": 300e-6,
    "host_float32_s": 340e-6,
    "host_uint8_s": 340e-6,
    "host_own_float32_s": 340e-6,
    "host_own_uint8_s": 340e-6,
    "launch_s": 5e-6,
    "resident_s": 1e-3,
    "stream_s": 1.02e-3,
    "start_s": 0.9,
    "first_start_s": 12.0,
    "anonymous_nbytes": 80_000_000,
}


def test_a_record_within_all_bounds() -> None:
    assert host_path._exceeded(GOOD) == []


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("host_float32_s", 351e-6, "host to host, float32: 51 us added"),
        ("host_own_uint8_s", 380e-6, "host to host, own_uint8: 80 us added"),
        ("device_uint8_s", 250e-6, "host to host, uint8: 90 us added"),
        ("launch_s", 16e-6, "launch 16.0 us"),
        ("stream_s", 1.06e-3, "stream at 0.943 of the device's rate"),
        ("start_s", 1.2, "start 1.20 s"),
        ("first_start_s", 26.0, "first start 26.0 s"),
        ("anonymous_nbytes", 310_000_000, "310 MB anonymous"),
    ],
)
def test_a_figure_beyond_its_bound_is_named(name: str, value: float, complaint: str) -> None:
    assert complaint in host_path._exceeded({**GOOD, name: value})


@pytest.mark.slow(reason="of a measure that authors run")
def test_it_measures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in {"RUNS": 12, "ROUNDS": 1, "BATCHES": 2, "STARTS": 2}.items():
        monkeypatch.setattr(host_path, name, value)
    output = tmp_path / "host.json"
    options = ["--device", "cpu", "--precision", "fp32", "--batch", "2", "--output", str(output)]
    code = host_path.main([str(digits_model()), *options])
    content: dict[str, Any] = json.loads(output.read_text())
    (record,) = content["records"]
    assert set(GOOD) < set(record)
    assert all(record[name] > 0 for name in GOOD if name != "precision")
    assert (
        record["first_start_s"]
        > record["start_s"]
        == sorted(record["starts_s"])[0] / 2 + sorted(record["starts_s"])[1] / 2
    )
    assert 10e6 < record["anonymous_nbytes"] < 1e9
    assert code == bool(record["exceeded"])
    assert content["environment"]["device"]["kind"] == "cpu"
    assert "anonymous, MB" in capsys.readouterr().out
