"""The cpu device: which compiler and which settings it takes from the environment, and what it says of wrong ones."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from tests.support.cpu_kernels import fixture_kernel
from vgg16gpu.devices.cpu import compiler as cpu_compiler
from vgg16gpu.devices.cpu.device import CpuDevice
from vgg16gpu.errors import DeviceError, KernelError


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("VGG16GPU_THREADS", "0", "from 1 to 1024"),
        ("VGG16GPU_THREADS", "many", "from 1 to 1024"),
        ("VGG16GPU_THREADS", "9" * 5000, "from 1 to 1024"),
        ("VGG16GPU_THREADS", "\u0663", "from 1 to 1024"),
        ("VGG16GPU_ORDER", "9" * 5000, "a seed below 2\\*\\*32"),
        ("VGG16GPU_ORDER", "sideways", "not forward, reverse or a seed"),
        ("VGG16GPU_SANITIZE", "memory", "not one of address, thread, poison"),
        ("VGG16GPU_SANITIZE", "address", "python -m vgg16gpu.devices.sanitize"),
        ("VGG16GPU_OPTIMIZE", "fast", "='fast' is not 0, 1, 2 or 3"),
        ("VGG16GPU_OPTIMIZE", "-1", "is not 0, 1, 2 or 3"),
        ("CXX", "/no/such/compiler", "CXX='/no/such/compiler' is not found"),
    ],
)
def test_wrong_environment_is_named(name: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(DeviceError, match=message):
        CpuDevice()


def test_without_a_compiler_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeviceError, match=r"install g\+\+"):
        CpuDevice()


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("exit 3", r"`.*/compiler --version` ended with exit code 3;"),
        ("echo no license >&2; exit 1", r"exit code 1: no license;"),
        ("exit 0", r"printed no version;"),
    ],
)
def test_a_compiler_that_does_not_work_is_named_with_reason_and_remedy(
    script: str, found: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(DeviceError, match=rf"{compiler} does not work: .*{found} .*set CXX to a g\+\+ or clang\+\+"):
        CpuDevice()


def test_a_compiler_that_fails_without_a_word_is_reported_with_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "compiler 1.0" || exit 7\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("VGG16GPU_CACHE", str(tmp_path / "cache"))
    device = CpuDevice()
    with pytest.raises(KernelError, match=r"does not compile:\nexit code 7$"):
        device.build([fixture_kernel("scale")])
    device.close()


def test_other_platforms_get_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    with pytest.raises(DeviceError, match=f"Darwin on {platform.machine()} is not supported"):
        CpuDevice()


def test_clang_gets_no_option_of_gcc_alone() -> None:
    clang = cpu_compiler.Compiler(("clang++",), "Debian clang version 17.0.6")
    gcc = cpu_compiler.Compiler(("g++",), "g++ (Debian 12.2.0) 12.2.0")
    assert "-fno-gnu-unique" in gcc.flags(None)
    assert "-fno-gnu-unique" not in clang.flags(None)
    assert "-ffp-contract=off" in clang.flags(None)
