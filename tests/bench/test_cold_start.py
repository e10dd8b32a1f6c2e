"""bench: a cold start, measured in processes of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from vgg16gpu.bench import session
from vgg16gpu.bench.measure import cold_start
from vgg16gpu.errors import Error
from vgg16gpu.zoo.generate import make_vgg


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "narrow.onnx"
    make_vgg(path, width=8, hidden=64, size=32, classes=10)
    return path


@pytest.mark.slow(reason="five processes; the first byte is counted in make test")
def test_cold_start_runs_infer_in_processes_of_its_own(model: Path) -> None:
    found = cold_start.measure_cold_start(model, "cpu", session.sample_inputs((3, 32, 32))[0])
    assert len(found.results_s) == len(found.exits_s) == cold_start.RUNS
    assert 0 < found.to_result_s <= found.to_exit_s
    assert all(result <= end for result, end in zip(found.results_s, found.exits_s, strict=True))
    named = {"Python and options", "imports", "model", "first input", "plan", "kernels", "weights", "graphs", "rest"}
    assert named <= set(found.parts_s)
    beside = {"rest", "first input"}  # an input may be there before anybody waits for it
    assert all(found.parts_s[name] > 0 for name in named - beside)
    assert abs(sum(found.parts_s.values()) - found.to_result_s) < 0.5 * found.to_result_s  # medians of each


@pytest.mark.slow(reason="processes that import; the first byte is counted in make test")
def test_cold_start_reports_what_infer_says(tmp_path: Path) -> None:
    with pytest.raises(Error, match=r"missing\.onnx"):
        cold_start.measure_cold_start(tmp_path / "missing.onnx", "cpu", np.zeros((3, 32, 32), np.float32))


def test_cold_start_counts_to_the_first_byte() -> None:
    script = "import sys, time; print('answer', flush=True); time.sleep(0.5)"
    start = cold_start.one_start([sys.executable, "-c", script], os.environ)
    assert start.exit_s - start.result_s > 0.4
    assert start.parts_s == {"rest": start.result_s}


def test_a_start_finds_byte_code_that_the_one_before_it_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    environ = cold_start.with_byte_code(str(tmp_path / "bytes"))
    (tmp_path / "module_of_a_test.py").write_text("")
    subprocess.run([sys.executable, "-c", "import module_of_a_test"], env=environ, cwd=tmp_path, check=True)
    assert [path.name.split(".")[0] for path in tmp_path.glob("bytes/**/module_of_a_test*.pyc")] == ["module_of_a_test"]
