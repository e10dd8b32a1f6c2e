"""The part of `pycuda.driver` that this package uses, made of cuda-bindings: for machines that cannot have PyCUDA.

Names, arguments and errors are PyCUDA's, so that whoever holds a driver need not know which of the two it is. A handle
is destroyed with its last reference, which must be dropped while the context is current. Importing needs cuda-bindings.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from cuda.bindings import driver as cu

from vgg16gpu.devices.base import Bytes
from vgg16gpu.devices.cuda.context import host_address

_FIRST, _LAST = ctypes.c_void_p(1), ctypes.c_void_p(0)  # CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_END
_SIZE = ctypes.c_void_p(2)  # CU_LAUNCH_PARAM_BUFFER_SIZE

device_attribute = SimpleNamespace(
    MULTIPROCESSOR_COUNT=cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
    MAX_SHARED_MEMORY_PER_BLOCK_OPTIN=cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
)
function_attribute = SimpleNamespace(
    MAX_DYNAMIC_SHARED_SIZE_BYTES=cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
)
event_flags = SimpleNamespace(DISABLE_TIMING=int(cu.CUevent_flags.CU_EVENT_DISABLE_TIMING))


class BindingsError(Exception):
    """A call of the driver that failed."""


class MemoryError(BindingsError):
    """There is not enough memory."""


class LaunchError(BindingsError):
    """A kernel could not be launched, or has failed."""


_KINDS: dict[Any, type[BindingsError]] = {
    cu.CUresult.CUDA_ERROR_OUT_OF_MEMORY: MemoryError,
    cu.CUresult.CUDA_ERROR_LAUNCH_FAILED: LaunchError,
    cu.CUresult.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: LaunchError,
    cu.CUresult.CUDA_ERROR_LAUNCH_TIMEOUT: LaunchError,
    cu.CUresult.CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING: LaunchError,
}


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a driver function, a tuple if it has several, None if none. Raises BindingsError."""
    try:
        error, *results = function(*arguments)
    except RuntimeError as problem:  # how cuda-bindings says that the driver has no such function
        raise BindingsError(f"{function.__name__} failed: {problem}") from problem
    if error != cu.CUresult.CUDA_SUCCESS:
        _, text = cu.cuGetErrorString(error)
        raise _KINDS.get(error, BindingsError)(f"{function.__name__} failed: {text.decode() if text else error}")
    return results[0] if len(results) == 1 else (tuple(results) or None)


def init() -> None:
    """Start the driver."""
    _call(cu.cuInit, 0)


def get_driver_version() -> int:
    """Return the newest CUDA version that the driver runs: 13000 for 13.0."""
    return int(_call(cu.cuDriverGetVersion))


def get_version() -> tuple[int, int, int]:
    """Return the CUDA version that cuda-bindings was made for."""
    return cu.CUDA_VERSION // 1000, cu.CUDA_VERSION % 1000 // 10, 0


def mem_get_info() -> tuple[int, int]:
    """Return the free bytes of the current card, and all of them."""
    free, total = _call(cu.cuMemGetInfo)
    return int(free), int(total)


class _Handle:
    """Something of the driver's that `destroy` gives back."""

    def __init__(self, handle: Any, destroy: Callable[[Any], Any]) -> None:
        self._handle = handle
        self._destroy = destroy

    @property
    def handle(self) -> int:
        """The handle as a number."""
        return int(self._handle)

    def __del__(self) -> None:
        self._destroy(self._handle)  # an error is no matter: the context may be broken or gone


class Context:
    """The primary context of a card, retained."""

    def __init__(self, card: Any) -> None:
        self._card = card
        self._context = _call(cu.cuDevicePrimaryCtxRetain, card)

    def push(self) -> None:
        """Make it current to this thread, above what is current now."""
        _call(cu.cuCtxPushCurrent, self._context)

    @staticmethod
    def pop() -> None:
        """End what the last `push` of this thread did."""
        _call(cu.cuCtxPopCurrent)

    def detach(self) -> None:
        """Release it."""
        _call(cu.cuDevicePrimaryCtxRelease, self._card)


class BindingsDevice:
    """A card."""

    def __init__(self, ordinal: int) -> None:
        self._card = _call(cu.cuDeviceGet, ordinal)

    @staticmethod
    def count() -> int:
        """Return how many there are."""
        try:
            return int(_call(cu.cuDeviceGetCount))
        except BindingsError:
            return 0

    def name(self) -> str:
        """Return its name."""
        text: bytes = _call(cu.cuDeviceGetName, 256, self._card)
        return text.split(b"\0", 1)[0].decode(errors="replace")

    def compute_capability(self) -> tuple[int, int]:
        """Return (major, minor)."""
        attributes = cu.CUdevice_attribute
        major = self.get_attribute(attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
        return major, self.get_attribute(attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)

    def get_attribute(self, attribute: Any) -> int:
        """Return what the driver says of one of `device_attribute`."""
        return int(_call(cu.cuDeviceGetAttribute, attribute, self._card))

    def retain_primary_context(self) -> Context:
        """Return its primary context, which is not made current."""
        return Context(self._card)


class BindingsStream(_Handle):
    """A stream of the current context."""

    def __init__(self, flags: int = 0) -> None:
        super().__init__(_call(cu.cuStreamCreate, flags), cu.cuStreamDestroy)

    def synchronize(self) -> None:
        """Wait for all that is enqueued."""
        _call(cu.cuStreamSynchronize, self._handle)

    def wait_for_event(self, event: Event) -> None:
        """Hold back what will be enqueued until the event is reached."""
        _call(cu.cuStreamWaitEvent, self._handle, event._handle, 0)


class Event(_Handle):
    """An event of the current context."""

    def __init__(self, flags: int = 0) -> None:
        super().__init__(_call(cu.cuEventCreate, flags), cu.cuEventDestroy)

    def record(self, stream: BindingsStream) -> Self:
        """Put it behind all that is enqueued on `stream`."""
        _call(cu.cuEventRecord, self._handle, stream._handle)
        return self

    def synchronize(self) -> Self:
        """Wait until it is reached."""
        _call(cu.cuEventSynchronize, self._handle)
        return self

    def query(self) -> bool:
        """Tell whether it is reached."""
        return bool(cu.cuEventQuery(self._handle)[0] == cu.CUresult.CUDA_SUCCESS)

    def time_till(self, later: Event) -> float:
        """Return the milliseconds between two events that are reached."""
        return float(_call(cu.cuEventElapsedTime, self._handle, later._handle))


class DeviceAllocation:
    """Memory of the card, until `free`."""

    def __init__(self, nbytes: int) -> None:
        self._address = int(_call(cu.cuMemAlloc, nbytes))

    def __int__(self) -> int:
        return self._address

    def free(self) -> None:
        """Give it back. An error is no matter: a kernel may have broken the context."""
        cu.cuMemFree(self._address)


class PinnedAllocation:
    """Pinned memory of the host, until `free`: the base of an array."""

    def __init__(self, nbytes: int) -> None:
        self._address = int(_call(cu.cuMemHostAlloc, nbytes, 0))
        self.__array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (self._address, False), "version": 3}

    def free(self) -> None:
        """Give it back, likewise."""
        cu.cuMemFreeHost(self._address)


def mem_alloc(nbytes: int) -> DeviceAllocation:
    """Return fresh memory of the card. Raises MemoryError."""
    return DeviceAllocation(nbytes)


def pagelocked_empty(nbytes: int, dtype: npt.DTypeLike) -> Bytes:
    """Return an array of bytes in pinned memory, whose base has `free`. Raises MemoryError."""
    if dtype != np.uint8:
        raise TypeError(f"pinned memory of {dtype}: bytes alone are made here")
    return np.asarray(PinnedAllocation(nbytes))


def memcpy_htod_async(address: int, source: Bytes, stream: BindingsStream) -> None:
    """Enqueue a copy to the card."""
    _call(cu.cuMemcpyHtoDAsync, address, host_address(source), source.nbytes, stream._handle)


def memcpy_dtoh_async(target: Bytes, address: int, stream: BindingsStream) -> None:
    """Enqueue a copy to the host."""
    _call(cu.cuMemcpyDtoHAsync, host_address(target), address, target.nbytes, stream._handle)


def memcpy_dtod_async(target: int, source: int, nbytes: int, stream: BindingsStream) -> None:
    """Enqueue a copy on the card."""
    _call(cu.cuMemcpyDtoDAsync, target, source, nbytes, stream._handle)


def memset_d8_async(address: int, value: int, count: int, stream: BindingsStream) -> None:
    """Enqueue that `count` bytes become `value`."""
    _call(cu.cuMemsetD8Async, address, value, count, stream._handle)


class Module(_Handle):
    """A cubin that is loaded."""

    def __init__(self, cubin: bytes) -> None:
        super().__init__(_call(cu.cuModuleLoadData, cubin), cu.cuModuleUnload)

    def get_function(self, name: str) -> Function:
        """Return a kernel. Raises BindingsError where there is none of this name."""
        return Function(_call(cu.cuModuleGetFunction, self._handle, name.encode()), self)

    def get_global(self, name: str) -> tuple[int, int]:
        """Return address and bytes of a `__constant__` array or a variable.

        Raises BindingsError where there is none.
        """
        address, nbytes = _call(cu.cuModuleGetGlobal, self._handle, name.encode())
        return int(address), int(nbytes)


def module_from_buffer(cubin: bytes) -> Module:
    """Load a cubin. Raises BindingsError."""
    return Module(cubin)


class Function:
    """A kernel, which keeps its module loaded."""

    def __init__(self, handle: Any, module: Module) -> None:
        self._handle = handle
        self._module = module
        self._format = ""

    @property
    def num_regs(self) -> int:
        """Registers of a thread."""
        return self._get(cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NUM_REGS)

    @property
    def shared_size_bytes(self) -> int:
        """Static shared memory of a block."""
        return self._get(cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)

    @property
    def local_size_bytes(self) -> int:
        """Local memory of a thread."""
        return self._get(cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)

    @property
    def max_threads_per_block(self) -> int:
        """Threads that a block may have."""
        return self._get(cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)

    def _get(self, attribute: Any) -> int:
        return int(_call(cu.cuFuncGetAttribute, attribute, self._handle))

    def set_attribute(self, attribute: Any, value: int) -> None:
        """Set one of `function_attribute`."""
        _call(cu.cuFuncSetAttribute, self._handle, attribute, value)

    def prepare(self, formats: Sequence[str]) -> Self:
        """Say of what kinds the arguments are, as `struct` calls them."""
        self._format = "".join(formats)
        return self

    def prepared_async_call(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        stream: BindingsStream,
        *arguments: int | float | bytes,
        shared_size: int = 0,
    ) -> None:
        """Enqueue a launch with the arguments that `prepare` has told of."""
        packed = struct.pack(self._format, *arguments)
        nbytes = ctypes.c_size_t(len(packed))
        text = ctypes.c_char_p(packed)
        extra = (ctypes.c_void_p * 5)(
            _FIRST, ctypes.cast(text, ctypes.c_void_p), _SIZE, ctypes.cast(ctypes.byref(nbytes), ctypes.c_void_p), _LAST
        )
        given = ctypes.addressof(extra) if packed else 0
        _call(cu.cuLaunchKernel, self._handle, *grid, *block, shared_size, stream._handle, 0, given)


# PyCUDA's names.
Device = BindingsDevice
Stream = BindingsStream
Error = BindingsError
