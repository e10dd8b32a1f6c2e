"""NVRTC: where it is looked for, what it compiles, and that its kernels have the bits of nvcc's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vgg16gpu.devices import kernel_source
from vgg16gpu.devices.cuda import compiler as cuda_compiler
from vgg16gpu.devices.cuda import driver as cuda_driver
from vgg16gpu.devices.cuda.compiler import CubinCompiler, CubinUnit, Nvcc, NvrtcBackend, find_backend, missing_compiler
from vgg16gpu.devices.cuda.nvrtc import Nvrtc, find_nvrtc, libraries
from vgg16gpu.errors import DeviceError, KernelError

ARCHS = ("sm_80", "sm_90a")
HOPPER = '#include "hopper/'  # in sources of compute capability 9.0 alone


def library(folder: Path, major: int) -> Path:
    folder.mkdir(parents=True)
    path = folder / f"libnvrtc.so.{major}"
    path.write_bytes(b"")
    (folder / "libnvrtc-builtins.so.13.0").write_bytes(b"")
    return path


def test_packages_come_before_toolkits_and_none_is_newer_than_the_driver(tmp_path: Path) -> None:
    newest = library(tmp_path / "site/nvidia/cu13/lib", 13)
    older = library(tmp_path / "site/nvidia/cuda_nvrtc/lib", 12)
    toolkit = library(tmp_path / "cuda/lib64", 13)
    site, home = [str(tmp_path / "site")], {"CUDA_HOME": str(tmp_path / "cuda")}
    found = list(libraries(home, site, tmp_path / "none"))
    assert found == [(13, newest), (12, older), (13, toolkit)]
    assert list(libraries({}, [], tmp_path / "cuda")) == [(13, toolkit)]


def test_a_library_that_is_none_is_named(tmp_path: Path) -> None:
    path = library(tmp_path / "lib", 13)
    with pytest.raises(KernelError, match=r"NVRTC does not load: .*libnvrtc.*install it again"):
        Nvrtc(path).compile("", "x.cu", [], "sm_90", "x.cu")


def test_which_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = library(tmp_path / "lib", 12)
    monkeypatch.setattr(cuda_compiler, "find_nvcc", lambda: Path("/cuda/bin/nvcc"))
    monkeypatch.setattr(cuda_compiler, "find_nvrtc", lambda _: Nvrtc(path))
    monkeypatch.setenv(cuda_driver.VARIABLE, "pycuda")
    assert isinstance(find_backend(), Nvcc)
    monkeypatch.setenv(cuda_driver.VARIABLE, "bindings")
    assert isinstance(find_backend(), NvrtcBackend)
    monkeypatch.setenv(cuda_driver.VARIABLE, "pycuda")
    monkeypatch.setattr(cuda_compiler, "find_nvcc", lambda: None)
    assert isinstance(find_backend(), NvrtcBackend)
    monkeypatch.setattr(cuda_compiler, "find_nvrtc", lambda _: None)
    assert find_backend() is None
    assert "CUDA_HOME" in missing_compiler()
    monkeypatch.setenv(cuda_driver.VARIABLE, "bindings")
    monkeypatch.setattr(cuda_compiler, "driver_major", lambda: 12)
    assert "pip install nvidia-cuda-nvrtc-cu12" in missing_compiler()


def test_which_package(monkeypatch: pytest.MonkeyPatch) -> None:
    there: set[str] = set()
    monkeypatch.delenv(cuda_driver.VARIABLE, raising=False)
    monkeypatch.setattr(cuda_driver, "find_spec", lambda name: name in there or None)
    monkeypatch.setattr(cuda_driver, "has_bindings", lambda: "cuda" in there)
    assert cuda_driver.chosen_package() == "pycuda"  # whose absence is then told, with what installs it
    there.add("cuda")
    assert cuda_driver.chosen_package() == "bindings"
    there.add("pycuda")
    assert cuda_driver.chosen_package() == "pycuda"
    monkeypatch.setenv(cuda_driver.VARIABLE, "opencl")
    with pytest.raises(DeviceError, match=r"VGG16GPU_CUDA='opencl' is not pycuda or bindings; correct it or unset it"):
        cuda_driver.chosen_package()


def sources() -> list[str]:
    return [kernel_source.source_name(path) for path in kernel_source.own_sources()]


@pytest.fixture(scope="module")
def nvrtc() -> Nvrtc:
    found = find_nvrtc(None)
    if found is None:
        pytest.skip("no NVRTC here: python -m pip install nvidia-cuda-nvrtc")
    return found


@pytest.mark.first_case(
    reason="each takes seconds; every kernel in test-all, and those of VGG16 in each test of a GPU without PyCUDA"
)
@pytest.mark.parametrize("source", sources())
def test_every_kernel_compiles(nvrtc: Nvrtc, source: str) -> None:
    for arch in ARCHS:
        if arch == "sm_90a" or HOPPER not in kernel_source.read_source(source):
            cubin = NvrtcBackend(nvrtc).compile(CubinUnit(source), arch)
            assert cubin.startswith(b"\x7fELF")


def test_what_does_not_compile_is_named(nvrtc: Nvrtc, tmp_path: Path) -> None:
    path = tmp_path / "broken.cu"
    path.write_text('extern "C" __global__ void f() {\n  nonsense;\n}\n')
    with pytest.raises(KernelError, match=r"broken\.cu -DTILE=4 does not compile for sm_80 with .*libnvrtc") as raised:
        NvrtcBackend(nvrtc).compile(CubinUnit(str(path), (("TILE", 4),)), "sm_80")
    assert f"{path}(2)" in str(raised.value)
    assert "nonsense" in raised.value.output


def test_a_cache_that_others_filled_serves_where_pycuda_has_no_nvcc(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An image that was prepared with nvcc runs without one; NVRTC compiles only what is missing."""
    monkeypatch.setenv("VGG16GPU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(cuda_driver.VARIABLE, "pycuda")
    monkeypatch.setattr(cuda_compiler, "find_nvcc", lambda: tmp_path / "nvcc")
    monkeypatch.setattr(cuda_compiler, "_run_nvcc", lambda *_: b"\x7fELF of nvcc")
    unit = CubinUnit("softmax.cu")
    assert CubinCompiler((8, 0)).cubins([unit])[unit] == b"\x7fELF of nvcc"
    monkeypatch.setattr(cuda_compiler, "find_nvcc", lambda: None)
    monkeypatch.setattr(cuda_compiler, "find_nvrtc", lambda _: Nvrtc(library(tmp_path / "lib", 13)))
    assert CubinCompiler((8, 0)).cubins([unit])[unit] == b"\x7fELF of nvcc"


_RUN = """
import sys
import numpy as np
from vgg16gpu import Engine
images = np.random.default_rng(0).standard_normal((3, 1, 32, 32)).astype(np.float32)
with Engine("digits", device="cuda", precision=sys.argv[1]) as engine:
    np.save(sys.argv[2], engine.run(images))
print("pycuda" in sys.modules)
"""


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_the_same_bits_by_either(precision: str, tmp_path: Path) -> None:
    pytest.importorskip("pycuda")
    found: list[Any] = []
    for package in ("pycuda", "bindings"):
        path = tmp_path / f"{package}.npy"
        environment = {**os.environ, cuda_driver.VARIABLE: package}
        done = subprocess.run(
            [sys.executable, "-c", _RUN, precision, str(path)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == str(package == "pycuda")
        found.append(np.load(path))
    np.testing.assert_array_equal(*found)
