"""What a machine has of CUDA: the driver and its cards, toolkits, PyCUDA and cuda-bindings. Looks, changes nothing.

Standard library only, so that it runs in an environment that has nothing yet.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

DRIVER_LIBRARY = "libcuda.so.1"

Version: TypeAlias = tuple[int, int]
Runner: TypeAlias = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]

NO_GPU = "the driver sees no GPU"  # what a machine may well be like
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76  # CUdevice_attribute
_NAME_NBYTES = 256


@dataclass(frozen=True)
class Gpu:
    """One card, as the driver names it."""

    name: str
    compute_capability: Version
    memory_total: int  # bytes

    @property
    def arch(self) -> str:
        """Its architecture in nvcc's words: "sm_90"."""
        return "sm_{}{}".format(*self.compute_capability)


@dataclass(frozen=True)
class Driver:
    """The NVIDIA driver: the newest CUDA version it runs, its library, and its cards."""

    version: Version
    library: Path
    gpus: tuple[Gpu, ...]
    problem: str = ""  # why there are no cards


@dataclass(frozen=True)
class Toolkit:
    """A CUDA toolkit: its compiler, where the headers are, its version, the architectures it compiles for."""

    nvcc: Path
    include: Path
    version: Version
    archs: tuple[str, ...]
    origin: str  # how it was found: "CUDA_HOME", "nvcc on PATH", ...

    @property
    def root(self) -> Path:
        """Its folder, as CUDA_HOME would name it."""
        return self.include.parent

    def __str__(self) -> str:
        return f"CUDA {dotted(self.version)} at {self.root} ({self.origin})"


def dotted(version: Version) -> str:
    """A version as people write it."""
    return "{}.{}".format(*version)


# The driver


def probe_driver(library: str = DRIVER_LIBRARY) -> Driver | None:
    """What the driver says of itself and of its cards; None if it is not installed. Creates no context."""
    try:
        cuda = ctypes.CDLL(library)
        number = ctypes.c_int()
        if cuda.cuDriverGetVersion(ctypes.byref(number)) != 0:
            return None
    except (OSError, AttributeError):  # no such library, or something else of this name
        return None
    gpus, problem = _probe_gpus(cuda)
    return Driver((number.value // 1000, number.value % 1000 // 10), _loaded_path(library), gpus, problem)


def driver_major(library: str = DRIVER_LIBRARY) -> int | None:
    """Return the major version of CUDA that the driver runs; None without one. Touches no card."""
    number = ctypes.c_int()
    try:
        failed = ctypes.CDLL(library).cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return None
    return None if failed else number.value // 1000


def _probe_gpus(cuda: ctypes.CDLL) -> tuple[tuple[Gpu, ...], str]:
    code = cuda.cuInit(0)
    if code:
        return (
            (),
            NO_GPU if code == _NO_DEVICE else f"the driver does not start: {_explain(cuda, code)}",
        )
    count = ctypes.c_int()
    cuda.cuDeviceGetCount(ctypes.byref(count))
    gpus = tuple(_probe_gpu(cuda, ordinal) for ordinal in range(count.value))
    return gpus, "" if gpus else NO_GPU


def _probe_gpu(cuda: ctypes.CDLL, ordinal: int) -> Gpu:
    device, memory, name = ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(_NAME_NBYTES)
    major, minor = ctypes.c_int(), ctypes.c_int()
    cuda.cuDeviceGet(ctypes.byref(device), ordinal)
    cuda.cuDeviceGetName(name, _NAME_NBYTES, device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    cuda.cuDeviceGetAttribute(ctypes.byref(major), _CAPABILITY_MAJOR, device)
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), _CAPABILITY_MINOR, device)
    return Gpu(name.value.decode(errors="replace"), (major.value, minor.value), memory.value)


def _explain(cuda: ctypes.CDLL, code: int) -> str:
    text = ctypes.c_char_p()
    known = cuda.cuGetErrorString(code, ctypes.byref(text)) == 0 and text.value
    return f"{text.value.decode(errors='replace')} (error {code})" if known and text.value else f"error {code}"


def _loaded_path(library: str) -> Path:
    """Where the loader found a library: the linker needs the file, and the loader's search path is its own business."""
    name = Path(library).name
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
            path = Path(line.split(maxsplit=5)[-1])
            if path.name == name or path.name.startswith("libcuda.so."):
                return path
    return Path(library)


# The toolkit


def run_quietly(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a short command and keep what it says; one that cannot be started has return code 127."""
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(list(command), 127, "", str(error))


def nvcc_candidates(
    environ: Mapping[str, str] = os.environ, site: Path | None = None, default: Path = Path("/usr/local/cuda")
) -> Iterator[tuple[str, Path]]:
    """Where an nvcc may be, as (origin, path), in the order in which they are taken.

    One among the Python packages of this environment was put there for it, so it comes before what the system has.
    """
    for variable in ("CUDA_HOME", "CUDA_ROOT"):
        if environ.get(variable):
            yield variable, Path(environ[variable], "bin", "nvcc")
    site = site or Path(sysconfig.get_path("platlib"))
    for folder in sorted(site.glob("nvidia/cu[0-9]*"), reverse=True):
        yield "Python packages", folder / "bin" / "nvcc"
    if on_path := shutil.which("nvcc", path=environ.get("PATH")):
        yield "nvcc on PATH", Path(on_path)
    yield str(default), default / "bin" / "nvcc"


def find_toolkits(
    environ: Mapping[str, str] = os.environ,
    site: Path | None = None,
    default: Path = Path("/usr/local/cuda"),
    run: Runner = run_quietly,
) -> tuple[Toolkit, ...]:
    """Every CUDA toolkit in sight, in the order of `nvcc_candidates`, each once."""
    found: dict[Path, Toolkit] = {}
    for origin, nvcc in nvcc_candidates(environ, site, default):
        toolkit = inspect_toolkit(nvcc, origin, run) if nvcc.is_file() else None
        if toolkit:
            found.setdefault(toolkit.include.resolve(), toolkit)
    return tuple(found.values())


def inspect_toolkit(nvcc: Path, origin: str, run: Runner = run_quietly) -> Toolkit | None:
    """The toolkit that an nvcc belongs to; None if it does not answer."""
    version = re.search(r"release (\d+)\.(\d+)", run([str(nvcc), "--version"]).stdout)
    if not version:
        return None
    archs = re.findall(r"sm_\d+\w*", run([str(nvcc), "--list-gpu-code"]).stdout)
    major, minor = version.groups()
    return Toolkit(nvcc, _include_dir(nvcc, run), (int(major), int(minor)), tuple(archs), origin)


def _include_dir(nvcc: Path, run: Runner) -> Path:
    """The folder of cuda.h. nvcc itself is asked: it may be a link, or a script that starts another one."""
    settings = run([str(nvcc), "--dryrun", "-E", "-x", "cu", os.devnull]).stderr
    roots = [Path(top) for top in re.findall(r"^#\$ TOP=(.+)$", settings, re.MULTILINE)] + [nvcc.resolve().parents[1]]
    named = [Path(flag[2:]) for line in re.findall(r"INCLUDES=(.*)", settings) for flag in shlex.split(line)]
    places = [root / "include" for root in roots] + named
    return next((Path(os.path.normpath(place)) for place in places if (place / "cuda.h").is_file()), places[0])


def objection(toolkit: Toolkit, driver: Driver, *, linked: bool) -> str:
    """Why a toolkit cannot serve a driver and its cards, or "" if nothing is known against it.

    What is `linked` with the driver (PyCUDA) must not be newer than it. Kernels need only be of the same major version.
    """
    if not (toolkit.include / "cuda.h").is_file():
        return f"it has no {toolkit.include / 'cuda.h'}"
    if toolkit.version > driver.version and (linked or toolkit.version[0] > driver.version[0]):
        return f"it is newer than the driver, which runs CUDA {dotted(driver.version)} and older"
    for gpu in driver.gpus:
        if toolkit.archs and gpu.arch not in toolkit.archs:
            return f"its nvcc does not know {gpu.arch} ({gpu.name})"
    return ""


def compile_problem(toolkit: Toolkit, run: Runner = run_quietly) -> str:
    """Compile an empty kernel; the compiler's complaint, or "" if it works (an nvcc may lack its other parts)."""
    with tempfile.TemporaryDirectory(prefix="vgg16gpu-") as folder:
        source = Path(folder, "probe.cu")
        source.write_text('extern "C" __global__ void probe(int *out) { *out = 1; }\n', encoding="utf-8")
        result = run([str(toolkit.nvcc), "--cubin", "-o", str(source.with_suffix(".cubin")), str(source)])
    if result.returncode == 0:
        return ""
    lines = [line for line in (result.stderr + result.stdout).splitlines() if line.strip()]
    return f"its nvcc fails: {lines[0] if lines else f'exit status {result.returncode}'}"


def choose_toolkit(
    toolkits: Iterable[Toolkit], judge: Callable[[Toolkit], str]
) -> tuple[Toolkit | None, tuple[str, ...]]:
    """The first toolkit that `judge` has no objection to, and a line for each that was passed over before it."""
    refused: list[str] = []
    for toolkit in toolkits:
        reason = judge(toolkit)
        if not reason:
            return toolkit, tuple(refused)
        refused.append(f"{toolkit}: {reason}")
    return None, tuple(refused)


# The Python packages


PYCUDA_PROBE = """
import pycuda, pycuda.driver, pycuda.compiler
print(pycuda.VERSION_TEXT, "{}.{}".format(*pycuda.driver.get_version()))
"""
BINDINGS_PROBE = """
import cuda.bindings.driver
print(cuda.bindings.__version__)
"""


@dataclass(frozen=True)
class Bindings:
    """The Python packages as they are: versions, or what keeps them from loading."""

    pycuda: str = ""
    built_for: str = ""  # CUDA version
    pycuda_problem: str = ""
    cuda_bindings: str = ""
    cuda_bindings_problem: str = ""

    @property
    def problem(self) -> str:
        """What keeps the first of them from loading, or ""."""
        return self.pycuda_problem or self.cuda_bindings_problem

    def __str__(self) -> str:
        return f"PyCUDA {self.pycuda} for CUDA {self.built_for} and cuda-bindings {self.cuda_bindings}"


def probe_bindings(python: str = sys.executable, run: Runner = run_quietly) -> Bindings:
    """Load PyCUDA and cuda-bindings in processes of their own: a broken build must not hurt this one."""
    (pycuda, built_for), pycuda_problem = _probe(python, PYCUDA_PROBE, 2, run)
    (bindings,), bindings_problem = _probe(python, BINDINGS_PROBE, 1, run)
    return Bindings(pycuda, built_for, pycuda_problem, bindings, bindings_problem)


def _probe(python: str, script: str, words: int, run: Runner) -> tuple[list[str], str]:
    """What a script prints, as words, and why it failed, or ""."""
    result = run([python, "-W", "ignore", "-c", script])
    printed = result.stdout.split()
    if result.returncode == 0 and len(printed) == words:
        return printed, ""
    lines = [line.strip() for line in result.stderr.splitlines() if line.strip()]
    return [""] * words, lines[-1] if lines else f"exit status {result.returncode}"
