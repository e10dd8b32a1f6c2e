"""Each fault of S4's kernels is caught: by the check against float64, or by the sanitizers of the CPU and the GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.faults.s4 import FAULTS
from tests.lab.harness import check
from tests.sanitize import gpu as sanitize_gpu
from vgg16gpu.devices.base import Device
from vgg16gpu.devices.cpu import sanitize
from vgg16gpu.devices.cpu.device import CpuDevice
from vgg16gpu.devices.cpu.sanitize import Sanitizer
from vgg16gpu.errors import DeviceError

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = str(Path(__file__).with_name("s4.py"))
FORGOTTEN = FAULTS["channel forgotten"]
NEAR = 40  # lines between a mistake and the access that it leads to


@pytest.fixture(autouse=True)
def _not_under_a_sanitizer() -> None:
    if "VGG16GPU_SANITIZE" in os.environ:
        pytest.skip("wrong kernels end a process under a sanitizer")


# ---- By the check


def test_a_forgotten_channel_is_caught(device: Device, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"halo-shared .*: error [0-9.]+$"):
        check(device, FORGOTTEN.planted(tmp_path), FORGOTTEN.problem)


@pytest.mark.first_case(reason="another barrier of the same kernel, threads in another order")
@pytest.mark.parametrize("name", ["barrier missing", *(name for name in FAULTS if name.startswith("published"))])
@pytest.mark.parametrize("order", ["reverse", "forward"])
def test_a_missing_barrier_is_caught(order: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, where threads run one after the other. On a GPU they are often quick enough to be right by chance.

    The published pseudo-code (3.3) has neither of the two barriers of ours.
    """
    monkeypatch.setenv("VGG16GPU_ORDER", order)
    device, fault = CpuDevice(), FAULTS[name]
    with pytest.raises(AssertionError, match=r"halo-\w+ .*: error [0-9.]+$"):
        check(device, fault.planted(tmp_path), fault.problem, dict(fault.parameters))
    check(device, fault.removed(tmp_path), fault.problem, dict(fault.parameters))
    device.close()


# ---- By sanitizers


def run(*command: str, cache: Path) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "TMPDIR": str(cache), "VGG16GPU_CACHE": str(cache)}
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=280, check=False)


def run_checked(sanitizer: Sanitizer, *arguments: str, cache: Path) -> subprocess.CompletedProcess[str]:
    try:
        sanitize.environment(sanitizer)
    except DeviceError as error:
        pytest.skip(str(error))
    code = f"from vgg16gpu.devices.cpu import sanitize; sanitize.execute({sanitizer!r}, {[SCRIPT, *arguments]!r})"
    return run(sys.executable, "-c", code, cache=cache)


@pytest.mark.slow(reason="the check above catches the barrier; tests/sanitize and tests/lab/broken have the sanitizers")
@pytest.mark.parametrize(
    ("sanitizer", "name", "message"),
    [
        ("thread", "barrier missing", "ThreadSanitizer: data race"),
        ("address", "any width by fours", "misaligned address"),
    ],
)
def test_a_sanitizer_reports_the_line(sanitizer: Sanitizer, name: str, message: str, tmp_path: Path) -> None:
    done = run_checked(sanitizer, name, "cpu", cache=tmp_path)
    assert done.returncode != 0
    assert "nobody noticed" not in done.stdout
    assert message in done.stderr, done.stderr
    lines = [int(number) for number in re.findall(r"halo_shared\.cu:(\d+)", done.stderr)]
    assert min(abs(line - FAULTS[name].line) for line in lines) < NEAR, lines
    done = run_checked(sanitizer, name, "cpu", "--without", cache=tmp_path)
    assert (done.returncode, done.stdout) == (0, "nobody noticed\n"), done.stderr


@pytest.mark.gpu
@pytest.mark.slow(reason="the sanitizers find it on the cpu device")
@pytest.mark.parametrize(
    ("tool", "name", "message"),
    [("racecheck", "barrier missing", "hazard"), ("memcheck", "any width by fours", "misaligned")],
)
def test_a_sanitizer_reports_it_on_the_gpu(tool: str, name: str, message: str, tmp_path: Path) -> None:
    sanitizer = sanitize_gpu.find_sanitizer()
    assert sanitizer, "compute-sanitizer is not installed: it comes with the CUDA toolkit"
    command = [*sanitize_gpu.python_under(sanitizer, tool), SCRIPT, name, "cuda"]
    done = run(*command, cache=tmp_path)
    output = done.stdout + done.stderr
    assert done.returncode != 0, output
    assert message in output, output
    assert "halo_shared_f32" in output
    done = run(*command, "--without", cache=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.gpu
def test_a_gpu_stops_at_a_misaligned_address(tmp_path: Path) -> None:
    """In a process of its own: its context is lost."""
    done = run(sys.executable, SCRIPT, "any width by fours", "cuda", cache=tmp_path)
    assert done.returncode != 0
    assert "misaligned address" in done.stderr
