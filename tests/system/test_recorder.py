"""support/record.py: a run that is stopped leaves what has failed, what that said, and what was under way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import time

def test_well(): pass

def test_wrong():
    wrong = 7
    assert wrong == 8, "as planted"

def test_slow():
    time.sleep({seconds})
"""
PLUGIN = """
from pathlib import Path
from tests.support.record import Recorder

def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(Path("record.json"), ""))
"""


def start(folder: Path, seconds: float, *arguments: str) -> subprocess.Popen[bytes]:
    (folder / "test_planted.py").write_text(TESTS.format(seconds=seconds))
    (folder / "conftest.py").write_text(PLUGIN)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=folder, env=environ, stdout=subprocess.PIPE, start_new_session=True)


def failed(record: dict[str, Any]) -> list[str]:
    (lines,) = record["failed"].values()
    assert list(record["failed"]) == ["test_planted.py::test_wrong"]
    return list(lines)


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "several"])
def test_a_run_that_is_killed_leaves_what_has_failed(tmp_path, workers):
    if workers:
        pytest.importorskip("xdist")
    process, path = start(tmp_path, 300, *workers), tmp_path / "record.json"
    try:
        over = time.monotonic() + 100
        while not path.is_file():
            assert process.poll() is None
            assert time.monotonic() < over
            time.sleep(0.05)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    record = json.loads(path.read_text())
    assert record["exit_status"] is None
    assert record["tests"]["failed"] == 1
    assert any("as planted" in line for line in failed(record))
    assert "test_planted.py::test_wrong" in record["under_way"]


def test_a_run_that_ends_says_it_and_where(tmp_path):
    process = start(tmp_path, 0)
    process.communicate(timeout=100)
    record = json.loads((tmp_path / "record.json").read_text())
    assert (record["exit_status"], record["tests"]) == (1, {"passed": 2, "failed": 1})
    assert any("as planted" in line for line in failed(record))
    assert record["environment"]["device"]
    assert "under_way" not in record


def test_a_run_without_failures_has_none(tmp_path):
    process = start(tmp_path, 0, "-k", "not wrong")
    process.communicate(timeout=100)
    record = json.loads((tmp_path / "record.json").read_text())
    assert (record["exit_status"], record["tests"]) == (0, {"passed": 2})
    assert "failed" not in record
