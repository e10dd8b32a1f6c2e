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


def test_a_cold_start_is_the_median_of_starts_of_infer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    def start(command: list[str], environ: dict[str, str]) -> cold_start.Start:
        assert environ["PYTHONPYCACHEPREFIX"]
        np.testing.assert_array_equal(np.load(command[6]), x.transpose(1, 2, 0))
        started.append(command)
        said = f"vgg16gpu: start: imports {100.0 * len(started)} ms"
        return cold_start.Start(float(len(started)), 10.0 * len(started), said)

    x = np.arange(3 * 4 * 5, dtype=np.float32).reshape(3, 4, 5)
    monkeypatch.setattr(cold_start, "one_start", start)
    found = cold_start.measure_cold_start(tmp_path / "m.onnx", "cpu", x, channels_last=True)
    assert (found.results_s, found.exits_s) == ((2, 3, 4), (20, 30, 40))  # the first one fills caches
    assert (found.to_result_s, found.to_exit_s) == (3, 30)
    assert found.parts_s == pytest.approx({"imports": 0.3, "rest": 2.7})
    assert {tuple(each[7:]) for each in started} == {
        ("--model", f"{tmp_path}/m.onnx", "--device", "cpu", "--precision", "fp32", "--size", "4x5")
    }


def test_a_start_that_fails_is_its_last_line() -> None:
    with pytest.raises(Error, match="infer ended with 1: last words"):
        cold_start.one_start([sys.executable, "-S", "-c", "raise SystemExit('first\\nlast words')"], os.environ)


def test_cold_start_counts_to_the_first_byte() -> None:
    script = "import sys, time; print('answer', flush=True); time.sleep(0.2)"
    start = cold_start.one_start([sys.executable, "-S", "-c", script], os.environ)
    assert start.exit_s - start.result_s > 0.15
    assert start.parts_s == {"rest": start.result_s}


def test_a_start_finds_byte_code_that_the_one_before_it_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    environ = cold_start.with_byte_code(str(tmp_path / "bytes"))
    (tmp_path / "module_of_a_test.py").write_text("")
    subprocess.run([sys.executable, "-c", "import module_of_a_test"], env=environ, cwd=tmp_path, check=True)
    assert [path.name.split(".")[0] for path in tmp_path.glob("bytes/**/module_of_a_test*.pyc")] == ["module_of_a_test"]
