"""Every mutant is caught by its kernel's own test on the cpu device; the sanitizers report planted faults."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.mutants.kernels import mutated_line, write_mutant
from tests.mutants.mutant import Mutant
from tests.mutants.table import GPU_OVERRUN, GPU_RACE, OVERRUN, RACE
from tests.mutants.tables import MUTANTS
from tests.sanitize import gpu as sanitize_gpu
from vgg16gpu.devices import kernel_source
from vgg16gpu.devices.cpu import sanitize
from vgg16gpu.devices.cpu.device import CpuDevice
from vgg16gpu.devices.cpu.sanitize import Sanitizer
from vgg16gpu.devices.kernel_source import own_sources, source_path
from vgg16gpu.errors import DeviceError

ROOT = Path(__file__).resolve().parents[2]
# Nothing that a CPU could compute wrongly: one measures the device, one is for nodes of CUDA graphs.
WITHOUT_MUTANTS = {"ceiling.cu", "decide.cu"}
NEAR = 40  # lines between a mistake and the access that it leads to
IN_MAKE_TEST = "words behind the last group left out"  # of a kernel that is compiled soonest
CHECKS = {mutant.file: mutant for mutant in reversed(MUTANTS)}  # the first of each file


@pytest.fixture(autouse=True)
def _not_under_a_sanitizer() -> None:
    if "VGG16GPU_SANITIZE" in os.environ:
        pytest.skip("wrong kernels end a process under a sanitizer")


@pytest.fixture(scope="session")
def cache_of_mutants(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is right beside a mutant is compiled once."""
    return tmp_path_factory.mktemp("mutants")


@pytest.fixture
def device_with(
    tmp_path: Path, cache_of_mutants: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Mutant | None, str], CpuDevice]:
    """A cpu device that runs a mutant; nothing of it stays in the user's kernel cache."""

    def open_device(mutant: Mutant | None, order: str) -> CpuDevice:
        folder = tmp_path / "kernels"
        write_mutant(folder, mutant)
        monkeypatch.setattr(kernel_source, "kernel_dir", lambda: folder)
        if mutant is not None:
            monkeypatch.setenv("VGG16GPU_CACHE", str(cache_of_mutants))
        monkeypatch.setenv("VGG16GPU_ORDER", order)
        return CpuDevice()

    return open_device


def _parameter(mutant: Mutant) -> Any:
    slow = pytest.mark.slow(reason="each takes a second or more; one shows that a mutant dies")
    marks = () if mutant.name == IN_MAKE_TEST else slow
    return pytest.param(mutant, id=f"{mutant.file}: {mutant.name}", marks=marks)


@pytest.mark.parametrize("mutant", [*map(_parameter, MUTANTS)])
def test_mutant_is_caught(device_with: Callable[[Mutant | None, str], CpuDevice], mutant: Mutant) -> None:
    """By a failed assertion: a mutant that does not compile, or ends a launch, is none."""
    device = device_with(mutant, mutant.order)
    with pytest.raises(AssertionError):
        mutant.check(device)
    device.close()


@pytest.mark.parametrize("order", ["forward", "reverse", "7"])
@pytest.mark.slow(reason="takes a minute; the checks are tests of make test, there in one order of threads")
def test_the_same_checks_pass_without_a_mutation(
    device_with: Callable[[Mutant | None, str], CpuDevice], order: str
) -> None:
    """Every kernel gives what it must in each order of threads."""
    device = device_with(None, order)
    for mutant in MUTANTS:
        mutant.check(device)
    device.close()


@pytest.mark.parametrize("file", sorted(file for file in CHECKS if file.endswith(".cu")))
@pytest.mark.slow(reason="compiles every kernel anew, optimised; the same checks pass in make test with -O1")
def test_one_check_of_each_kernel_passes_as_users_compile_it(
    device_with: Callable[[Mutant | None, str], CpuDevice], file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VGG16GPU_OPTIMIZE", raising=False)
    device = device_with(None, "forward")
    CHECKS[file].check(device)
    device.close()


def needs_hopper(source: Path) -> bool:
    """Whether a file includes, perhaps through others, what only a GPU of compute capability 9.0 has."""
    included = [source_path(name) for name in re.findall(r'#include "(\w+\.cuh)"', source.read_text())]
    return source.name == "hopper.cuh" or any(needs_hopper(path) for path in included)


def test_every_portable_kernel_has_mutants() -> None:
    kernels = {path for path in own_sources() if path.name not in WITHOUT_MUTANTS}
    portable = {path.name for path in kernels if not needs_hopper(path)}
    assert portable <= {mutant.file for mutant in MUTANTS}
    assert {path.name for path in kernels} - portable  # what only a GPU can run
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 20


# ---- Planted faults in the real kernels, under the sanitizers


def run_with(mutant: Mutant, command: Sequence[str], marker: str, scratch: Path) -> subprocess.CompletedProcess[str]:
    """pytest, started by `command`, on the tests of the mutant's kernel that sanitizers run."""
    (test,) = map(str, (ROOT / "tests").rglob(f"test_{Path(mutant.file).stem}.py"))
    arguments = ["-x", "-p", "no:cacheprovider", "-p", "tests.mutants.plugin", "-m", marker, test]
    arguments += ["-p", "no:benchmark", "-p", "no:xdist"]  # the one warns, an error here, where it thinks of the other
    # A process that a sanitizer ends does not tidy up.
    environment = {
        **os.environ,
        "TMPDIR": str(scratch),
        "VGG16GPU_CACHE": str(scratch / "cache"),
        "VGG16GPU_MUTANT": mutant.name,
    }
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, cwd=ROOT, env=environment, timeout=280, check=False
    )


@pytest.mark.parametrize(
    ("sanitizer", "mutant", "message"),
    [("address", OVERRUN, "AddressSanitizer: use-after-poison"), ("thread", RACE, "ThreadSanitizer: data race")],
    ids=["address", "thread"],
)
@pytest.mark.slow(reason="test_planted_fault_is_reported_at_its_line stands for it")
def test_a_fault_is_reported_with_its_line(sanitizer: Sanitizer, mutant: Mutant, message: str, tmp_path: Path) -> None:
    try:
        sanitize.environment(sanitizer)
    except DeviceError as error:
        pytest.skip(str(error))
    command = [sys.executable, "-m", "vgg16gpu.devices.sanitize", sanitizer]
    done = run_with(mutant, command, "sanitize and not gpu", tmp_path)
    assert done.returncode != 0
    assert message in done.stderr, done.stdout + done.stderr
    lines = [int(number) for number in re.findall(rf"{re.escape(mutant.file)}:(\d+)", done.stderr)]
    assert lines
    assert min(abs(line - mutated_line(mutant)) for line in lines) < NEAR, lines


@pytest.mark.gpu
@pytest.mark.slow(reason="other faults are found by sanitizers on the cpu device")
@pytest.mark.parametrize(
    ("tool", "mutant", "message"),
    [("memcheck", GPU_OVERRUN, "Invalid __global__ read"), ("racecheck", GPU_RACE, "hazard")],
    ids=["memcheck", "racecheck"],
)
def test_a_fault_is_reported_on_the_gpu(tool: str, mutant: Mutant, message: str, tmp_path: Path) -> None:
    sanitizer = sanitize_gpu.find_sanitizer()
    assert sanitizer, "compute-sanitizer is not installed: it comes with the CUDA toolkit"
    done = run_with(
        mutant,
        [*sanitize_gpu.python_under(sanitizer, tool), "-m", "pytest", "--require-gpu"],
        "sanitize and gpu",
        tmp_path,
    )
    assert done.returncode != 0
    output = done.stdout + done.stderr
    assert message in output, output
    assert Path(mutant.file).stem in output
