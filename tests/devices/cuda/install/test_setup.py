"""setup.py with a driver, toolkits and a pip that are made here: what is asked for, and what is said."""

import subprocess
from pathlib import Path

import pytest

from vgg16gpu.devices.cuda.install import setup as cuda_setup
from vgg16gpu.devices.cuda.install import wheel as pycuda_wheel
from vgg16gpu.devices.cuda.probe import Bindings, Driver, Gpu, Toolkit
from vgg16gpu.errors import DeviceError

H200 = Gpu("NVIDIA H200", (9, 0), 139 << 30)
WHEEL = f"pycuda-{pycuda_wheel.PYCUDA}-cp312-cp312-linux_x86_64.whl"


def driver(*version):
    return Driver(version, Path("/drivers/libcuda.so.580.65"), (H200,))


class FakeMachine:
    """Stands for the commands and for PyCUDA's wheels: pip keeps a list of what it was asked for, and installs what
    `packaged` says. `loads`: for each installed wheel, whether it does.
    """

    def __init__(self, folder, toolkits=(), packaged=(), fails=None, loads=(True,), kept=False):
        self.folder = folder
        self.toolkits = list(toolkits)
        self.packaged = list(packaged)
        self.fails = fails
        self.loads = list(loads)
        self.kept = kept  # whether there is a wheel in the cache
        self.requests = []
        self.wheels = []  # (root of the toolkit, fresh)
        self.said = []

    def run(self, command):
        words = list(map(str, command))
        if "pip" in words:
            return self.pip(words[words.index("pip") + 1 :])
        text = " ".join(words)
        if "import pycuda" in text:
            good = self.loads[min(len(self.wheels), len(self.loads)) - 1]
            return self.done(words, good, f"{pycuda_wheel.PYCUDA} 13.0", "ImportError: undefined symbol: cuX_v4")
        return self.done(words, True, "13.0.3" if "cuda.bindings" in text else "")

    def pip(self, words):
        self.requests.append([word for word in words if not word.startswith("--disable")])
        if self.fails and any(self.fails in word for word in words):
            return self.done(words, False, "", f"ERROR: no matching distribution for {self.fails}")
        if any(word.startswith("cuda-toolkit") for word in words):
            self.toolkits += self.packaged
        return self.done(words, True)

    def wheel(self, toolkit, folder, *, fresh=False):
        self.wheels.append((toolkit.root, fresh))
        return folder / WHEEL, fresh or not self.kept

    @staticmethod
    def done(words, good, output="", errors=""):
        return subprocess.CompletedProcess(words, 0 if good else 1, output if good else "", "" if good else errors)

    def installer(self, *version):
        return cuda_setup.Installer(
            driver(*version),
            python="python",
            run=self.run,
            find=lambda: tuple(self.toolkits),
            say=self.said.append,
            wheels=self,
        )

    def toolkit(self, name, *version, archs=("sm_90",), headers=("cuda.h", "cudaProfiler.h")):
        include = self.folder / name / "include"
        include.mkdir(parents=True)
        for header in headers:
            (include / header).touch()
        return Toolkit(self.folder / name / "bin" / "nvcc", include, version, archs, name)


def test_a_toolkit_of_the_machine_is_used(tmp_path):
    machine = FakeMachine(tmp_path)
    machine.toolkits = [machine.toolkit("new", 13, 1), machine.toolkit("fits", 12, 9)]
    machine.installer(13, 0).install()
    assert machine.wheels == [(tmp_path / "fits", False)]
    # First everything or nothing: PyCUDA without what it depends on would only look as if it worked.
    (_, wheel, *needs), again = machine.requests
    assert wheel.endswith(WHEEL)
    assert needs == ["numpy", "cuda-bindings<13.1", "--only-binary=cuda-bindings"]
    assert again == ["install", "--force-reinstall", "--no-deps", wheel]
    assert machine.said[-1].endswith("are ready.")


def test_a_kept_wheel_that_does_not_load_is_built_anew(tmp_path):
    machine = FakeMachine(tmp_path, kept=True, loads=(False, True))
    machine.toolkits = [machine.toolkit("fits", 13, 0)]
    machine.installer(13, 0).install()
    assert [fresh for _, fresh in machine.wheels] == [False, True]
    assert any("building it anew" in line for line in machine.said)
    assert machine.said[-1].endswith("are ready.")


def test_only_the_wheel(tmp_path):
    machine = FakeMachine(tmp_path)
    machine.installer(13, 0).prepare()  # no toolkit: that is for the whole installation to solve
    assert machine.wheels == []
    machine.toolkits = [machine.toolkit("fits", 13, 0)]
    machine.installer(13, 0).prepare()
    assert machine.wheels == [(tmp_path / "fits", False)]
    assert machine.requests == []


def test_without_a_toolkit_the_packaged_one_no_newer_than_the_driver(tmp_path):
    machine = FakeMachine(tmp_path)
    machine.packaged = [machine.toolkit("nvidia/cu13", 13, 0)]
    machine.installer(13, 0).install()
    assert machine.requests[0] == ["install", "cuda-toolkit[nvcc,cccl,profiler,sanitizer]>=13,<13.1"]
    assert machine.wheels == [(tmp_path / "nvidia" / "cu13", False)]


def test_toolkits_that_do_not_fit_are_named(tmp_path):
    machine = FakeMachine(tmp_path)
    machine.toolkits = [
        machine.toolkit("newer", 13, 2),
        machine.toolkit("bare", 13, 0, headers=("cuda.h",)),
        machine.toolkit("old", 11, 4, archs=("sm_80",)),
    ]
    machine.packaged = [machine.toolkit("nvidia/cu13", 13, 0)]
    machine.installer(13, 0).install()
    text = "\n".join(machine.said)
    assert "newer): it is newer than the driver, which runs CUDA 13.0" in text
    assert "old): its nvcc does not know sm_90" in text
    if not Path("/usr/include/cudaProfiler.h").exists():
        assert "bare): it has no" in text


def test_cuda_12_has_no_packaged_compiler(tmp_path):
    machine = FakeMachine(tmp_path)
    with pytest.raises(DeviceError, match=r"CUDA toolkit 12\.4 or older .* or a driver for CUDA 13\.0 or newer"):
        machine.installer(12, 4).install()
    assert machine.requests == []


def test_no_toolkit_and_no_index(tmp_path):
    machine = FakeMachine(tmp_path, fails="cuda-toolkit")
    with pytest.raises(DeviceError, match=r"(?s)no matching distribution.*set CUDA_HOME to it, or let pip reach"):
        machine.installer(13, 0).install()


def test_the_packaged_toolkit_does_not_work(tmp_path):
    machine = FakeMachine(tmp_path)
    machine.packaged = [machine.toolkit("nvidia/cu13", 13, 0, archs=("sm_75",))]
    with pytest.raises(DeviceError, match=r"no usable CUDA toolkit: .*does not know sm_90"):
        machine.installer(13, 0).install()


def test_a_pip_that_fails_shows_the_end_of_what_it_said(tmp_path):
    machine = FakeMachine(tmp_path, fails=WHEEL)
    machine.toolkits = [machine.toolkit("fits", 13, 0)]
    with pytest.raises(DeviceError, match=r"(?s)pip install.*failed:.*ERROR"):
        machine.installer(13, 0).install()


@pytest.mark.parametrize("kept", [True, False])
def test_a_build_that_does_not_load_is_an_error(tmp_path, kept):
    machine = FakeMachine(tmp_path, loads=(False, False), kept=kept)
    machine.toolkits = [machine.toolkit("fits", 13, 0)]
    with pytest.raises(DeviceError, match="does not load: ImportError: undefined symbol: cuX_v4"):
        machine.installer(13, 0).install()


@pytest.mark.parametrize(
    ("version", "toolkit", "bindings"),
    [
        ((13, 0), ">=13,<13.1", "<13.1"),
        ((13, 9), ">=13,<13.10", "<13.10"),
        ((14, 2), ">=13,<14.3", "<14.3"),
        ((12, 8), None, "<12.9"),
    ],
)
def test_requirements_follow_the_driver(version, toolkit, bindings):
    requirement = cuda_setup.toolkit_requirement(driver(*version))
    assert requirement is None if toolkit is None else requirement.endswith(f"]{toolkit}")
    assert cuda_setup.bindings_requirement(driver(*version)) == f"cuda-bindings{bindings}"


def set_machine(monkeypatch, found, state):
    monkeypatch.setattr(cuda_setup, "probe_driver", lambda: found)
    monkeypatch.setattr(cuda_setup, "probe_bindings", lambda: state)
    monkeypatch.setattr(cuda_setup, "missing_headers", lambda: "")


def test_main_without_a_driver_installs_nothing(monkeypatch, capsys):
    set_machine(monkeypatch, None, Bindings(pycuda_problem="absent"))
    assert cuda_setup.main([]) == 0
    assert "No NVIDIA driver" in capsys.readouterr().out


def test_main_leaves_what_works(monkeypatch, capsys):
    monkeypatch.setattr(cuda_setup, "Installer", None)
    set_machine(monkeypatch, driver(13, 0), Bindings("2026.1", "13.0", "", "13.0.3"))
    assert cuda_setup.main([]) == 0
    assert "are ready" in capsys.readouterr().out


def refuse(_):
    raise DeviceError("install this")


def test_main_leaves_the_message_to_the_call_that_installs(monkeypatch, capsys):
    set_machine(monkeypatch, driver(12, 4), Bindings(pycuda_problem="absent"))
    monkeypatch.setattr(cuda_setup.Installer, "prepare", refuse)
    assert cuda_setup.main(["--wheel"]) == 1
    assert capsys.readouterr().err == ""


def test_main_builds_again_when_forced(monkeypatch):
    asked = []
    set_machine(monkeypatch, driver(13, 0), Bindings("2026.1", "13.0", "", "13.0.3"))
    monkeypatch.setattr(cuda_setup.Installer, "install", lambda _, fresh: asked.append(fresh))
    assert cuda_setup.main(["--force"]) == 0
    assert asked == [True]


def test_main_needs_the_headers_of_python(monkeypatch, capsys):
    set_machine(monkeypatch, driver(13, 0), Bindings(pycuda_problem="absent"))
    monkeypatch.setattr(cuda_setup, "missing_headers", lambda: "Python.h is missing: install python3-dev")
    assert cuda_setup.main([]) == 1
    assert "python3-dev" in capsys.readouterr().err
