"""A compiled library of kernels, loaded: signatures, argument checks, and launches as cpu/scheduler.h takes them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import ClassVar

from vgg16gpu.devices.cache import CachedFile
from vgg16gpu.errors import KernelError
from vgg16gpu.program.launch import Argument, Dim3, KernelLaunch, Scalar, StridedIndexer, TmaDescriptor
from vgg16gpu.program.types import Arena, Pointer

MAX_BLOCK_THREADS = 1024
MAX_SHARED_NBYTES = 232448  # 227 KiB, as in cpu/block.h
_MAX_GRID = Dim3(2**31 - 1, 65535, 65535)
_MAX_BLOCK = Dim3(1024, 1024, 64)
_MESSAGE_NBYTES = 512
_KIND_NAMES = {"p": "pointer", "i": "32-bit integer", "f": "float", "w": "walk"}


class CpuLaunch(ctypes.Structure):
    """The struct CpuLaunch of cpu/block.h."""

    _fields_: ClassVar = [
        ("arguments", ctypes.c_void_p),
        ("memory", ctypes.c_void_p),
        ("message", ctypes.c_char_p),
        ("message_nbytes", ctypes.c_size_t),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("dynamic_shared", ctypes.c_uint32),
        ("os_threads", ctypes.c_uint32),
        ("order", ctypes.c_uint32),
        ("seed", ctypes.c_uint32),
    ]


class Library:
    """A loaded library. It stays loaded: other devices of the process may run it, too."""

    def __init__(self, found: CachedFile) -> None:
        """Load the library. Raises KernelError unless it holds kernels."""
        self._found = found  # a sanitizer looks into the file when it reports
        try:
            self._library = ctypes.CDLL(str(found.code))
        except OSError as error:
            reason = str(error).replace(str(found.code), found.name)
            raise KernelError(
                f"the compiled kernels {found.path} cannot be loaded: {reason}; "
                "if the folder is mounted noexec, set VGG16GPU_CACHE to another one"
            ) from error
        try:
            count = self._library.cpu_worker_nbytes
        except AttributeError as error:
            raise KernelError(
                f"the compiled kernels {found.path} are no library of kernels: they lack cpu_worker_nbytes; delete the "
                "file, and look whether CXX is a usual compiler"
            ) from error
        count.restype = ctypes.c_size_t
        self.worker_nbytes: int = count()

    def kernel(self, name: str) -> LoadedKernel | None:
        """Return one of its kernels, or None if there is none of that name."""
        try:
            launch = self._library[f"cpu_launch_{name}"]
            signature = self._library[f"cpu_signature_{name}"]
        except AttributeError:
            return None
        signature.restype = ctypes.c_char_p
        return LoadedKernel(self, launch, signature().decode())

    def constant(self, name: str) -> tuple[int, int] | None:
        """Return address and bytes of one of its __constant__ arrays, or None if there is none of that name."""
        try:
            find = self._library[f"cpu_constant_{name}"]
        except AttributeError:
            return None
        nbytes = ctypes.c_size_t()
        find.restype = ctypes.c_void_p
        return find(ctypes.byref(nbytes)), nbytes.value


class LoadedKernel:
    """A kernel that can be launched. `signature` has one letter an argument: p, i, f or w."""

    def __init__(self, library: Library, launch: ctypes._NamedFuncPointer, signature: str) -> None:
        launch.restype = ctypes.c_int
        launch.argtypes = [ctypes.c_void_p]
        self.library = library
        self.launch = launch
        self.signature = signature


class BoundLaunch:
    """A step with its addresses resolved: calling it runs the kernel to its end."""

    def __init__(self, kernel: LoadedKernel, step: KernelLaunch, bases: Mapping[Arena, int]) -> None:
        _check_geometry(step)
        _check_arguments(step, kernel.signature)
        self._label = step.kernel.label
        self._function = kernel.launch
        self._values = [_resolve(argument, bases, step, i) for i, argument in enumerate(step.arguments)]
        addresses = [ctypes.addressof(value) for value in self._values]
        self._arguments = (ctypes.c_void_p * max(1, len(addresses)))(*addresses)
        self._message = ctypes.create_string_buffer(_MESSAGE_NBYTES)
        self._launch = CpuLaunch(
            arguments=ctypes.addressof(self._arguments),
            message=ctypes.addressof(self._message),
            message_nbytes=_MESSAGE_NBYTES,
            grid=tuple(step.grid),
            block=tuple(step.block),
            dynamic_shared=step.shared,
        )
        self._address = ctypes.addressof(self._launch)

    def __call__(self, memory: int, os_threads: int, order: int, seed: int) -> None:
        """Run it with `memory` for `os_threads` workers. Raises KernelError."""
        launch = self._launch
        launch.memory = memory
        launch.os_threads = os_threads
        launch.order = order
        launch.seed = seed
        if self._function(self._address):  # ctypes lets other Python threads run meanwhile
            reason = self._message.value.decode(errors="replace")
            raise KernelError(f"{self._label}: {reason}")


def _check_geometry(step: KernelLaunch) -> None:
    label = step.kernel.label
    for what, given, most in (("grid", step.grid, _MAX_GRID), ("block", step.block, _MAX_BLOCK)):
        if any(not 1 <= size <= limit for size, limit in zip(given, most, strict=True)):
            raise KernelError(f"{label}: {what} {tuple(given)} is not within (1, 1, 1) and {tuple(most)}")
    threads = step.block.x * step.block.y * step.block.z
    if threads > MAX_BLOCK_THREADS:
        raise KernelError(f"{label}: a block of {tuple(step.block)} has {threads} threads, at most {MAX_BLOCK_THREADS}")
    if not 0 <= step.shared <= MAX_SHARED_NBYTES:
        raise KernelError(f"{label}: {step.shared} bytes of shared memory asked for, at most {MAX_SHARED_NBYTES}")


def _check_arguments(step: KernelLaunch, signature: str) -> None:
    if len(step.arguments) != len(signature):
        label = step.kernel.label
        raise KernelError(f"{label}: {len(step.arguments)} arguments given, the kernel takes {len(signature)}")
    for i, (argument, kind) in enumerate(zip(step.arguments, signature, strict=True)):
        given = _kind(argument)
        if given != kind:
            found, taken = _KIND_NAMES.get(given, given), _KIND_NAMES[kind]
            raise KernelError(f"{step.kernel.label}: argument {i} is a {found}, the kernel takes a {taken}")


def _kind(argument: Argument) -> str:
    match argument:
        case Pointer():
            return "p"
        case StridedIndexer():
            return "w"
        case Scalar():
            return argument.kind
    return "tensor map"


def _resolve(
    argument: Argument, bases: Mapping[Arena, int], step: KernelLaunch, i: int
) -> ctypes.c_void_p | ctypes.c_float | ctypes.c_int32 | ctypes.Array[ctypes.c_int32]:
    """Return the argument's value in memory, as the kernel reads it. Raises KernelError."""
    if isinstance(argument, Pointer):
        if argument.arena not in bases:
            raise _wrong(step, i, f"points into the arena {argument.arena.value}, which is not there")
        return ctypes.c_void_p(bases[argument.arena] + argument.offset)
    if isinstance(argument, TmaDescriptor):
        raise _wrong(step, i, "is a tensor map, which only a GPU can use")
    if isinstance(argument, StridedIndexer):
        return (ctypes.c_int32 * len(argument.words))(*argument.words)
    if argument.kind == "f":
        return ctypes.c_float(argument.value)
    value = int(argument.value)
    if value != argument.value or not -(2**31) <= value < 2**32:
        raise _wrong(step, i, f"is {argument.value}, which is not a 32-bit integer")
    return ctypes.c_int32(value)


def _wrong(step: KernelLaunch, i: int, problem: str) -> KernelError:
    return KernelError(f"{step.kernel.label}: argument {i} {problem}")
