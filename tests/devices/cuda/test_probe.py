"""probe.py against a driver and compilers made here: a library compiled from C, scripts that talk like nvcc."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vgg16gpu.devices.cuda import probe as cuda_probe
from vgg16gpu.devices.cuda.probe import Driver, Gpu, Toolkit

H200 = Gpu("NVIDIA H200", (9, 0), 139 << 30)

DRIVER_SOURCE = r"""
#include <stdlib.h>
#include <string.h>
typedef int CUdevice;
int cuDriverGetVersion(int *version) { *version = 12080; return 0; }
int cuInit(unsigned flags) { const char *code = getenv("INIT"); return code ? atoi(code) : 0; }
int cuGetErrorString(int code, const char **text) { *text = "unknown error"; return 0; }
int cuDeviceGetCount(int *count) { *count = 2; return 0; }
int cuDeviceGet(CUdevice *device, int ordinal) { *device = ordinal + 40; return 0; }
int cuDeviceGetName(char *name, int length, CUdevice device) {
  strncpy(name, device == 40 ? "Card A" : "Card B", length);
  return 0;
}
int cuDeviceTotalMem_v2(size_t *nbytes, CUdevice device) { *nbytes = (size_t)(device - 39) << 33; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
  *value = attribute == 75 ? device - 32 : attribute == 76 ? device - 40 : -1;
  return 0;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Compile a library that answers like the driver; its path."""
    path = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    subprocess.run(
        ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(path)],
        input='#include <stddef.h>\nextern "C" {' + DRIVER_SOURCE + "}",
        text=True,
        check=True,
    )
    return path


def run_probe(library):
    """`probe_driver` in a process of its own: a library stays loaded for good."""
    names = "from vgg16gpu.devices.cuda.probe import *; from pathlib import PosixPath"
    script = f"{names}; print(probe_driver({str(library)!r}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return eval(done.stdout, {**vars(cuda_probe), "PosixPath": Path})


def test_driver_version_and_cards(library):
    driver = run_probe(library)
    assert driver == Driver(
        (12, 8), library, (Gpu("Card A", (8, 0), 1 << 33), Gpu("Card B", (9, 1), 2 << 33)), problem=""
    )
    assert [gpu.arch for gpu in driver.gpus] == ["sm_80", "sm_91"]


@pytest.mark.parametrize(("code", "problem"), [(100, "the driver sees no GPU"), (999, "unknown error (error 999)")])
def test_driver_without_cards_keeps_its_version(library, monkeypatch, code, problem):
    monkeypatch.setenv("INIT", str(code))
    driver = run_probe(library)
    assert driver.version == (12, 8)
    assert driver.gpus == ()
    assert problem in driver.problem


def test_another_library_is_not_a_driver():
    assert cuda_probe.probe_driver("libc.so.6") is None


# Toolkits


def make_toolkit(root, version="13.0", archs=("sm_75", "sm_90"), fails="", header=True):
    """A folder that looks like a CUDA toolkit, with an nvcc that answers."""
    (root / "bin").mkdir(parents=True)
    (root / "include").mkdir()
    if header:
        (root / "include" / "cuda.h").touch()
        (root / "include" / "cudaProfiler.h").touch()
    script = f"""#!/bin/sh
case "$1" in
  --version) echo "Cuda compilation tools, release {version}, V{version}.88" ;;
  --list-gpu-code) printf '%s\\n' {" ".join(archs)} ;;
  --dryrun) echo '#$ TOP={root}/bin/..' >&2 ;;
  *) {f"echo '{fails}' >&2; exit 1" if fails else "exit 0"} ;;
esac
"""
    nvcc = root / "bin" / "nvcc"
    nvcc.write_text(script)
    nvcc.chmod(0o755)
    return nvcc


def find(tmp_path, **environ):
    return cuda_probe.find_toolkits(
        {"PATH": os.defpath, **{name: str(value) for name, value in environ.items()}},
        site=tmp_path / "site",
        default=tmp_path / "default",
    )


def test_toolkits_in_the_order_in_which_they_are_taken(tmp_path):
    names = ["home", "root", "site/nvidia/cu13", "path", "default"]
    for number, name in enumerate(names):
        make_toolkit(tmp_path / name, version=f"13.{number}")
    found = find(
        tmp_path,
        CUDA_HOME=tmp_path / "home",
        CUDA_ROOT=tmp_path / "root",
        PATH=f"{tmp_path / 'path' / 'bin'}{os.pathsep}{os.defpath}",
    )
    assert [toolkit.version for toolkit in found] == [(13, 0), (13, 1), (13, 2), (13, 3), (13, 4)]
    assert [toolkit.root for toolkit in found] == [tmp_path / name for name in names]
    assert found[0].archs == ("sm_75", "sm_90")
    assert found[2].origin == "Python packages"


def test_an_nvcc_that_is_a_script_leads_to_its_toolkit(tmp_path):
    make_toolkit(tmp_path / "real")
    wrapper = tmp_path / "bin" / "nvcc"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec {tmp_path}/real/bin/nvcc "$@"\n')
    wrapper.chmod(0o755)
    (toolkit,) = find(tmp_path, PATH=f"{wrapper.parent}{os.pathsep}{os.defpath}")
    assert toolkit.root == tmp_path / "real"
    assert toolkit.nvcc == wrapper


def test_headers_in_a_target_folder(tmp_path):
    nvcc = make_toolkit(tmp_path / "conda", header=False)
    target = tmp_path / "conda" / "targets" / "x86_64-linux" / "include"
    target.mkdir(parents=True)
    (target / "cuda.h").touch()
    line = f'#$ INCLUDES="-I{tmp_path}/conda/bin/../targets/x86_64-linux/include"  '
    nvcc.write_text(nvcc.read_text().replace("--dryrun)", f"--dryrun) echo '{line}' >&2;"))
    (toolkit,) = find(tmp_path, CUDA_HOME=tmp_path / "conda")
    assert toolkit.include == target


def test_an_nvcc_that_does_not_answer_is_none(tmp_path):
    nvcc = make_toolkit(tmp_path / "home")
    nvcc.write_text("#!/bin/sh\nexit 1\n")
    assert find(tmp_path, CUDA_HOME=tmp_path / "home") == ()
    nvcc.write_bytes(b"not a program")
    assert find(tmp_path, CUDA_HOME=tmp_path / "home") == ()


def driver(version=(13, 0), gpus=(H200,)):
    return Driver(version, Path("/lib/libcuda.so.1"), gpus)


def toolkit_in(tmp_path, **options):
    make_toolkit(tmp_path / "cuda", **options)
    (toolkit,) = find(tmp_path, CUDA_HOME=tmp_path / "cuda")
    return toolkit


@pytest.mark.parametrize(
    ("options", "version", "reason"),
    [
        ({"version": "13.1"}, (13, 0), "newer than the driver, which runs CUDA 13.0 and older"),
        ({"version": "13.0"}, (12, 9), "newer than the driver"),
        ({"archs": ("sm_50", "sm_86")}, (13, 0), "does not know sm_90 (NVIDIA H200)"),
        ({"header": False}, (13, 0), "has no"),
    ],
)
def test_objections(tmp_path, options, version, reason):
    assert reason in cuda_probe.objection(toolkit_in(tmp_path, **options), driver(version), linked=True)


def test_kernels_may_be_of_a_newer_minor_version(tmp_path):
    toolkit = toolkit_in(tmp_path, version="13.2")
    assert "newer" in cuda_probe.objection(toolkit, driver((13, 0)), linked=True)
    assert cuda_probe.objection(toolkit, driver((13, 0)), linked=False) == ""
    assert "newer" in cuda_probe.objection(toolkit, driver((12, 9)), linked=False)


def test_an_nvcc_without_its_other_parts(tmp_path):
    toolkit = toolkit_in(tmp_path, fails="sh: cicc: not found")
    assert cuda_probe.compile_problem(toolkit) == "its nvcc fails: sh: cicc: not found"


def test_choose_names_what_it_passes_over():
    toolkits = [Toolkit(Path(f"/{name}/bin/nvcc"), Path(f"/{name}/include"), (13, 0), (), name) for name in "abc"]
    reasons = {"a": "too new", "b": "", "c": "never asked"}
    chosen, refused = cuda_probe.choose_toolkit(toolkits, lambda toolkit: reasons[toolkit.origin])
    assert chosen is toolkits[1]
    assert refused == ("CUDA 13.0 at /a (a): too new",)
    assert cuda_probe.choose_toolkit([], lambda _: "") == (None, ())


# The Python packages


def make_python(folder, pycuda, bindings):
    """A folder for PYTHONPATH with stand-ins for the two packages."""
    for name, text in {"pycuda": "VERSION_TEXT = '2026.1'", "pycuda/driver": pycuda, "cuda/bindings": bindings}.items():
        path = folder / name / "__init__.py"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    (folder / "cuda" / "bindings" / "driver.py").touch()
    (folder / "pycuda" / "compiler.py").touch()


def probe_with(folder, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return cuda_probe.probe_bindings()


def test_bindings_that_load(tmp_path, monkeypatch):
    make_python(tmp_path, "def get_version(): return 13, 0, 0", "__version__ = '13.0.3'")
    state = probe_with(tmp_path, monkeypatch)
    assert str(state) == "PyCUDA 2026.1 for CUDA 13.0 and cuda-bindings 13.0.3"
    assert state.problem == ""


def test_a_package_that_crashes(tmp_path, monkeypatch):
    make_python(tmp_path, "import os; os.abort()", "__version__ = '13.0.3'")
    assert probe_with(tmp_path, monkeypatch).pycuda_problem != ""
