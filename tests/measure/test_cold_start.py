"""measure/cold_start.py: it measures on any device, and its record says where a start goes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.measure import cold_start
from vgg16gpu.io.shipped import digits_model


@pytest.mark.slow(reason="of a measure that authors run")
def test_a_start_on_the_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "record.json"
    arguments = [str(digits_model()), "--device", "cpu", "--runs", "1", "--output", str(output)]
    assert cold_start.main(arguments) == 0
    record = json.loads(output.read_text())
    assert record["environment"]["device"]["kind"] == "cpu"
    found = record["cold_start"]
    assert found["to_result_s"] == found["results_s"][0] == pytest.approx(sum(found["parts_s"].values()))
    shown = capsys.readouterr().out
    assert all(name in shown for name in (*found["parts_s"], "to the answer"))
