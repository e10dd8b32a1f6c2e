"""Libraries of kernels out of the cache: what is none, or lacks a kernel, is built again; planted code never runs."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.cpu_kernels import fixture_kernel
from vgg16gpu.devices.cache import CacheEntry, KernelCache
from vgg16gpu.devices.cpu import compiler
from vgg16gpu.devices.cpu.compiler import find_compiler
from vgg16gpu.devices.cpu.device import CpuDevice
from vgg16gpu.errors import KernelError

KERNEL = fixture_kernel("scale")
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own."""
    monkeypatch.setenv("VGG16GPU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("VGG16GPU_OPTIMIZE", "0")  # compiles sooner
    return tmp_path / "cache"


def build() -> CacheEntry:
    """Build the kernel, or take it from the cache; the only entry."""
    device = CpuDevice()
    try:
        device.build([KERNEL])
    finally:
        device.close()
    (entry,) = KernelCache("cpu").entries()
    return entry


def library(source: str, path: Path) -> bytes:
    """A shared library made of C++."""
    command = [*find_compiler().command, "-shared", "-fPIC", "-x", "c++", "-", "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True)
    return path.read_bytes()


def swap(entry: CacheEntry, content: bytes) -> Path:
    """Put other content in the entry's place, under the name that it must have."""
    digest = hashlib.sha256(content).hexdigest()[:32]
    path = entry.path.with_name(f"{entry.path.name.partition('-')[0]}-{digest}.so")
    entry.path.unlink()
    path.write_bytes(content)
    path.chmod(0o600)
    return path


@root_only
def test_a9_code_that_others_planted_does_not_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library of somebody else in a folder that once was open to all, and now has the mode that it should have."""
    entry = build()
    made, witness = entry.path.read_bytes(), tmp_path / "ran"
    # What is built again is the same, and takes no compiler.
    monkeypatch.setattr(compiler, "_compile", lambda *arguments: arguments[-1].write_bytes(made))
    source = f'#include <cstdio>\n__attribute__((constructor)) static void run() {{ fclose(fopen("{witness}", "w")); }}'
    path = swap(entry, library(source, tmp_path / "evil.so"))
    os.chown(path, 12345, 12345)
    folder.chmod(0o700)
    build()
    assert not witness.exists()
    swapped = swap(*KernelCache("cpu").entries(), library(source, tmp_path / "evil.so"))
    build()
    assert witness.exists()  # the control: of our own it would have run
    assert not swapped.exists()  # it has no kernel: built again


def test_a_compiler_that_makes_no_library_of_kernels_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_nothing(*arguments: object) -> None:
        Path(str(arguments[-1])).write_bytes(b"\x7fELF, but no more")

    monkeypatch.setattr("vgg16gpu.devices.cpu.compiler._compile", compile_nothing)
    device = CpuDevice()
    try:
        with pytest.raises(KernelError, match=r"the compiled kernels .*\.so cannot be loaded: .*set VGG16GPU_CACHE"):
            device.build([KERNEL])
    finally:
        device.close()
