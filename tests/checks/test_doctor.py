"""checks/doctor.py: every verdict, on machines described here; and the commands `doctor` and `cache` on this one."""

import dataclasses
import json
import subprocess
from pathlib import Path

import click.testing
import pytest

from vgg16gpu.checks import doctor
from vgg16gpu.checks.doctor import DeviceTrial, Machine, State
from vgg16gpu.cli.cache import cache_command
from vgg16gpu.cli.doctor import doctor_command
from vgg16gpu.devices import open_device, platforms
from vgg16gpu.devices.cuda.probe import Bindings, Driver, Gpu, Toolkit
from vgg16gpu.errors import DeviceError

H200 = Gpu("NVIDIA H200", (9, 0), 139 << 30)
DRIVER = Driver((13, 0), Path("/lib/libcuda.so.1"), (H200,))
BLIND_DRIVER = dataclasses.replace(DRIVER, gpus=(), problem="the driver sees no GPU")
TOOLKIT = Toolkit(Path("/cuda/bin/nvcc"), Path("/cuda/include"), (13, 0), ("sm_90",), "CUDA_HOME")

CPU_MACHINE = Machine(
    system="Linux",
    architecture="aarch64",
    python="3.12.1",
    driver=None,
    toolkits=(),
    toolkit_problem="",
    bindings=Bindings(pycuda_problem="No module named 'pycuda'", cuda_bindings_problem="No module named 'cuda'"),
    nvrtc="",
    package="pycuda",
    compiler="/usr/bin/g++: g++ 12.2.0",
    compiler_problem="",
    processor="some processor, 2 cores",
    memory_total=8 << 30,
    memory_free=6 << 30,
    cache=Path("/home/me/.cache/vgg16gpu"),
    cache_entries=3,
    cache_nbytes=4_000_000,
    cache_problem="",
    trial=DeviceTrial("cpu", "cpu: no NVIDIA driver"),
)
GPU_MACHINE = dataclasses.replace(
    CPU_MACHINE,
    driver=DRIVER,
    toolkits=(TOOLKIT,),
    bindings=Bindings("2026.1", "13.0", "", "13.0.3"),
    trial=DeviceTrial("cuda", "cuda: NVIDIA H200"),
)


def checks(machine, **changes):
    report = doctor.diagnose(dataclasses.replace(machine, **changes))
    return {check.name: check for check in report.checks}


def wrong(machine, **changes):
    """The names of what is wrong."""
    return [name for name, check in checks(machine, **changes).items() if check.state is State.WRONG]


def test_a_sound_machine_without_a_gpu():
    found = checks(CPU_MACHINE)
    assert wrong(CPU_MACHINE) == []
    assert found["NVIDIA driver"].state is State.ABSENT
    assert found["PyCUDA"].state is State.ABSENT
    assert found["device"].state is State.OK
    assert doctor.diagnose(CPU_MACHINE).healthy


def test_a_sound_machine_with_a_gpu():
    found = checks(GPU_MACHINE)
    assert {check.state for check in found.values()} == {State.OK}
    assert found["GPU 0"].found == "NVIDIA H200, sm_90, 139.0 GiB; kernels wgmma, mma, ffma"
    assert found["PyCUDA"].found == "2026.1, built for CUDA 13.0"


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("changes", "name", "found", "remedy"),
    [
        ({"driver": BLIND_DRIVER}, "NVIDIA driver", "sees no GPU", "nvidia-smi"),
        ({"toolkits": ()}, "CUDA toolkit", "no nvcc", "vgg16gpu.cuda_setup"),
        ({"toolkit_problem": "its nvcc does not know sm_90"}, "CUDA toolkit", "does not know sm_90", "CUDA_HOME"),
        ({"bindings": Bindings("", "", "undefined symbol: cuX", "13.0.3")}, "PyCUDA", "undefined symbol", "--force"),
        ({"bindings": Bindings("2026.1", "13.0", "", "", "No module")}, "cuda-bindings", "No module", "--force"),
        ({"compiler": "", "compiler_problem": "none"}, "C++ compiler", "none", "apt install g++"),
        ({"memory_free": 1 << 30}, "memory", "1.0 of 8.0 GiB", "close other programs"),
        ({"cache_problem": "is not writable"}, "kernel cache", "is not writable", "VGG16GPU_CACHE"),
        ({"system": "Darwin"}, "system", "Darwin", "Linux"),
        ({"architecture": "riscv64"}, "system", "riscv64", "x86-64 or aarch64"),
        ({"trial": DeviceTrial("cuda", "cuda: H200", "launch failed")}, "device", "launch failed", "--device cpu"),
        ({"trial": DeviceTrial("none", "", "no C++ compiler")}, "device", "no C++ compiler", "mend"),
    ],
)  # fmt: skip
def test_each_fault_is_named_alone_with_its_remedy(changes, name, found, remedy):
    assert wrong(GPU_MACHINE, **changes) == [name]
    check = checks(GPU_MACHINE, **changes)[name]
    assert found in check.found
    assert remedy in check.remedy


def test_a_card_without_compilers():
    bindings = Bindings(pycuda_problem="No module named 'pycuda'", cuda_bindings="13.0.3")
    nothing = {"toolkits": (), "bindings": bindings, "compiler": "", "compiler_problem": "none"}
    machine = dataclasses.replace(GPU_MACHINE, package="bindings", nvrtc="NVRTC 13.0 at /lib/libnvrtc.so.13", **nothing)
    assert wrong(machine) == []
    found = checks(machine)
    assert found["PyCUDA"].found.endswith("NVRTC compiles (PyCUDA is not installed)")
    assert found["CUDA toolkit"].found == "not needed: NVRTC 13.0 at /lib/libnvrtc.so.13 compiles"
    assert wrong(machine, nvrtc="") == ["CUDA toolkit"]


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("capability", "families"),
    [
        ((6, 1), "ffma"),
        ((7, 5), "mma, ffma"),
        ((8, 6), "mma, ffma"),
        ((9, 0), "wgmma, mma, ffma"),
        ((12, 0), "mma, ffma"),
    ],
)
def test_the_kernels_that_a_card_can_run(capability, families):
    driver = dataclasses.replace(DRIVER, gpus=(dataclasses.replace(H200, compute_capability=capability),))
    assert checks(GPU_MACHINE, driver=driver)["GPU 0"].found.endswith(f"; kernels {families}")
    without = checks(GPU_MACHINE, driver=driver, bindings=Bindings("2026.1", "13.0", "", "", "No module named 'cuda'"))
    assert without["GPU 0"].found.endswith(f"; kernels {families.removeprefix('wgmma, ')}")
    found = without["cuda-bindings"]
    assert found.found.startswith("No module named 'cuda': CUDA graphs")
    assert ("wgmma kernels" in found.found) == ("wgmma" in families)
    assert found.remedy == "run python -m vgg16gpu.cuda_setup --force"


def test_another_toolkit_is_pointed_at():
    other = dataclasses.replace(TOOLKIT, include=Path("/other/include"), origin="nvcc on PATH")
    check = checks(GPU_MACHINE, toolkits=(TOOLKIT, other), toolkit_problem="it is too old")["CUDA toolkit"]
    assert "there is also CUDA 13.0 at /other" in check.remedy


def test_memory_and_cores_are_what_a_container_may_use(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text(f"{1 << 30}\n")
    monkeypatch.setattr(platforms, "_CGROUPS", tmp_path)
    monkeypatch.setattr(doctor, "usable_cores", lambda: 3)
    monkeypatch.setattr(doctor, "try_device_apart", lambda _: DeviceTrial("cpu", "cpu"))
    monkeypatch.setattr(doctor, "find_toolkits", tuple)
    monkeypatch.setattr(doctor, "probe_bindings", Bindings)
    machine = doctor.survey()
    assert machine.memory_total == 1 << 30
    assert machine.memory_free <= 1 << 30
    assert machine.processor.endswith(", 3 cores")
    assert checks(machine)["memory"].state is State.WRONG


def test_try_device_runs_a_kernel():
    trial = doctor.try_device("cpu")
    assert trial.device == "cpu"
    assert trial.problem == ""


def test_try_device_notices_a_wrong_result(monkeypatch):
    device, reason = open_device("cpu")
    monkeypatch.setattr(device, "bind", lambda *_: lambda: None)  # the kernel does not run
    assert "wrong result" in doctor.try_device("cpu", lambda _: (device, reason)).problem


def test_the_trial_gives_its_launch_back(monkeypatch):
    device, _ = open_device("cpu")
    given_back = []
    monkeypatch.setattr(device, "unbind", given_back.append)
    assert doctor.relu_is_right(device)
    assert len(given_back) == 1
    device.close()


def test_try_device_reports_a_device_that_fails(monkeypatch):
    device, reason = open_device("cpu")
    monkeypatch.setattr(device, "allocate", refuse)
    assert doctor.try_device("cpu", lambda _: (device, reason)).problem == "no memory"


@pytest.mark.parametrize(("code", "text"), [(-11, "signal 11"), (3, "exit status 3: Fatal: no stack")])
def test_a_device_that_ends_the_process(code, text):
    done = subprocess.CompletedProcess([], code, "", "Fatal: no stack\n" if code > 0 else "")
    trial = doctor.try_device_apart("cuda", lambda _: done)
    assert trial == DeviceTrial("none", "", f"the process that tried it ended with {text}")


def refuse(_):
    raise DeviceError("no memory")


def run(command, *arguments):
    return click.testing.CliRunner().invoke(command, arguments)


@pytest.fixture
def surveyed(monkeypatch):
    """`doctor` on a described machine instead of this one."""
    return lambda machine: monkeypatch.setattr("vgg16gpu.cli.doctor.survey", lambda _: machine)


@pytest.mark.parametrize(("problem", "code"), [("", 0), ("it burns", 1)])
def test_doctor_exit_code_and_json(surveyed, problem, code):
    surveyed(dataclasses.replace(GPU_MACHINE, trial=DeviceTrial("cuda", "cuda: H200", problem)))
    result = run(doctor_command, "--json")
    assert result.exit_code == code
    answer = json.loads(result.stdout)
    assert answer["healthy"] is (code == 0)
    assert answer["device"] == "cuda"
    assert {check["name"] for check in answer["checks"]} >= {"NVIDIA driver", "CUDA toolkit", "GPU 0", "kernel cache"}
    assert {"name", "state", "found", "remedy"} == set(answer["checks"][0])


def test_doctor_tries_the_device_that_is_named():
    result = run(doctor_command, "--device", "cpu", "--json")
    answer = json.loads(result.stdout)
    assert (result.exit_code, answer["device"], answer["reason"]) == (0, "cpu", "cpu: as asked")
    assert run(doctor_command, "--device", "tpu").exit_code == 2


def test_doctor_prints_remedies(surveyed):
    surveyed(dataclasses.replace(GPU_MACHINE, compiler="", compiler_problem="no [red] compiler"))
    result = run(doctor_command)
    assert result.exit_code == 0
    assert "no [red] compiler" in result.stdout  # text is not taken for markup
    assert "-> apt install g++" in result.stdout


def test_piped_output_is_not_cut_at_80_columns(surveyed, tmp_path, monkeypatch):
    where = "/" + "/".join(["folder"] * 12)
    monkeypatch.setenv("COLUMNS", "80")
    surveyed(dataclasses.replace(GPU_MACHINE, processor=where))
    assert where in run(doctor_command).stdout
    monkeypatch.setenv("VGG16GPU_CACHE", f"{tmp_path}/{where}")
    assert where in run(cache_command).stdout


def test_cache_shows_and_clears(tmp_path, monkeypatch):
    folder = tmp_path / "kernels"
    monkeypatch.setenv("VGG16GPU_CACHE", str(folder))
    monkeypatch.setenv("VGG16GPU_OPTIMIZE", "0")  # compiles sooner
    assert json.loads(run(cache_command, "--json").stdout)["kinds"]["cpu"] == {"entries": 0, "nbytes": 0}
    assert doctor.try_device("cpu").problem == ""
    before = json.loads(run(cache_command, "--json").stdout)
    assert before["path"] == str(folder)
    assert before["kinds"]["cpu"]["entries"] == 1
    assert before["kinds"]["cpu"]["nbytes"] > 1000
    shown = run(cache_command)
    assert str(folder) in shown.stdout
    assert shown.exit_code == 0
    assert "Removed 1 files." in run(cache_command, "--clear").stdout
    assert json.loads(run(cache_command, "--json").stdout)["kinds"]["cpu"] == {"entries": 0, "nbytes": 0}
