"""Arrays of other libraries on the GPU: DLPack, the CUDA array interface, and the streams of their libraries."""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from vgg16gpu.devices.base import Counters
from vgg16gpu.devices.cuda.context import ContextGuard, DeviceResources
from vgg16gpu.devices.cuda.graph import CudaGraph
from vgg16gpu.devices.cuda.launch import LaunchSequence
from vgg16gpu.devices.cuda.probe import DRIVER_LIBRARY
from vgg16gpu.errors import DeviceError, KernelError

Device: TypeAlias = tuple[int, int]  # (kind, number)

CPU: Final[Device] = (1, 0)
CUDA: Final = 2
CUDA_MANAGED: Final = 13

_KINDS: Final = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
_BFLOAT: Final = 4

_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class Described(NamedTuple):
    """What a capsule says of an array. Strides are in elements."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    element_type: str  # as numpy calls it, or "bfloat16"
    device: Device


class _Tensor(ctypes.Structure):
    """DLTensor, which DLManagedTensor begins with."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("kind", ctypes.c_int32),
        ("number", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


def wrap(array: npt.NDArray[Any], device: Device, *, is_bfloat: bool = False) -> object:
    """A capsule that says that an array lies on `device`; its consumer keeps the array alive.

    is_bfloat: the array's 16-bit elements are bfloat16.
    """
    capsule: object = array.__dlpack__()
    tensor = _tensor(capsule)
    tensor.kind, tensor.number = device
    if is_bfloat:
        tensor.code = _BFLOAT
    return capsule


def describe(capsule: object) -> Described:
    """What lies where. The array lives as long as the capsule, which is not used up.

    Raises ValueError for what is no capsule, or a used one.
    """
    tensor = _tensor(capsule)
    shape = tuple(tensor.shape[dim] for dim in range(tensor.rank))
    strides = tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))
    if tensor.strides:
        strides = tuple(tensor.strides[dim] for dim in range(tensor.rank))
    name = f"{_KINDS.get(tensor.code, f'kind {tensor.code}, ')}{tensor.bits}"
    if tensor.lanes != 1:
        name += f" in vectors of {tensor.lanes}"
    address = (tensor.data or 0) + tensor.byte_offset
    return Described(address, shape, strides, name, (tensor.kind, tensor.number))


def _tensor(capsule: object) -> _Tensor:
    return _Tensor.from_address(_get_pointer(capsule, b"dltensor"))


_DISABLE_TIMING = 2  # CU_EVENT_DISABLE_TIMING
_NOT_CAPTURING = 0  # CU_STREAM_CAPTURE_STATUS_NONE
_DEVICE_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL


class CudaInterop:
    """What others have on the card of an open device."""

    def __init__(self, held: DeviceResources, ordinal: int, counters: Counters, bindings: Any | None = None) -> None:
        self.ordinal = ordinal
        self._held = held
        self._counters = counters
        self._bindings = bindings  # cuda.bindings.driver, for CUDA graphs
        self._guard = ContextGuard(held, DeviceError)

    @property
    def stream(self) -> int:
        """The handle of the compute stream. Raises DeviceError once the device is closed."""
        with self._guard:
            return int(self._held.stream.handle)

    def card_of(self, address: int) -> int | None:
        """The number of the card whose memory this is; None if it is no card's."""
        found = ctypes.c_int(-1)
        code = _library().cuPointerGetAttribute(ctypes.byref(found), _DEVICE_ORDINAL, ctypes.c_uint64(address))
        return found.value if code == 0 and found.value >= 0 else None

    def follow(self, stream: int) -> None:
        """Hold back what will be enqueued on the compute stream until all on this foreign one now is done."""
        with self._guard:
            _wait_for(stream, self._held.stream.handle)

    def lead(self, stream: int) -> None:
        """Hold back what will be enqueued on this foreign stream until all on the compute stream now is done."""
        with self._guard:
            _wait_for(self._held.stream.handle, stream)

    def captures(self, stream: int) -> bool:
        """Return whether what is enqueued on this foreign stream now goes into a CUDA graph."""
        status = ctypes.c_int()
        with self._guard:
            _call("cuStreamIsCapturing", ctypes.c_void_p(stream), ctypes.byref(status))
        return status.value != _NOT_CAPTURING

    def open_stream(self) -> int:
        """The handle of a further stream, which waits for no other one; there as long as the device is open."""
        with self._guard:
            return self._held.open_stream()

    def finish(self, stream: int) -> None:
        """Wait for everything on a stream; from any thread, at any time. Raises KernelError if something failed."""
        with ContextGuard(self._held, KernelError):
            try:
                _call("cuStreamSynchronize", ctypes.c_void_p(stream))
            except DeviceError as error:
                raise KernelError(str(error)) from error

    def used_nbytes(self) -> int:
        """Bytes of the card's memory that are taken, by whomever."""
        with self._guard:
            free, total = self._held.driver.mem_get_info()
        return int(total - free)

    def memory(self, nbytes: int) -> CudaMemory:
        """Fresh memory that outlives the device."""
        self._counters.allocations += 1
        return CudaMemory(self.ordinal, nbytes)

    @contextmanager
    def current(self) -> Iterator[None]:
        """What another library is called in: the context of this card is current inside, and closing waits for it."""
        with self._held.guests.inside(), self._guard:
            yield

    def capture(self, work: Callable[[], None]) -> CapturedWork:
        """What `work` enqueues on the compute stream, as one CUDA graph; nothing is executed.

        Raises KernelError for what cannot be captured, DeviceError without cuda-bindings, and what `work` raises.
        """
        if self._bindings is None:
            raise DeviceError("a CUDA graph needs cuda-bindings; install it in a version that goes with the driver")
        held = self._held
        with ContextGuard(held, KernelError):
            sequence = LaunchSequence(held.driver, self._bindings, held.stream, [])
            sequence.graph = CudaGraph(self._bindings, held.stream.handle, work)
            held.sequences.add(sequence)
        return CapturedWork(held, sequence, self._counters)


class CapturedWork:
    """Work of another library as one CUDA graph: `devices.base.Captured`."""

    def __init__(self, held: DeviceResources, sequence: LaunchSequence, counters: Counters) -> None:
        self._held, self._sequence, self._counters = held, sequence, counters

    def __call__(self) -> None:
        """Enqueue it on the compute stream; counts as a launch. Raises KernelError."""
        with ContextGuard(self._held, KernelError):
            self._sequence.launch()
        self._counters.launches += 1

    def close(self) -> None:
        """Give it back; it must not be under way. Safe to call twice, and after the device is closed."""
        if self._sequence in self._held.sequences:
            with ContextGuard(self._held, DeviceError):
                self._held.sequences.remove(self._sequence)
                self._sequence.clear()


class CudaMemory:
    """Memory of a card that belongs to whoever holds this object: `devices.base.Memory`.

    It keeps the primary context alive by itself. Freeing waits for work on the card that may still use it.
    """

    def __init__(self, ordinal: int, nbytes: int) -> None:
        card, context, address = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
        _call("cuDeviceGet", ctypes.byref(card), ordinal)
        _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), card)
        try:
            with _current(context):
                _call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(nbytes, 1)))
        except DeviceError as error:
            _library().cuDevicePrimaryCtxRelease_v2(card)
            raise DeviceError(f"no {nbytes:,} bytes for results on cuda:{ordinal} ({error}); free memory") from error
        self.address = address.value
        self._context = context
        weakref.finalize(self, _free, card, context, address).atexit = False  # the driver frees what is left then

    def read(self, target: npt.NDArray[np.generic]) -> None:
        """Copy the first bytes to a contiguous host array, and wait for it."""
        with _current(self._context):
            place, nbytes = ctypes.c_void_p(target.ctypes.data), ctypes.c_size_t(target.nbytes)
            _call("cuMemcpyDtoH_v2", place, ctypes.c_uint64(self.address), nbytes)


def _wait_for(first: int, then: int) -> None:
    """Hold back one stream until all that is on another now is done. If that one captures, the capture takes both."""
    event = ctypes.c_void_p()
    _call("cuEventCreate", ctypes.byref(event), _DISABLE_TIMING)
    try:
        _call("cuEventRecord", event, ctypes.c_void_p(first))
        _call("cuStreamWaitEvent", ctypes.c_void_p(then), event, 0)
    finally:
        _library().cuEventDestroy_v2(event)  # the driver keeps it as long as somebody waits for it


def _free(card: ctypes.c_int, context: ctypes.c_void_p, address: ctypes.c_uint64) -> None:
    with suppress(DeviceError), _current(context):  # nobody is there to hear of a context that a kernel has broken
        _call("cuMemFree_v2", address)
    _library().cuDevicePrimaryCtxRelease_v2(card)


@contextmanager
def _current(context: ctypes.c_void_p) -> Iterator[None]:
    _call("cuCtxPushCurrent_v2", context)
    try:
        yield
    finally:
        _library().cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(DRIVER_LIBRARY)


def _call(name: str, *arguments: Any) -> None:
    code = getattr(_library(), name)(*arguments)
    if code != 0:
        text = ctypes.c_char_p()
        _library().cuGetErrorString(code, ctypes.byref(text))
        raise DeviceError(f"{name} failed: {text.value.decode() if text.value else code}")
