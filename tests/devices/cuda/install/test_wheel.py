"""wheel.py with a driver, a toolkit, a compiler and a pip that are made here: what is built, kept and taken."""

import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from vgg16gpu.devices.cache import KernelCache
from vgg16gpu.devices.cuda.install import wheel as pycuda_wheel
from vgg16gpu.devices.cuda.install.wheel import PYCUDA, PycudaWheels
from vgg16gpu.devices.cuda.probe import Driver, Toolkit
from vgg16gpu.errors import DeviceError

ARCHIVE = f"pycuda-{PYCUDA}"
TAG = "cp312-cp312-linux_x86_64"
DRIVER = Driver((13, 0), Path("/drivers/libcuda.so.580.65"), ())


def wheel_content(mark):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr(f"{ARCHIVE}.dist-info/WHEEL", f"Wheel-Version: 1.0\nTag: {TAG}\n")
        file.writestr("pycuda/mark", mark)
    return buffer.getvalue()


def mark_of(path):
    with zipfile.ZipFile(path) as file:
        return file.read("pycuda/mark").decode()


def write_archive(folder):
    files = {
        "setup.py": "raise SystemExit('nobody must run this to learn the name')",
        "PKG-INFO": f"Metadata-Version: 2.1\nName: pycuda\nVersion: {PYCUDA}\n",
        "pyproject.toml": '[build-system]\nrequires = ["setuptools", "wheel", "numpy>=1.24"]\n',
    }
    with tarfile.open(folder / f"{ARCHIVE}.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"{ARCHIVE}/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))


class Machine:
    """Stands for pip and the compilers; `fails` holds the words of commands that fail."""

    def __init__(self, folder):
        self.folder = folder
        self.fails = []
        self.compiler = "g++ 13.2"
        self.commands = []
        self.said = []
        self.settings = {}
        self.link = None
        self.built = 0

    def run(self, command):
        words = list(map(str, command))
        if words[-1] == "--version":
            return self.done(words, True, self.compiler)
        self.commands.append(words)
        good = not any(fail in words for fail in self.fails)
        if good and "download" in words:
            write_archive(Path(words[words.index("--dest") + 1]))
        if good and "wheel" in words:
            folder = Path(words[words.index("--wheel-dir") + 1])
            self.make(folder, f"by pip, {self.built}")
        return self.done(words, good)

    def run_told(self, command, say):
        words = list(map(str, command))
        self.commands.append(words)
        source, folder, _ = words[-3:]
        say("Compiling PyCUDA: 1 of 37 files, 1 s")
        exec(Path(source, "siteconf.py").read_text(), self.settings)
        self.link = Path(self.settings["CUDADRV_LIB_DIR"][0], "libcuda.so").readlink()
        good = "vgg16gpu.devices.cuda.install.build" not in self.fails
        if good:
            self.make(Path(folder), f"in parallel, {self.built}")
        return self.done(words, good)

    def make(self, folder, mark):
        self.built += 1
        (folder / f"{ARCHIVE}-{TAG}.whl").write_bytes(wheel_content(mark))

    def done(self, words, good, output=""):
        return subprocess.CompletedProcess(words, 0 if good else 1, output, "" if good else f"ERROR: {words[-1]}")

    def toolkit(self, *version):
        include = self.folder / "cuda" / "include"
        return Toolkit(self.folder / "cuda" / "bin" / "nvcc", include, version, ("sm_90",), "nvcc on PATH")

    def wheel(self, *version, fresh=False):
        """The wheel's mark, and whether it was built."""
        wheels = PycudaWheels(DRIVER, python="python", run=self.run, run_told=self.run_told, say=self.said.append)
        folder = self.folder / f"out{len(list(self.folder.iterdir()))}"
        folder.mkdir()
        path, built = wheels.wheel(self.toolkit(*(version or (13, 0))), folder, fresh=fresh)
        assert path.name == f"{ARCHIVE}-{TAG}.whl"  # pip refuses other names
        return mark_of(path), built


@pytest.fixture
def cache(monkeypatch, tmp_path):
    folder = tmp_path / "cache"
    monkeypatch.setenv("VGG16GPU_CACHE", str(folder))
    return folder / "pycuda"


@pytest.fixture
def machine(cache, tmp_path):  # noqa: ARG001 - the cache of a test is its own
    return Machine(tmp_path)


def test_it_is_built_in_parallel_with_the_drivers_library(machine, tmp_path, monkeypatch):
    monkeypatch.setattr(pycuda_wheel, "usable_cores", lambda: 16)
    monkeypatch.setattr(pycuda_wheel, "machine_memory", lambda: (1 << 40, 1 << 39))
    assert machine.wheel() == ("in parallel, 0", True)
    assert machine.settings["CUDA_ROOT"] == str(tmp_path / "cuda")
    assert machine.settings["CUDA_INC_DIR"] == [str(tmp_path / "cuda" / "include")]
    assert machine.settings["CUDA_ENABLE_CURAND"] is False
    assert machine.settings["CXXFLAGS"] == list(pycuda_wheel.FLAGS)
    assert machine.link == DRIVER.library
    (build,) = [command for command in machine.commands if "vgg16gpu.devices.cuda.install.build" in command]
    assert build[-1] == "16"
    assert build[0] == "env"
    assert "/tools" in build[1]  # setuptools and numpy of its own: the environment may have none
    assert "Compiling PyCUDA: 1 of 37 files, 1 s" in machine.said


@pytest.mark.parametrize("change", ["cuda", "compiler", "flags", "python", "environment", "platform"])
def test_what_it_depends_on_is_in_the_key(machine, monkeypatch, change):
    machine.wheel()
    version = (13, 0)
    match change:
        case "cuda":
            version = (12, 9)
        case "compiler":
            machine.compiler = "g++ 14.1"
        case "flags":
            monkeypatch.setattr(pycuda_wheel, "FLAGS", ("-O3",))
        case "python":
            monkeypatch.setattr(pycuda_wheel.sysconfig, "get_config_var", lambda name: f"other {name}")
        case "environment":
            monkeypatch.setenv("CXXFLAGS", "-march=native")
        case "platform":
            monkeypatch.setattr(pycuda_wheel.sysconfig, "get_platform", lambda: "linux-riscv64")
    assert machine.wheel(*version) == ("in parallel, 1", True)


@pytest.mark.parametrize("content", [b"", b"PK not a wheel", wheel_content("somebody else's")])
def test_a_file_that_has_changed_is_never_handed_out(machine, cache, content):
    machine.wheel()
    (entry,) = cache.iterdir()
    entry.write_bytes(content)
    assert machine.wheel() == ("in parallel, 1", True)


def test_fresh_takes_the_place_of_what_was_kept(machine):
    machine.wheel()
    assert machine.wheel(fresh=True) == ("in parallel, 1", True)
    assert machine.wheel() == ("in parallel, 1", False)
    assert len(KernelCache(pycuda_wheel.CACHE_KIND).entries()) == 1


@pytest.mark.parametrize("fails", ["vgg16gpu.devices.cuda.install.build", "--target"])
def test_where_that_way_fails_pip_builds_it_and_the_reason_is_said(machine, fails):
    machine.fails = [fails]
    assert machine.wheel() == ("by pip, 0", True)
    assert any("failed" in line and "pip builds it file by file" in line for line in machine.said)
    assert "--no-build-isolation" not in machine.commands[-1]
    assert machine.wheel() == ("by pip, 0", False)


def test_where_nothing_works_the_end_of_what_pip_said_is_the_error(machine, cache):
    machine.fails = ["vgg16gpu.devices.cuda.install.build", "wheel"]
    with pytest.raises(DeviceError, match=r"(?s)pip wheel.*failed:.*ERROR"):
        machine.wheel()
    assert not cache.exists() or not list(cache.iterdir())


def test_a_pip_that_wants_its_own_environment_gets_it(machine):
    machine.fails = ["--no-build-isolation"]
    assert machine.wheel() == ("in parallel, 0", True)


def test_without_a_source_pip_says_why(machine):
    machine.fails = ["download"]
    with pytest.raises(DeviceError, match=r"pip download .*pycuda==.* failed"):
        machine.wheel()


def test_lines_are_told_at_once_and_errors_kept():
    lines = []
    script = "import sys; print('one', flush=True); print('two'); print('wrong', file=sys.stderr); sys.exit(3)"
    result = pycuda_wheel.run_told([sys.executable, "-c", script], lines.append)
    assert lines == ["one", "two"]
    assert (result.returncode, result.stderr) == (3, "wrong\n")


def test_an_archive_that_is_none(tmp_path):
    (tmp_path / "pycuda-1.tar.gz").write_bytes(b"no")
    with pytest.raises(DeviceError, match=r"pycuda-1\.tar\.gz cannot be unpacked"):
        pycuda_wheel.unpack(tmp_path / "pycuda-1.tar.gz", tmp_path)
