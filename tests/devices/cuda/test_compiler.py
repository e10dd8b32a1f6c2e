"""Compiling for the GPU, without nvcc: what is found, what is in the key, what is compiled anew."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from pathlib import Path

import pytest

from vgg16gpu.devices import kernel_source
from vgg16gpu.devices.cache import KernelCache
from vgg16gpu.devices.cpu.compiler import find_compiler
from vgg16gpu.devices.cuda import compiler as cuda_compiler
from vgg16gpu.devices.cuda.compiler import CubinCompiler, CubinUnit, architecture, compiler_identity
from vgg16gpu.errors import KernelError


@pytest.fixture
def toolkit(tmp_path):
    """A toolkit's three programs, as files."""
    root = tmp_path / "toolkit"
    for name in ("bin/nvcc", "bin/ptxas", "nvvm/bin/cicc"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return root


@pytest.fixture
def runs(monkeypatch, tmp_path, toolkit):
    """The runs of a stand-in for nvcc, in a cache of its own."""
    made = []

    def run_nvcc(nvcc, unit, arch):
        made.append((unit, arch))
        return b"\x7fELF" + f"{nvcc} {unit} {arch} {len(made)}".encode()

    monkeypatch.setenv("VGG16GPU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cuda_compiler, "_run_nvcc", run_nvcc)
    monkeypatch.setattr(cuda_compiler, "find_nvcc", lambda: toolkit / "bin" / "nvcc")
    return made


@pytest.fixture
def unit(tmp_path):
    source = tmp_path / "tiny.cu"
    source.write_text("// tiny\n")
    return CubinUnit(str(source), (("TILE", 4),))


def compile_one(unit, capability=(9, 0)):
    return CubinCompiler(capability).cubins([unit])[unit]


@pytest.mark.parametrize(
    ("capability", "name"),
    [((9, 0), "sm_90a"), ((8, 6), "sm_86"), ((7, 5), "sm_75"), ((10, 0), "sm_100"), ((12, 1), "sm_121")],
)
def test_architecture(capability, name):
    assert architecture(capability) == name


def test_every_unit_gets_its_own(runs, unit):
    units = [CubinUnit(unit.source, (("TILE", tile),)) for tile in range(9)]
    cubins = CubinCompiler((9, 0)).cubins(units)
    assert list(cubins) == units
    assert len(set(cubins.values())) == len(runs) == 9


def test_source_macros_and_architecture_are_in_the_key(runs, unit):
    compile_one(unit)
    compile_one(CubinUnit(unit.source, (("TILE", 8),)))
    compile_one(unit, (8, 0))
    Path(unit.source).write_text("// tiny, changed\n")
    compile_one(unit)
    assert len(runs) == 4


def test_headers_are_in_the_key(runs, unit, monkeypatch, tmp_path):
    header = tmp_path / "common.cuh"
    monkeypatch.setattr(kernel_source, "kernel_dir", lambda: tmp_path)
    monkeypatch.setattr(kernel_source, "headers", lambda _: (header,))
    for text in ("one", "two", "one"):
        header.write_text(text)
        compile_one(unit)
    assert len(runs) == 2


@pytest.mark.usefixtures("runs")
def test_without_nvcc_the_cache_serves(unit, monkeypatch):
    first = compile_one(unit)
    monkeypatch.setattr(cuda_compiler, "find_nvcc", lambda: None)
    monkeypatch.setattr(cuda_compiler, "find_nvrtc", lambda _: None)
    assert compile_one(unit) == first
    with pytest.raises(KernelError, match=r"no nvcc.*CUDA_HOME.*PATH.*cuda_setup"):
        compile_one(CubinUnit(unit.source))


@pytest.mark.parametrize("name", ["bin/nvcc", "bin/ptxas", "nvvm/bin/cicc"])
def test_identity_changes_with_each_program(toolkit, name):
    nvcc = toolkit / "bin" / "nvcc"
    before = compiler_identity(nvcc)
    assert compiler_identity(nvcc) == before
    os.utime(toolkit / name, (1, 1))
    assert compiler_identity(nvcc) != before


def test_a_script_in_front_of_nvcc_is_asked(tmp_path):
    script = tmp_path / "nvcc"
    identities = set()
    for release in ("13.0", "13.0", "13.1"):
        (tmp_path / "release").write_text(release)
        script.write_text(f'#!/bin/sh\n[ "$1" = --version ] && cat {tmp_path}/release\n')
        script.chmod(0o755)
        identities.add(compiler_identity(script))
    assert len(identities) == 2


@pytest.mark.parametrize(
    ("arch", "hints"),
    [(500, ""), (610, ""), (700, ".L1::no_allocate"), (750, ".L1::no_allocate"), (800, ".L1::no_allocate.L2::256B")],
)
def test_streaming_loads_take_the_hints_that_an_architecture_has(arch, hints):
    """PTX ISA, ld.global.nc: .L1::no_allocate requires sm_70, .L2::256B requires sm_80."""
    header = str(kernel_source.source_path("common.cuh"))
    folders = [f"-I{path}" for path in kernel_source.include_dirs()]
    command = [*find_compiler().command, *folders, "-E", "-x", "c++", "-D__CUDACC__", f"-D__CUDA_ARCH__={arch}", header]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"ld\.global\.nc[\w.:]*", text) == [f"ld.global.nc{hints}.v4.f32"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
def test_a9_a_cubin_that_others_put_there_is_compiled_anew(runs, unit):
    wanted = compile_one(unit)
    (entry,) = KernelCache("cuda").entries()
    content = entry.path.read_bytes().replace(wanted, b"\x7fELF, planted")
    digest = hashlib.sha256(content).hexdigest()[:32]
    planted = entry.path.with_name(f"{entry.path.name.partition('-')[0]}-{digest}.cubin")
    entry.path.rename(planted)
    planted.write_bytes(content)
    assert compile_one(unit) == b"\x7fELF, planted"  # the control: of our own it is taken
    os.chown(planted, 12345, 12345)
    assert compile_one(unit).startswith(b"\x7fELF")
    assert b"planted" not in compile_one(unit)
    assert len(runs) == 2
