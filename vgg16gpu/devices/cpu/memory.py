"""The memory of the cpu device."""

from __future__ import annotations

import ctypes
import mmap
from bisect import bisect_right, insort

import numpy as np
import numpy.typing as npt

from vgg16gpu.devices.base import Bytes
from vgg16gpu.devices.platforms import machine_memory
from vgg16gpu.errors import DeviceError
from vgg16gpu.program.types import ALIGNMENT

_MAP_NORESERVE = 0x4000  # Linux; the mmap module has the name from Python 3.13 on


def aligned(nbytes: int) -> Bytes:
    """Return an uninitialised array of bytes at a multiple of 256; untouched pages cost nothing."""
    room = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    return room[start : start + nbytes]


class Heap:
    """Allocations by address.

    With `exact`, each comes from malloc in its exact size, so that the address sanitizer guards both ends, and holds
    NaN at first.
    """

    def __init__(self, total: int, *, exact: bool) -> None:
        self._total = total
        self._exact = exact
        self._sizes: dict[int, int] = {}
        self._starts: list[int] = []  # sorted
        self._arrays: dict[int, Bytes] = {}
        self._libc = ctypes.CDLL(None)
        self._libc.free.argtypes = [ctypes.c_void_p]
        self._libc.posix_memalign.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]

    def allocate(self, nbytes: int) -> int:
        """Allocate memory; return its address. Raises DeviceError with need and free."""
        used = sum(self._sizes.values())
        if nbytes < 0 or used + nbytes > self._total:
            raise DeviceError(
                f"not enough memory: {nbytes:,} bytes needed, {max(0, self._total - used):,} of {self._total:,} free"
            )
        try:
            address = self._malloc(nbytes) if self._exact else self._empty(nbytes)
        except MemoryError:
            raise DeviceError(
                f"not enough memory: {nbytes:,} bytes needed, {machine_memory()[1]:,} of {self._total:,} free"
            ) from None
        self._sizes[address] = nbytes
        insort(self._starts, address)
        return address

    def free(self, address: int) -> None:
        """Free memory. Raises DeviceError if `allocate` did not return it."""
        if self._sizes.pop(address, None) is None:
            raise DeviceError(f"{address:#x} is not the start of device memory in use")
        self._starts.remove(address)
        if self._arrays.pop(address, None) is None:
            self._libc.free(address)

    def require(self, address: int, nbytes: int) -> None:
        """Raise DeviceError unless these bytes lie inside one allocation."""
        i = bisect_right(self._starts, address) - 1
        if i < 0 or address + nbytes > self._starts[i] + self._sizes[self._starts[i]]:
            raise DeviceError(f"{nbytes:,} bytes at {address:#x} do not lie inside device memory in use")

    def clear(self) -> None:
        """Free everything."""
        for address in tuple(self._starts):
            self.free(address)

    def _empty(self, nbytes: int) -> int:
        array = aligned(max(1, nbytes))
        address: int = array.ctypes.data
        self._arrays[address] = array
        return address

    def _malloc(self, nbytes: int) -> int:
        pointer = ctypes.c_void_p()
        if self._libc.posix_memalign(ctypes.byref(pointer), ALIGNMENT, max(1, nbytes)) or pointer.value is None:
            raise MemoryError
        ctypes.memset(pointer, 0xFF, nbytes)
        return pointer.value


def copy(target: int, source: int, nbytes: int) -> None:
    """Copy bytes between addresses."""
    ctypes.memmove(target, source, nbytes)


def contiguous_address(array: npt.NDArray[np.generic], *, written: bool) -> int:
    """Return an array's address. Raises DeviceError if it is not contiguous, or is to be `written` and read-only."""
    if not array.flags.c_contiguous:
        raise DeviceError(f"a copy needs a contiguous array; this one has shape {array.shape}, strides {array.strides}")
    if written and not array.flags.writeable:
        raise DeviceError(f"a copy from the device needs a writable array; this one of shape {array.shape} is not")
    address: int = array.ctypes.data
    return address


class WorkerMemory:
    """Room for the fibers of all OS threads. The system gives pages only where a fiber has been."""

    def __init__(self, nbytes: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        try:
            self._map = mmap.mmap(-1, nbytes, flags=flags)
        except OSError as error:
            raise DeviceError(
                f"no room for {nbytes:,} bytes of stacks ({error.strerror}): lower VGG16GPU_THREADS"
            ) from error
        self.nbytes = nbytes
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
