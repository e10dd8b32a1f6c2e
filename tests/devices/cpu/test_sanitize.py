"""The sanitizers report what is planted in fixtures/faults.cu, with file and line, and nothing in sound kernels."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cpu_kernels import FIXTURES
from vgg16gpu.devices.cpu import sanitize
from vgg16gpu.devices.cpu.sanitize import Sanitizer
from vgg16gpu.errors import DeviceError

HERE = Path(__file__).resolve().parents[2]
FROM_CHECKOUT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])}


def missing(sanitizer: Sanitizer) -> str | None:
    """Why this machine has no such sanitizer, or None."""
    try:
        sanitize.environment(sanitizer)
    except DeviceError as error:
        return str(error)
    return None


@pytest.fixture(autouse=True)
def _not_inside_another(request: pytest.FixtureRequest) -> None:
    if "VGG16GPU_SANITIZE" in os.environ:
        pytest.skip("already under a sanitizer")
    sanitizer = request.node.callspec.params.get("sanitizer") if hasattr(request.node, "callspec") else None
    if sanitizer and (reason := missing(sanitizer)):
        pytest.skip(reason)


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=HERE.parent, env=FROM_CHECKOUT, timeout=120, check=False
    )


def run_planted(sanitizer: Sanitizer, kernel: str) -> subprocess.CompletedProcess[str]:
    script = str(HERE / "support" / "planted_fault.py")
    return run(f"from vgg16gpu.devices.cpu import sanitize; sanitize.execute({sanitizer!r}, [{script!r}, {kernel!r}])")


def line_of(kernel: str) -> int:
    """Where faults.cu says `planted:` in that kernel."""
    inside = False
    for number, text in enumerate((FIXTURES / "faults.cu").read_text().splitlines(), 1):
        inside = inside or f" {kernel}(" in text or text.startswith(f"{kernel}(")
        if inside and "planted:" in text:
            return number
    raise LookupError(kernel)


more = pytest.mark.slow(reason="takes two seconds; a fault of each sanitizer stands for it")


@pytest.mark.first_case(reason="`make sanitize`'s own faults run nightly")
@pytest.mark.parametrize(
    ("sanitizer", "kernel", "message"),
    [
        ("address", "global_overrun", "heap-buffer-overflow"),
        pytest.param("address", "shared_overrun", "index 64 out of bounds", marks=more),
        pytest.param("address", "dynamic_overrun", "heap-buffer-overflow", marks=more),
        pytest.param("address", "misaligned", "misaligned address", marks=more),
        pytest.param("address", "integer_overflow", "signed integer overflow", marks=more),
        ("thread", "missing_barrier", "data race"),
    ],
)
def test_planted_fault_is_reported_at_its_line(sanitizer: Sanitizer, kernel: str, message: str) -> None:
    done = run_planted(sanitizer, kernel)
    assert done.returncode != 0
    assert "nobody noticed" not in done.stdout
    assert message in done.stderr
    assert f"faults.cu:{line_of(kernel)}" in done.stderr


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
@pytest.mark.slow(reason="`make sanitize` runs all kernels under the sanitizers")
def test_sound_kernels_are_clean(sanitizer: Sanitizer) -> None:
    command = [sys.executable, "-m", "vgg16gpu.devices.sanitize", sanitizer, "--"]
    command += ["-p", "no:cacheprovider", "-m", "sanitize", "tests/devices/cpu/test_language.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=HERE.parent, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


def test_a_library_may_hold_many_locks() -> None:
    """As Arrow's allocator does at a fork, if pyarrow is imported."""
    locks = (
        "import ctypes; locks = [ctypes.create_string_buffer(64) for _ in range(65)]\n"
        "print(sum(map(ctypes.CDLL(None).pthread_mutex_lock, locks)))"
    )
    done = run(f"from vgg16gpu.devices.cpu import sanitize; sanitize.execute('thread', ['-c', {locks!r}])")
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


def test_usage() -> None:
    for arguments in ((), ("memory",)):
        done = subprocess.run(
            [sys.executable, "-m", "vgg16gpu.devices.sanitize", *arguments],
            capture_output=True,
            text=True,
            cwd=HERE.parent,
            timeout=60,
            check=False,
        )
        assert done.returncode == 2
        assert "usage" in done.stderr


def test_a_compiler_without_the_library_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "bare-g++"
    compiler.write_text('#!/bin/sh\ncase "$1" in --version) echo "g++ 99";; *) echo libasan.so;; esac\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert shutil.which(str(compiler))
    with pytest.raises(DeviceError, match=r"has no libasan\.so; install the sanitizers"):
        sanitize.environment("address")
