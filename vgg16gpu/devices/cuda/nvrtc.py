"""NVRTC, NVIDIA's compiler as a library: cubins without a toolkit (NVRTC 13.0, "User Guide").

torch's wheels bring it. It has no header of C or of the driver: kernels/nvrtc/ has what kernels take of those.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from vgg16gpu.errors import KernelError

PACKAGES = {12: "nvidia-cuda-nvrtc-cu12", 13: "nvidia-cuda-nvrtc"}  # by the major version of CUDA

_PLACES = ("nvidia/cu[0-9]*/lib", "nvidia/cuda_nvrtc/lib")  # in a folder of Python packages
_LIBRARY = re.compile(r"libnvrtc\.so\.(\d+)$")


def libraries(
    environ: Mapping[str, str] = os.environ,
    path: Sequence[str] | None = None,
    default: Path = Path("/usr/local/cuda"),
) -> Iterator[tuple[int, Path]]:
    """Find NVRTC, as (major version of CUDA, library): among the Python packages, then in toolkits."""
    folders = [place for entry in (sys.path if path is None else path) for place in _in_packages(Path(entry or "."))]
    homes = [Path(environ[name]) for name in ("CUDA_HOME", "CUDA_ROOT") if environ.get(name)]
    folders += [home / "lib64" for home in (*homes, default)]
    for folder in dict.fromkeys(folders):
        found = ((int(match[1]), file) for file in folder.glob("libnvrtc.so.*") if (match := _LIBRARY.match(file.name)))
        yield from sorted(found, reverse=True)


def _in_packages(entry: Path) -> list[Path]:
    return [folder for place in _PLACES for folder in sorted(entry.glob(place), reverse=True)]


def find_nvrtc(newest: int | None) -> Nvrtc | None:
    """Return the first whose major version of CUDA is at most `newest`, the driver's (None: any will do)."""
    return next((Nvrtc(file) for major, file in libraries() if newest is None or major <= newest), None)


class Nvrtc:
    """A library. It is loaded when it compiles or tells its version."""

    def __init__(self, library: Path) -> None:
        self.library = library

    @property
    def version(self) -> tuple[int, int]:
        """Its version: (13, 0). Raises KernelError where it does not load."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return major.value, minor.value

    def compile(self, source: str, name: str, options: Sequence[str], arch: str, label: str) -> bytes:
        """Compile a source to a cubin. Raises KernelError with the compiler's message.

        name: what the compiler calls the file; label: what the error calls it. May run in several threads.
        """
        program = ctypes.c_void_p()
        self._call("nvrtcCreateProgram", ctypes.byref(program), source.encode(), name.encode(), 0, None, None)
        try:
            words = [f"--gpu-architecture={arch}", *options]
            given = (ctypes.c_char_p * len(words))(*(word.encode(errors="surrogateescape") for word in words))
            failed = self._library.nvrtcCompileProgram(program, len(words), given)
            if failed:
                said = self._text(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog").rstrip(b"\0")
                text = said.decode(errors="replace").strip() or self._explain(failed)
                raise KernelError(f"{label} does not compile for {arch} with {self.library}:\n{text}", text)
            return self._text(program, "nvrtcGetCUBINSize", "nvrtcGetCUBIN")
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _text(self, program: ctypes.c_void_p, size: str, get: str) -> bytes:
        nbytes = ctypes.c_size_t()
        self._call(size, program, ctypes.byref(nbytes))
        buffer = ctypes.create_string_buffer(nbytes.value)
        self._call(get, program, buffer)
        return buffer.raw

    @cached_property
    def _library(self) -> ctypes.CDLL:
        try:
            for part in sorted(self.library.parent.glob("libnvrtc-builtins.so*")):  # it would look in the loader's path
                ctypes.CDLL(str(part))
            library = ctypes.CDLL(str(self.library))
        except OSError as error:
            raise KernelError(f"NVRTC does not load: {error}; install it again") from error
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        return library

    def _explain(self, code: int) -> str:
        text: bytes = self._library.nvrtcGetErrorString(code)
        return text.decode(errors="replace")

    def _call(self, function: str, *arguments: object) -> None:
        if code := getattr(self._library, function)(*arguments):
            raise KernelError(f"{function} of {self.library} failed: {self._explain(code)}")
