"""devices/cuda/install/build.py: the files of an extension compiled side by side, by setuptools itself."""

import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest

from vgg16gpu.devices.cuda.install.build import BuildProgress, in_parallel

SETUP = """
from setuptools import Extension, setup
from beside import NAME  # what PyCUDA's does too
setup(name=NAME, version="1", ext_modules=[Extension("both", ["both.cpp", "one.cpp", "two.cpp"])])
"""
BOTH = """
#include <Python.h>
int one(); int two();
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "both", nullptr, -1, nullptr};
PyMODINIT_FUNC PyInit_both() {
    PyObject *module = PyModule_Create(&definition);
    PyModule_AddIntConstant(module, "total", one() + two());
    return module;
}
"""


def sources(folder, names):
    for size, name in enumerate(names):
        (folder / name).write_text("x" * size)
    return [str(folder / name) for name in names]


def quiet():
    return BuildProgress(lambda _: None)


def test_the_first_failure_ends_it(tmp_path):
    begun = []

    def compile_all(_, files):
        begun.append(Path(files[0]).name)
        if begun[-1] == "large.cpp":
            raise ValueError("large.cpp is wrong")
        time.sleep(0.05)
        return files

    files = sources(tmp_path, ["small.cpp", *(f"{index}.cpp" for index in range(40)), "large.cpp"])
    with pytest.raises(ValueError, match=r"large\.cpp is wrong"):
        in_parallel(compile_all, 1, quiet())(None, files)
    assert len(begun) < len(files)


def test_progress():
    lines, now = [], [100.0]
    progress = BuildProgress(lines.append, clock=lambda: now[0])
    progress.tell()  # nothing to tell yet
    progress.begin(2)
    progress.advance()
    now[0] += 8.4
    progress.tell()
    assert lines == ["Compiling PyCUDA: 1 of 2 files, 8 s"]


def test_progress_is_told_while_a_file_takes_long():
    told = threading.Event()
    progress = BuildProgress(lambda _: told.set())
    progress.begin(1)
    with progress.told_every(0.01):
        assert told.wait(60)


def build(folder):
    command = [sys.executable, "-m", "vgg16gpu.devices.cuda.install.build", str(folder), str(folder / "made"), "2"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow(reason="five compilations; the order of files, the first failure and the line are in make test")
def test_a_wheel_is_built_by_setuptools(tmp_path):
    pytest.importorskip("setuptools", minversion="70.1")
    (tmp_path / "setup.py").write_text(SETUP)
    (tmp_path / "beside.py").write_text("NAME = 'both'")
    (tmp_path / "both.cpp").write_text(BOTH)
    (tmp_path / "one.cpp").write_text("int one() { return 1; }")
    (tmp_path / "two.cpp").write_text("int two() { return 2; }")
    result = build(tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("Compiling PyCUDA: 3 of 3 files, ")  # the compilers' words go elsewhere
    assert result.stdout.count("\n") == 1
    (wheel,) = (tmp_path / "made").glob("both-1-*.whl")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(tmp_path / "installed")
    probe = [sys.executable, "-c", "import both; print(both.total)"]
    assert subprocess.check_output(probe, cwd=tmp_path / "installed", text=True) == "3\n"
    (tmp_path / "two.cpp").write_text("int two() { return; }")
    result = build(tmp_path)
    assert result.returncode != 0
    assert "two.cpp" in result.stderr
