"""measure/serving_faults.py on the cpu device: what is promised holds, and what does not is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.measure import serving_faults
from tests.serving.running import require_extra
from tests.support.picture_files import jpeg


@pytest.mark.slow(reason="half a minute; tests/serving kills, overloads and waits by itself")
def test_processes_die_and_too_much_is_asked(tmp_path: Path) -> None:
    require_extra()
    pictures, output = tmp_path / "pictures", tmp_path / "faults.json"
    pictures.mkdir()
    (pictures / "one.jpg").write_bytes(jpeg(40, 48, 1))
    words = ["digits", "--pictures", str(pictures), "--device", "cpu", "--precision", "fp32", "--seconds", "9"]
    serving_faults.main([*words, "--soak", "5", "--output", str(output)])
    content = json.loads(output.read_text())
    assert content["kills"]["killed"] == ["device", "front-end"]
    assert content["kills"]["after"]["answers"] > 0
    assert content["overload"]["load"]["errors"]["429"] > 0
    assert content["soak"]["load"]["answers"] == content["soak"]["load"]["requests"]
    assert min(content["soak"]["device_nbytes"]) > 0


def test_what_does_not_hold_is_told() -> None:
    usage = {"rss": 50.0, "handles": 9, "threads": 3}
    grown = [{**usage, "rss": rss} for rss in (20.0, 50.0, 50.0, 90.0)]
    fine = {"errors": {}}
    content = {
        "kills": {"load": {"errors": {"503": 4}}, "after": fine, "killed": ["device", "front-end"]},
        "overload": {
            "load": {"errors": {"429": 9, "500": 1}, "answer_s": {"p99": 1.3}},
            "held": {"7": [{**usage, "rss": 20.0}, usage, usage, usage]},
            "gone": 0,
        },
        "soak": {"load": {"errors": {}}, "held": {"7": grown}, "gone": 1, "device_nbytes": [0.5e9, 1e9, 1e9, 1.1e9]},
        "capacity": 1000.0,
    }
    assert serving_faults._broken(content) == [
        "overload: {'500': 1}",
        "soak: 1 processes are not there any more",
        "soak: process 7 holds more: {'rss': 40.0, 'handles': 0, 'threads': 0}",
        "soak: 100 MB more of the device's memory are taken",
        "overload: 1 % of the accepted took 1.30 s or more, beyond 1.12",
    ]
