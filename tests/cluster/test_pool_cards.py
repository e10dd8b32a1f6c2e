"""EnginePool on several cards: what a broken context costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ray_here import ROOT
from vgg16gpu.devices.cuda.probe import probe_driver


@pytest.mark.gpu
def test_a_card_that_meets_an_illegal_address_costs_itself_alone(model: Path, tmp_path: Path) -> None:
    driver = probe_driver()
    if driver is None or len(driver.gpus) < 2:
        pytest.skip("there is one GPU; this needs two")
    command = [sys.executable, "-m", "tests.support.stray_write", str(model), str(tmp_path / "fault")]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["60 [False, True]", "[]"]  # nothing of CUDA is there that makes a context
    assert "is taken out, and 1 of 2 devices go on with its work" in ended.stderr
