"""Runs pytest with the cpu device's kernels under a sanitizer.

    python -m vgg16gpu.devices.sanitize address -m sanitize tests    # out of bounds, misaligned, undefined behaviour
    python -m vgg16gpu.devices.sanitize thread -m sanitize tests     # data races, that is missing barriers

What follows the first word goes to pytest (an optional `--` before it is dropped). The first mistake ends the run: a
report on stderr names the kernel's file and line, the exit code is not 0. Shared memory holds NaN before each block.

A sanitizer's run-time library has to be in the process before anything else, so Python is started anew with it in
LD_PRELOAD; every CpuDevice that the tests open is then a checked one (VGG16GPU_SANITIZE). Only the kernels are
instrumented, not Python. Checked kernels run on one OS thread, some 20 times slower: for small shapes.

What it does not see: an index that is wrong inside a buffer, and races between blocks. Needs g++.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NoReturn, TypeAlias

from vgg16gpu.devices.cpu import compiler as cpu_compiler
from vgg16gpu.errors import DeviceError, Error

Sanitizer: TypeAlias = Literal["address", "thread"]

# libstdc++: a sanitizer that finds no __cxa_throw at its start ends the process at the first C++ exception of anybody.
_LIBRARIES: dict[Sanitizer, tuple[str, ...]] = {
    "address": ("libasan.so", "libubsan.so", "libstdc++.so"),
    "thread": ("libtsan.so", "libstdc++.so"),
}
_OPTIONS: dict[Sanitizer, dict[str, str]] = {
    "address": {
        "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1",  # Python itself leaves memory behind at its end
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    },
    "thread": {  # kernels take no locks, and 64 at once end its detector of deadlocks: those of Arrow at a fork
        "TSAN_OPTIONS": "halt_on_error=1:exitcode=66:ignore_noninstrumented_modules=1:detect_deadlocks=0"
    },
}
_ADDR_NO_RANDOMIZE = 0x0040000
_KEEP_PERSONALITY = 0xFFFFFFFF


def environment(sanitizer: Sanitizer) -> dict[str, str]:
    """Return the environment in which a Python process must start. Raises DeviceError if a library is missing."""
    libraries = ":".join(str(_runtime_library(name)) for name in _LIBRARIES[sanitizer])
    return {**os.environ, **_OPTIONS[sanitizer], "LD_PRELOAD": libraries, "VGG16GPU_SANITIZE": sanitizer}


def execute(sanitizer: Sanitizer, arguments: Sequence[str]) -> NoReturn:
    """Become `python arguments...` under a sanitizer. Raises DeviceError if that cannot be."""
    variables = environment(sanitizer)
    if sanitizer == "thread":
        _fix_addresses()
    os.execve(sys.executable, [sys.executable, *arguments], variables)


def forbid(address: int, nbytes: int) -> None:
    """Poison these bytes under the address sanitizer: an access ends the process, until they are freed."""
    poison = ctypes.CDLL(None).__asan_poison_memory_region
    poison.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    poison(address, nbytes)


def _runtime_library(name: str) -> Path:
    compiler = cpu_compiler.find_compiler()
    if compiler.is_clang:
        raise DeviceError(f"the sanitizers need g++, not {compiler.command[0]}; unset CXX or set it to a g++")
    path = Path(cpu_compiler.run([*compiler.command, f"-print-file-name={name}"]).stdout.strip())
    if not path.is_absolute() or not path.is_file():
        raise DeviceError(f"{compiler.command[0]} has no {name}; install the sanitizers of your g++ (libasan, libtsan)")
    content = path.read_bytes()
    if content.startswith(b"\x7fELF"):
        return path.resolve()
    named = re.search(rb"/[^\s()]+\.so[^\s()]*", content)  # some systems have a linker script here
    if not named:
        raise DeviceError(f"{path} is neither a library nor the name of one")
    return Path(os.fsdecode(named.group()))


def _fix_addresses() -> None:
    """Turn address randomisation off for the program to come: older thread sanitizers fail where it is wide."""
    libc = ctypes.CDLL(None)
    libc.personality.argtypes = [ctypes.c_ulong]
    before = libc.personality(_KEEP_PERSONALITY)
    if before >= 0:
        libc.personality(before | _ADDR_NO_RANDOMIZE)  # refused in some containers; then it is tried without


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return only if it is wrong or something is missing."""
    sanitizer = arguments[0] if arguments else ""
    rest = list(arguments[1:])
    if rest[:1] == ["--"]:
        del rest[0]
    command = ["-m", "pytest", "-s", *rest]  # -s: a report that pytest has captured dies with the process
    try:
        if sanitizer == "address":
            execute("address", command)
        elif sanitizer == "thread":
            execute("thread", command)
    except Error as error:
        print(error, file=sys.stderr)
        return 2
    print("usage: python -m vgg16gpu.devices.sanitize address|thread [pytest arguments]", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
