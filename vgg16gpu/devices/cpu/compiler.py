"""Turns a kernel source into a shared library with a C++ compiler, by way of kernels/include/cpu_shim.h.

All kernels of one source file and one set of macros share a library.
"""

from __future__ import annotations

import functools
import logging
import os
import platform
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from vgg16gpu.devices import kernel_source
from vgg16gpu.devices.cache import CachedFile, KernelCache
from vgg16gpu.devices.platforms import supported_machine
from vgg16gpu.devices.stages import tell_compiling
from vgg16gpu.errors import DeviceError, KernelError
from vgg16gpu.io.shown import shown

_log = logging.getLogger(__name__)

# How a library is checked while it runs. All three fill shared memory with NaN before each block; "address" (with
# undefined behaviour) and "thread" add the compiler's sanitizers.
Check: TypeAlias = Literal["address", "thread", "poison"]
CHECKS: tuple[Check, ...] = ("address", "thread", "poison")

_COMMON = (
    "-std=c++17",
    "-fPIC",
    "-shared",
    "-pthread",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
    "-ffp-contract=off",  # the same bits as nvcc --fmad=false: no a*b+c that the source does not write as fmaf
    "-fopenmp-simd",
    "-fno-strict-aliasing",
    "-Wno-unknown-pragmas",
)
_SANITIZERS: tuple[Check, ...] = ("address", "thread")
_LEVELS = ("0", "1", "2", "3")
_CHECKED = ("-g", "-fno-omit-frame-pointer", "-DCPU_SHIM_CHECKED")
_BY_CHECK: dict[Check, tuple[str, ...]] = {
    "poison": _CHECKED,
    "address": (
        "-O1",
        *_CHECKED,
        "-DCPU_SHIM_ASAN",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=undefined",
    ),
    "thread": ("-O1", *_CHECKED, "-DCPU_SHIM_TSAN", "-fsanitize=thread"),
}
# Our own sources take C's headers: libstdc++'s math.h costs a third of each compilation. Only the latter has overloads
# for float. Without them exp(float) computes in double and abs(float) in int, which the two warnings refuse.
_C_HEADERS = ("-D_GLIBCXX_INCLUDE_NEXT_C_HEADERS", "-Werror=double-promotion", "-Werror=float-conversion")
# -fno-gnu-unique: or a library's statics would be shared with other libraries. 16384: half a fiber's stack.
_GCC = ("-fno-gnu-unique", "-Werror=frame-larger-than=16384")
_GCC_QUICK = ("--param=max-combine-insns=2", "-fno-ivopts", "-fno-tree-pta")  # half the time where loops are unrolled
_CLANG = ("-Wframe-larger-than=16384", "-Werror=frame-larger-than")
_GCC_ADDRESS = ("-fsanitize-sections=cuda_shared",)  # GCC leaves variables in named sections unguarded unless told
_NATIVE = {
    "x86_64": ("-march=native", "-mprefer-vector-width=128"),  # 128: a thread's tile is a few times 4 floats wide
    "aarch64": ("-mcpu=native",),
}
_EXPORTED = re.compile(r'extern\s+"C"\s+__global__\s+void\s+(\w+)\s*\(')
_CONSTANT = re.compile(r"\b__constant__\s[^;]*?(\w+)\s*\[")
_MESSAGE_LINES = 30


@dataclass(frozen=True)
class LibraryUnit:
    """What one library is compiled from: a source file and its macros."""

    source: str
    defines: tuple[tuple[str, int], ...] = ()

    @property
    def flags(self) -> tuple[str, ...]:
        """Return the options that depend on whose file it is: one of other people is named by its whole path."""
        return () if Path(self.source).is_absolute() else _C_HEADERS

    @property
    def label(self) -> str:
        """File and macros on one line."""
        return " ".join([self.source, *(f"-D{name}={value}" for name, value in self.defines)])


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: the command, and the version text that identifies it."""

    command: tuple[str, ...]
    version: str

    @property
    def is_clang(self) -> bool:
        """Return whether it is clang, which does not know some of GCC's options."""
        return "clang" in self.version.lower()

    def flags(self, check: Check | None) -> tuple[str, ...]:
        """Return the options for a library, with or without checks. Raises DeviceError for VGG16GPU_OPTIMIZE."""
        level = _level_from_environment()
        optimised = (f"-O{level}",) if check in (None, "poison") else ()
        flags = (*_COMMON, *_NATIVE[supported_machine()], *optimised, *(_BY_CHECK[check] if check else ()))
        if self.is_clang:
            return flags + _CLANG
        quick = _GCC_QUICK if optimised and level == "1" else ()
        return flags + _GCC + quick + (_GCC_ADDRESS if check == "address" else ())


def find_compiler() -> Compiler:
    """Return CXX if set, else the first of g++, clang++, c++. Raises DeviceError with what to install."""
    chosen = os.environ.get("CXX", "").strip()
    candidates = [_words(chosen)] if chosen else [("g++",), ("clang++",), ("c++",)]
    for command in candidates:
        if path := shutil.which(command[0]):
            return _identify((path, *command[1:]))
    if chosen:
        raise DeviceError(f"the C++ compiler CXX={shown(chosen)} is not found; unset CXX or set it to a g++ or clang++")
    raise DeviceError(
        "the cpu device compiles its kernels and needs a C++ compiler: install g++ (apt install g++, "
        "dnf install gcc-c++) or clang++, or set CXX"
    )


def _level_from_environment() -> str:
    """Return VGG16GPU_OPTIMIZE, by default 3. Raises DeviceError for what is no level."""
    text = os.environ.get("VGG16GPU_OPTIMIZE", "").strip() or _LEVELS[-1]
    if text not in _LEVELS:
        raise DeviceError(f"VGG16GPU_OPTIMIZE={shown(text)} is not {', '.join(_LEVELS[:-1])} or {_LEVELS[-1]}")
    return text


def _words(command: str) -> tuple[str, ...]:
    """Return the words of a command as a shell reads them. Raises DeviceError for quotes that do not end."""
    try:
        return tuple(shlex.split(command))
    except ValueError as error:
        raise DeviceError(
            f"CXX={shown(command)} is no command: {str(error).lower()}; unset CXX or correct it"
        ) from error


@functools.lru_cache(maxsize=8)
def _identify(command: tuple[str, ...]) -> Compiler:
    done = run([*command, "--version"])
    if done.returncode or not done.stdout.strip():
        said = _shorten(done.stderr)
        problem = f"ended with exit code {done.returncode}" if done.returncode else "printed no version"
        raise DeviceError(
            f"the C++ compiler {shlex.join(command)} does not work: `{shlex.join(done.args)}` {problem}"
            f"{': ' + said if said else ''}; set CXX to a g++ or clang++ that works, or unset it to have one found"
        )
    return Compiler(command, done.stdout)


def cpu_name() -> str:
    """Return the processor's model name, as far as the system tells."""
    match = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", _first_processor(), re.MULTILINE)
    return match.group(1).strip() if match else f"{platform.machine()} processor"


@functools.lru_cache(maxsize=1)
def _first_processor() -> str:
    """Read /proc/cpuinfo for one processor; the file is long and slow to make on large machines."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
            return file.read(16384).partition("\n\n")[0]
    except OSError:
        return ""


def _cpu_identity() -> str:
    """Return everything that -march=native may depend on."""
    lines = _first_processor().splitlines()
    wanted = ("model name", "model", "cpu family", "stepping", "flags", "Features", "CPU ")
    return supported_machine() + "\n" + "\n".join(line for line in lines if line.startswith(wanted))


def compile_units(units: Iterable[LibraryUnit], check: Check | None, processes: int) -> dict[LibraryUnit, CachedFile]:
    """Return the libraries of `units`, cached or compiled `processes` at a time. Raises KernelError, DeviceError."""
    unique = list(dict.fromkeys(units))
    compiler = find_compiler()

    @functools.cache
    def headers(folders: tuple[Path, ...]) -> list[bytes]:
        return [path.read_bytes() for path in kernel_source.headers_below(folders)]

    sources = {unit: kernel_source.source_path(unit.source) for unit in unique}
    flags, kept = compiler.flags(check), KernelCache("cpu")
    everywhere: list[bytes | str] = [repr(compiler.command), repr(flags), compiler.version, _cpu_identity()]

    def key(unit: LibraryUnit) -> list[bytes | str]:
        place = str(sources[unit]) if check in _SANITIZERS else ""  # their reports name the file
        included = headers(kernel_source.header_dirs(unit.source))
        return [sources[unit].read_bytes(), place, repr(unit.defines), repr(unit.flags), *included, *everywhere]

    def library(unit: LibraryUnit) -> CachedFile:
        return kept.fetch(key(unit), ".so", lambda target: _compile(compiler, flags, unit, sources[unit], target))

    # What is there is found sooner without threads: they would wait for each other's turn in the interpreter.
    there = {unit: found for unit in unique if (found := kept.find(key(unit), ".so"))}
    missing = [unit for unit in unique if unit not in there]
    if len(missing) == 1:
        return {**there, missing[0]: library(missing[0])}
    with ThreadPoolExecutor(max(1, processes)) as pool:
        futures = [pool.submit(library, unit) for unit in missing]
        try:
            tell_compiling(futures)
            return {**there, **{unit: future.result() for unit, future in zip(missing, futures, strict=True)}}
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # the first complaint is enough
            raise


def _compile(compiler: Compiler, flags: tuple[str, ...], unit: LibraryUnit, path: Path, target: Path) -> None:
    _log.info("compiling %s for the CPU", unit.label)
    command = [*compiler.command, *flags, *unit.flags, *(f"-I{folder}" for folder in kernel_source.include_dirs())]
    command += [f"-D{name}={value}" for name, value in unit.defines]
    # CUDA's language first, for files that include nothing. An #include line knows no quotes or line breaks in a name.
    command += ["-include", "cpu_shim.h", "-include", str(path)]
    listing = run([*command, "-E", "-P", "-DCPU_SHIM_LIST_KERNELS", "-x", "c++", "-"])
    _check(listing, unit)
    names = dict.fromkeys(_EXPORTED.findall(listing.stdout))
    if not names:
        raise KernelError(f'{unit.label}: the file has no kernel; expected extern "C" __global__ void name(...)')
    text = "".join(f"CPU_EXPORT({name})\n" for name in names)
    text += "".join(f"CPU_EXPORT_CONSTANT({name})\n" for name in _CONSTANT.findall(listing.stdout))
    _check(run([*command, "-x", "c++", "-", "-o", str(target)], text), unit)


def run(command: list[str], text: str = "") -> subprocess.CompletedProcess[str]:
    """Run a compiler on `text`; the caller looks at its exit code. Raises DeviceError if it cannot be started."""
    environment = {**os.environ, "LC_ALL": "C"}
    environment.pop("LD_PRELOAD", None)  # a sanitizer's run-time library is for us, not for the compiler
    try:
        return subprocess.run(
            command, input=text, capture_output=True, text=True, errors="replace", env=environment, check=False
        )
    except OSError as error:
        raise DeviceError(f"the C++ compiler {command[0]} cannot be run: {error.strerror}") from error


def _check(done: subprocess.CompletedProcess[str], unit: LibraryUnit) -> None:
    if done.returncode:
        said = done.stderr.strip() or f"exit code {done.returncode}"
        raise KernelError(f"{unit.label} does not compile:\n{_shorten(said)}", said)


def _shorten(message: str) -> str:
    lines = message.strip().splitlines()
    if len(lines) > _MESSAGE_LINES:
        lines = [*lines[:_MESSAGE_LINES], f"... and {len(lines) - _MESSAGE_LINES} lines more"]
    return "\n".join(lines)
