"""measure/serving_attack.py on the cpu device: an honest client is answered under attack, and what breaks is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbench.measure import serving_attack
from tests.serving.running import require_extra


@pytest.mark.alone(reason="measures an honest client's waiting")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("kinds", "seconds"),
    [
        pytest.param("elements,pixels", 3, marks=pytest.mark.slow(reason="serving/test_load.py; 30 s are recorded")),
        pytest.param(",".join(serving_attack.KINDS), 10, marks=pytest.mark.slow(reason="more kinds of the same")),
    ],
)
def test_a8_a10_a11_an_honest_client_is_answered(tmp_path: Path, kinds: str, seconds: int) -> None:
    """Ask that all answers come; how soon is measured on a quiet machine."""
    require_extra()
    output = tmp_path / "attack.json"
    serving_attack.main(["--kinds", kinds, "--seconds", str(seconds), "--output", str(output)])
    content = json.loads(output.read_text())
    assert set(content["attacks"]) == set(kinds.split(","))
    assert all(sum(ended.values()) > 0 for ended in content["attacks"].values())
    assert content["under_attack"]["statuses"].keys() == {"200"}
    assert content["under_attack"]["requests"] > seconds
    assert content["gone"] == []
    assert content["rss_peak_mb"] - content["rss_before_mb"] < content["bound_mb"]


def test_what_does_not_hold_is_told() -> None:
    good = {"p99_ms": 100.0, "statuses": {"200": 9}}
    found = {"under_attack": good, "rss_peak_mb": 900.0, "rss_before_mb": 200.0, "bound_mb": 800.0, "gone": []}
    assert serving_attack.broken(found) == []
    bad = {"p99_ms": 600.0, "statuses": {"200": 9, "503": 1}}
    found = {"under_attack": bad, "rss_peak_mb": 1100.0, "rss_before_mb": 200.0, "bound_mb": 800.0, "gone": [7]}
    assert serving_attack.broken(found) == [
        "1 % of the honest answers took 600 ms or more, beyond 500",
        "honest requests ended as {'200': 9, '503': 1}",
        "memory grew by 900 MB, the line at the start says 800",
        "1 processes have died",
    ]
