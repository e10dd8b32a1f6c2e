"""stages.py: how long the parts of a start take, for who listens; what `infer` imports before it starts the GPU."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from vgg16gpu.devices.stages import BESIDE, read_run, read_stages, stage, tell_run, tell_stage


def test_stages_are_told_and_read_back(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "vgg16gpu"):
        with stage("plan"):
            pass
        tell_stage(f"context{BESIDE}", 0.25)
        tell_stage("plan", 1.5)
    found = read_stages("\n".join(f"vgg16gpu: {record.getMessage()}" for record in caplog.records))
    assert list(found) == ["plan", "context (beside)"]
    assert found["context (beside)"] == 0.25
    assert 1.5 <= found["plan"] < 1.6


def test_a_run_tells_its_report_and_it_is_read_back(caplog: pytest.LogCaptureFixture) -> None:
    report = {"batch": 8, "device": 'a "card"', "rates": {"inputs_per_s": 0.5, "decode_images_per_s": None}}
    with caplog.at_level(logging.INFO, "vgg16gpu"):
        tell_run(report)
    assert not caplog.records
    with caplog.at_level(logging.DEBUG, "vgg16gpu"):
        tell_run({"batch": 1})
        tell_run(report)
    said = "\n".join(f"vgg16gpu: {record.getMessage()}" for record in caplog.records)
    assert all(len(line) < 100 for line in said.splitlines())
    assert read_run(f"{said}\nvgg16gpu: start: report 1.0 ms") == report
    assert read_run("vgg16gpu: start: report 1.0 ms") is None


def test_nothing_is_told_where_nobody_listens(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "vgg16gpu"), stage("plan"):
        pass
    assert not caplog.records


def test_an_error_passes_through_a_stage(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "vgg16gpu"), pytest.raises(KeyError), stage("plan"):
        raise KeyError("plan")
    assert not caplog.records


def test_other_lines_are_no_stages() -> None:
    assert read_stages("vgg16gpu: compiling a.cu for sm_90a\nvgg16gpu: start: it took long\nstart: now") == {}


def test_infer_reads_its_options_before_it_imports_what_computes() -> None:
    heavy = {"numpy", "onnx", "google", "PIL", "rich", "ctypes", "pycuda", "vgg16gpu.runtime.engine"}
    code = f"import sys, vgg16gpu.cli.infer.command; print(sorted({heavy} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


@pytest.mark.parametrize("arguments", [("--version",), ("infer", "--help"), ("infer", "none.png", "--device", "cpu")])
def test_nothing_of_cuda_is_touched_unless_a_gpu_is_meant(arguments: tuple[str, ...]) -> None:
    code = (
        "import atexit, sys; from vgg16gpu.cli import main;"
        "atexit.register(lambda: print(sorted({'pycuda', 'cuda', 'vgg16gpu.devices.cuda.ahead'} & set(sys.modules))));"
        f"sys.argv[1:] = {list(arguments)}; main()"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stdout.endswith("[]\n")
