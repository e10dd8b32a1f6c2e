"""sanitize/gpu.py with a compute-sanitizer that is made here."""

from pathlib import Path

import pytest

from tests.sanitize import gpu as sanitize_gpu
from vgg16gpu.devices.cuda.probe import Driver

DRIVER = Driver((13, 0), Path("/lib/libcuda.so.1"), ())


@pytest.fixture
def toolkit(tmp_path, monkeypatch):
    """A toolkit folder that comes first, on a machine with a driver."""
    monkeypatch.setattr(sanitize_gpu, "probe_driver", lambda: DRIVER)
    monkeypatch.setattr(sanitize_gpu, "nvcc_candidates", lambda: [("CUDA_HOME", tmp_path / "bin" / "nvcc")])
    monkeypatch.setattr(sanitize_gpu.shutil, "which", lambda _: None)
    return tmp_path


def add_sanitizer(toolkit, place, failing="none"):
    """A program that writes down its arguments, and fails for one tool."""
    path = toolkit / place
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'#!/bin/sh\necho "$@" >> {toolkit}/calls\n[ "$2" != {failing} ] || exit 86\n')
    path.chmod(0o755)
    return path


def test_without_a_driver_nothing_is_run(monkeypatch, capsys):
    monkeypatch.setattr(sanitize_gpu, "probe_driver", lambda: None)
    assert sanitize_gpu.main([]) == 0
    assert "left out" in capsys.readouterr().out


@pytest.mark.usefixtures("toolkit")
def test_without_the_program_it_fails(capsys):
    assert sanitize_gpu.main([]) == 2
    assert "compute-sanitizer is missing" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["bin/compute-sanitizer", "compute-sanitizer/compute-sanitizer"])
def test_both_tools_run_the_marked_tests(toolkit, place):
    add_sanitizer(toolkit, place)
    assert sanitize_gpu.main(["-k", "conv"]) == 0
    calls = (toolkit / "calls").read_text().splitlines()
    assert [call.split()[1] for call in calls] == ["memcheck", "racecheck"]
    assert all("--require-gpu" in call and call.endswith("-k conv") for call in calls)


def test_a_record_of_each_tool(toolkit):
    add_sanitizer(toolkit, "bin/compute-sanitizer")
    assert sanitize_gpu.main(["--record", "of/TOOLS/sanitize-TOOL-h200.json"]) == 0
    calls = (toolkit / "calls").read_text().splitlines()
    names = [f"of/TOOLS/sanitize-{tool}-h200.json" for tool in sanitize_gpu.TOOLS]
    assert [call.split(" --record ")[1] for call in calls] == names


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_a_finding_of_either_tool_fails(toolkit, capsys, tool):
    add_sanitizer(toolkit, "bin/compute-sanitizer", failing=tool)
    assert sanitize_gpu.main([]) == 1
    assert f"{tool}: FAILED (exit code 86)" in capsys.readouterr().out


def test_kernels_of_the_lab_are_among_them():
    files = {Path(file).name for file in sanitize_gpu.kernel_tests()}
    assert {"test_pool.py", "test_products.py", "test_winograd.py", *sanitize_gpu.OF_SEVERAL_KERNELS} <= files
