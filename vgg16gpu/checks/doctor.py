"""What this machine has, what is wrong with it, and how to mend that.

`survey` looks, `diagnose` judges what was seen: the latter is pure, so every verdict can be tested on any machine.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path

import numpy as np

from vgg16gpu.compiler.op_kernels.general.elementwise import relu_step
from vgg16gpu.compiler.op_kernels.mma import FIRST_WITH_MMA
from vgg16gpu.compiler.op_kernels.wgmma import has_wgmma
from vgg16gpu.devices import open_device
from vgg16gpu.devices.base import Device
from vgg16gpu.devices.cache import KernelCache, cache_dir, refusal
from vgg16gpu.devices.cpu.compiler import cpu_name, find_compiler
from vgg16gpu.devices.cuda.driver import VARIABLE, chosen_package
from vgg16gpu.devices.cuda.nvrtc import find_nvrtc
from vgg16gpu.devices.cuda.probe import (
    Bindings,
    Driver,
    Gpu,
    Runner,
    Toolkit,
    compile_problem,
    dotted,
    find_toolkits,
    objection,
    probe_bindings,
    probe_driver,
    run_quietly,
)
from vgg16gpu.devices.platforms import machine_memory, usable_cores
from vgg16gpu.errors import Error
from vgg16gpu.program.types import Arena, DeviceFacts, Layout, Pointer, TensorDesc

GIB = 1 << 30
ENOUGH_MEMORY = 5 * GIB // 2  # what VGG16 takes at its peak on the cpu device
CACHE_KINDS = ("cpu", "cuda")
SETUP_COMMAND = "python -m vgg16gpu.cuda_setup"


class State(Enum):
    """The verdict on one thing."""

    OK = "ok"
    ABSENT = "absent"  # not there, and nothing here needs it
    WRONG = "wrong"


@dataclass(frozen=True)
class Check:
    """One line of the report: a thing, the verdict, what was found, what to do."""

    name: str
    state: State
    found: str
    remedy: str = ""


@dataclass(frozen=True)
class DeviceTrial:
    """The device that was opened and why, and what went wrong when it was used, or ""."""

    device: str
    reason: str
    problem: str = ""


@dataclass(frozen=True)
class Machine:
    """What was found."""

    system: str
    architecture: str
    python: str
    driver: Driver | None
    toolkits: tuple[Toolkit, ...]  # the first one is used
    toolkit_problem: str  # of the first one
    bindings: Bindings
    nvrtc: str  # its version and place, or ""
    package: str  # which drives cards: pycuda or bindings
    compiler: str  # command and version, or "" with the problem
    compiler_problem: str
    processor: str
    memory_total: int  # bytes
    memory_free: int
    cache: Path
    cache_entries: int
    cache_nbytes: int
    cache_problem: str
    trial: DeviceTrial


@dataclass(frozen=True)
class DoctorReport:
    """The verdicts on a machine."""

    checks: tuple[Check, ...]
    trial: DeviceTrial

    @property
    def healthy(self) -> bool:
        """Return whether the device that was asked for works; other things may still be wrong."""
        return not self.trial.problem


def survey(device: str = "auto") -> Machine:
    """Look at this machine. Opens the device and runs a small kernel on it."""
    driver = probe_driver()
    toolkits = find_toolkits()
    compiler, compiler_problem = _compiler()
    total, free = machine_memory()
    entries = [entry for kind in CACHE_KINDS for entry in KernelCache(kind).entries()]
    return Machine(
        system=platform.system(),
        architecture=platform.machine(),
        python=platform.python_version(),
        driver=driver,
        toolkits=toolkits,
        toolkit_problem=toolkit_problem(toolkits[0], driver) if toolkits else "",
        bindings=probe_bindings(),
        nvrtc=_nvrtc(driver),
        package=_package(),
        compiler=compiler,
        compiler_problem=compiler_problem,
        processor=f"{cpu_name()}, {usable_cores()} cores",
        memory_total=total,
        memory_free=free,
        cache=cache_dir(),
        cache_entries=len(entries),
        cache_nbytes=sum(entry.nbytes for entry in entries),
        cache_problem=refusal(cache_dir()) or "",
        trial=try_device_apart(device),
    )


def toolkit_problem(toolkit: Toolkit, driver: Driver | None) -> str:
    """Return why a toolkit cannot compile kernels here, or ""."""
    return (objection(toolkit, driver, linked=False) if driver else "") or compile_problem(toolkit)


def _nvrtc(driver: Driver | None) -> str:
    """Describe the NVRTC that would compile, or return "" where there is none that works."""
    found = find_nvrtc(driver.version[0] if driver else None)
    try:
        return f"NVRTC {dotted(found.version)} at {found.library}" if found else ""
    except Error:
        return ""


def _package() -> str:
    """Return the package that drives cards; where VGG16GPU_CUDA is wrong the trial of the device says so."""
    try:
        return chosen_package()
    except Error:
        return "pycuda"


def _compiler() -> tuple[str, str]:
    try:
        compiler = find_compiler()
    except Error as error:
        return "", str(error)
    return f"{' '.join(compiler.command)}: {compiler.version.splitlines()[0]}", ""


def try_device(name: str, opener: Callable[[str], tuple[Device, str]] = open_device) -> DeviceTrial:
    """Open a device, compile one kernel for it, run that, and look at the result."""
    try:
        device, reason = opener(name)
    except Error as error:
        return DeviceTrial("none", "", str(error))
    try:
        problem = "" if relu_is_right(device) else "the device computes a wrong result: max(x, 0) of eight numbers"
    except Error as error:
        problem = str(error)
    finally:
        device.close()
    return DeviceTrial(device.facts.kind, reason, problem)


def try_device_apart(name: str, run: Runner = run_quietly) -> DeviceTrial:
    """Run `try_device` in a process of its own: a broken driver or build may end the process, but not this one."""
    result = run([sys.executable, "-m", "vgg16gpu.checks.doctor", name])
    try:
        return DeviceTrial(**json.loads(result.stdout))
    except (ValueError, TypeError):
        lines = [line.strip() for line in result.stderr.splitlines() if line.strip()]
        cause = f"signal {-result.returncode}" if result.returncode < 0 else f"exit status {result.returncode}"
        return DeviceTrial(
            "none", "", f"the process that tried it ended with {cause}" + (f": {lines[-1]}" if lines else "")
        )


def relu_is_right(device: Device) -> bool:
    """Run the ReLU kernel on eight numbers and compare. Raises DeviceError or KernelError."""
    values = np.array([-2, -1, -0.5, 0, 0.5, 1, 2, 3], dtype=np.float32)
    result = np.full_like(values, np.nan)
    source = TensorDesc("x", values.shape, Layout.PLAIN, Pointer(Arena.ACTIVATIONS, 0))
    target = TensorDesc("y", values.shape, Layout.PLAIN, Pointer(Arena.ACTIVATIONS, 256))
    step = relu_step(source, target, ("y",))
    device.build([step.kernel])
    address = device.allocate(512)
    try:
        run = device.bind([step], {Arena.ACTIVATIONS: address})
        device.copy_in(address, values)
        device.copy_in(address + target.pointer.offset, result)  # fresh memory may hold the answer of an earlier run
        run()
        device.copy_out(result, address + target.pointer.offset)
        device.synchronize()
        device.unbind(run)
    finally:
        device.free(address)
    return bool(np.array_equal(result, np.maximum(values, 0)))


def diagnose(machine: Machine) -> DoctorReport:
    """Judge what was found."""
    checks = (
        _system(machine),
        _driver(machine),
        *_gpus(machine),
        _toolkit(machine),
        _pycuda(machine),
        _bindings(machine),
        _cpp(machine),
        _memory(machine),
        _cache(machine),
        _device(machine),
    )
    return DoctorReport(checks, machine.trial)


def _system(machine: Machine) -> Check:
    found = f"{machine.system} {machine.architecture}, Python {machine.python}, {machine.processor}"
    if machine.system == "Linux" and machine.architecture in ("x86_64", "aarch64"):
        return Check("system", State.OK, found)
    return Check("system", State.WRONG, found, "use Linux on x86-64 or aarch64 (on Windows, inside WSL 2)")


def _driver(machine: Machine) -> Check:
    driver = machine.driver
    if driver is None:
        return Check("NVIDIA driver", State.ABSENT, "none: the cpu device is used")
    found = f"runs CUDA {dotted(driver.version)} and older ({driver.library})"
    if driver.gpus:
        return Check("NVIDIA driver", State.OK, found)
    remedy = "see that nvidia-smi lists the card; in a container, pass it in (docker run --gpus all); "
    return Check("NVIDIA driver", State.WRONG, f"{found}; {driver.problem}", remedy + "check CUDA_VISIBLE_DEVICES")


def _gpus(machine: Machine) -> list[Check]:
    checks = []
    for number, gpu in enumerate(_cards(machine)):
        families = kernel_families(gpu, tensor_maps=bool(machine.bindings.cuda_bindings))
        found = f"{gpu.name}, {gpu.arch}, {gpu.memory_total / GIB:.1f} GiB; kernels {', '.join(families)}"
        checks.append(Check(f"GPU {number}", State.OK, found))
    return checks


def _cards(machine: Machine) -> tuple[Gpu, ...]:
    return machine.driver.gpus if machine.driver else ()


def kernel_families(gpu: Gpu, *, tensor_maps: bool) -> tuple[str, ...]:
    """Return the kernel families that a card can run, the best first. `tensor_maps`: whether cuda-bindings loads."""
    facts = DeviceFacts("cuda", gpu.name, 1, gpu.compute_capability, 0, gpu.memory_total, 0, tensor_maps)
    has_mma = gpu.compute_capability >= FIRST_WITH_MMA
    return (*("wgmma",) * has_wgmma(facts), *("mma",) * has_mma, "ffma")


def _toolkit(machine: Machine) -> Check:
    if machine.nvrtc and (machine.package == "bindings" or not machine.toolkits):
        return Check("CUDA toolkit", State.OK, f"not needed: {machine.nvrtc} compiles")
    if machine.toolkits and not machine.toolkit_problem:
        return Check("CUDA toolkit", State.OK, f"{machine.toolkits[0]}; {machine.toolkits[0].nvcc} compiles")
    if machine.toolkits:
        found = f"{machine.toolkits[0]}: {machine.toolkit_problem}"
        others = "".join(f"; there is also {toolkit}" for toolkit in machine.toolkits[1:])
        remedy = f"set CUDA_HOME to a toolkit that fits{others}"
    else:
        found = "no nvcc in CUDA_HOME, CUDA_ROOT, the environment, PATH or /usr/local/cuda"
        remedy = f"run {SETUP_COMMAND}"
    if machine.driver is None:
        return Check("CUDA toolkit", State.ABSENT, found)
    return Check("CUDA toolkit", State.WRONG, found, remedy)


def _pycuda(machine: Machine) -> Check:
    state = machine.bindings
    if machine.package == "bindings":
        why = f"chosen by {VARIABLE}" if state.pycuda else "PyCUDA is not installed"
        return Check("PyCUDA", State.OK, f"not used: cuda-bindings drives the card, NVRTC compiles ({why})")
    if not state.pycuda:
        return _missing_package("PyCUDA", machine, state.pycuda_problem)
    found = f"{state.pycuda}, built for CUDA {state.built_for}"
    return Check("PyCUDA", State.OK, found)


def _bindings(machine: Machine) -> Check:
    state = machine.bindings
    if state.cuda_bindings:
        return Check("cuda-bindings", State.OK, state.cuda_bindings)
    check = _missing_package("cuda-bindings", machine, state.cuda_bindings_problem)
    lost = "CUDA graphs"
    if any("wgmma" in kernel_families(gpu, tensor_maps=True) for gpu in _cards(machine)):
        lost += " and wgmma kernels, the fastest of this card,"
    return replace(check, found=f"{check.found}: {lost} need it") if _cards(machine) else check


def _missing_package(name: str, machine: Machine, problem: str) -> Check:
    if machine.driver is None:
        return Check(name, State.ABSENT, problem)
    return Check(name, State.WRONG, problem, f"run {SETUP_COMMAND} --force")


def _cpp(machine: Machine) -> Check:
    if machine.compiler:
        return Check("C++ compiler", State.OK, machine.compiler)
    if machine.package == "bindings" and machine.trial.device == "cuda":
        return Check("C++ compiler", State.ABSENT, "none: only the cpu device and PyCUDA's installation need one")
    return Check("C++ compiler", State.WRONG, machine.compiler_problem, "apt install g++, or dnf install gcc-c++")


def _memory(machine: Machine) -> Check:
    found = f"{machine.memory_free / GIB:.1f} of {machine.memory_total / GIB:.1f} GiB available"
    if machine.memory_free >= ENOUGH_MEMORY:
        return Check("memory", State.OK, found)
    remedy = f"VGG16 takes up to {ENOUGH_MEMORY / GIB:.1f} GiB: close other programs"
    return Check("memory", State.WRONG, found, remedy)


def _cache(machine: Machine) -> Check:
    found = f"{machine.cache}: {machine.cache_entries} kernels, {machine.cache_nbytes / 1e6:.1f} MB"
    if not machine.cache_problem:
        return Check("kernel cache", State.OK, found)
    remedy = "set VGG16GPU_CACHE to a folder of your own; until then every process compiles its kernels anew"
    return Check("kernel cache", State.WRONG, f"{machine.cache} {machine.cache_problem}", remedy)


def _device(machine: Machine) -> Check:
    trial = machine.trial
    if not trial.problem:
        return Check("device", State.OK, f"{trial.reason}; a test kernel ran")
    found = trial.reason or "none can be opened"
    remedy = "mend what is wrong above"
    if trial.device == "cuda":
        remedy += ", or use --device cpu"
    return Check("device", State.WRONG, f"{found}: {trial.problem}", remedy)


if __name__ == "__main__":  # the other side of `try_device_apart`
    print(json.dumps(asdict(try_device(sys.argv[1]))))
