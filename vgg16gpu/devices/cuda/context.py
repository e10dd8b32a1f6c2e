"""CUDA contexts of threads, what a device has to give back, and page-locked host memory."""

from __future__ import annotations

import ctypes
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from vgg16gpu.devices import tuned
from vgg16gpu.devices.base import Bytes, Stream, Transfer
from vgg16gpu.devices.cache import cache_dir
from vgg16gpu.devices.cuda.compiler import CubinUnit
from vgg16gpu.devices.cuda.driver import CudaDriver
from vgg16gpu.devices.cuda.launch import BuiltKernel, LaunchSequence
from vgg16gpu.devices.cuda.probe import DRIVER_LIBRARY
from vgg16gpu.errors import DeviceError, Error, KernelError
from vgg16gpu.program.launch import Kernel
from vgg16gpu.program.types import DeviceFacts

CHUNK_NBYTES = 16 * 1024 * 1024  # of an upload from ordinary memory
CHUNKS = 2  # the host fills one while the other is on its way

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: torch's default stream neither waits for ours nor holds it up


def pick_card(driver: CudaDriver, ordinal: int) -> Any:
    """The Device of this number. Raises DeviceError, saying how many there are."""
    count = driver.Device.count()
    if count == 0:
        raise DeviceError("the NVIDIA driver sees no GPU")
    if not 0 <= ordinal < count:
        here = (
            "there is 1 GPU here, cuda:0" if count == 1 else f"there are {count} GPUs here, cuda:0 to cuda:{count - 1}"
        )
        raise DeviceError(f"no GPU cuda:{ordinal}: {here}")
    return driver.Device(ordinal)


def read_facts(driver: CudaDriver, card: Any, *, tensor_maps: bool) -> DeviceFacts:
    """Return what the planner may know of a card. Its context must be current. Raises DeviceError."""
    attribute = driver.device_attribute
    free, total = driver.mem_get_info()
    major, minor = card.compute_capability()
    multiprocessors = card.get_attribute(attribute.MULTIPROCESSOR_COUNT)
    tiles = tuned.table(card.name(), cache_dir(), kin=tuned.Kin((major, minor), multiprocessors))
    return DeviceFacts(
        kind="cuda",
        name=card.name(),
        multiprocessors=multiprocessors,
        compute_capability=(major, minor),
        shared_nbytes=card.get_attribute(attribute.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
        memory_total=total,
        memory_free=free,
        tensor_maps=tensor_maps,
        float32_kernels=tuned.float32_kernels(tiles),
        tuned=tiles,
    )


class Guests:
    """Threads that are inside of another library with a device's context: it must not go meanwhile."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._inside: Counter[int] = Counter()  # times that a thread has entered, by its number

    @contextmanager
    def inside(self) -> Iterator[None]:
        """`with` it around whatever another library does."""
        with self._lock:
            self._inside[threading.get_ident()] += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside[threading.get_ident()] -= 1
                self._inside += Counter()  # those that are out are forgotten
                self._changed.notify_all()

    def wait(self) -> None:
        """Until no other thread is inside."""
        with self._lock:
            self._changed.wait_for(lambda: not self._inside.keys() - {threading.get_ident()})


@dataclass
class DeviceResources:
    """What a device has to give back. It knows nothing of the device, which may be gone by then.

    Every method but `release` needs the context to be current.
    """

    driver: CudaDriver
    context: Any  # the driver's Context; None when all is given back
    stream: Any = None  # that of Stream.COMPUTE
    streams: dict[Stream, Any] = field(default_factory=dict)  # the CUDA stream of each
    branch: Any = None  # the stream that captures what conditional nodes hold
    others: list[Any] = field(default_factory=list)  # streams that other libraries work on
    events: list[Any] = field(default_factory=list)  # of `measure`
    marks: list[Any] = field(default_factory=list)  # those that are handed out, by number
    modules: dict[CubinUnit, Any] = field(default_factory=dict)
    kernels: dict[Kernel, BuiltKernel] = field(default_factory=dict)
    sequences: set[LaunchSequence] = field(default_factory=set)
    allocations: dict[int, Any] = field(default_factory=dict)
    buffers: list[Bytes] = field(default_factory=list)  # pinned, as PyCUDA made them
    registered: dict[int, Bytes] = field(default_factory=dict)  # others' memory that is pinned, by address
    ring: list[tuple[Bytes, Any]] = field(default_factory=list)
    guests: Guests = field(default_factory=Guests)

    def open(self) -> None:
        """Make the streams and the events of `measure`."""
        self.streams = {name: self.driver.Stream(_NON_BLOCKING) for name in Stream}
        self.stream = self.streams[Stream.COMPUTE]
        self.events = [self.driver.Event(), self.driver.Event()]

    def open_stream(self) -> int:
        """The handle of a stream beside all others."""
        self.others.append(self.driver.Stream(_NON_BLOCKING))
        return int(self.others[-1].handle)

    def open_branch(self) -> None:
        """Make `branch`, unless it is there. No capture may be under way."""
        if self.branch is None:
            self.branch = self.driver.Stream(_NON_BLOCKING)

    def pin(self, nbytes: int) -> Bytes:
        """A pinned host buffer. Raises DeviceError if there is none of this size."""
        try:
            buffer: Bytes = self.driver.pagelocked_empty(max(int(nbytes), 1), np.uint8)
        except self.driver.MemoryError as error:
            raise DeviceError(f"no {nbytes:,} bytes of pinned host memory ({error}); use a smaller batch") from error
        self.buffers.append(buffer)
        return buffer[:nbytes]

    def register(self, data: Bytes) -> None:
        """Pin memory that is somebody else's."""
        register(data)
        self.registered[host_address(data)] = data

    def unpin(self, data: Bytes) -> None:
        """Free a buffer from `pin`, or end what `register` did. Raises DeviceError if it is neither."""
        if (found := self.registered.pop(host_address(data), None)) is not None:
            unregister(found)
            return
        for index, buffer in enumerate(self.buffers):
            if host_address(buffer) == host_address(data):
                allocation: Any = self.buffers.pop(index).base
                allocation.free()
                return
        raise DeviceError(f"{host_address(data):#x} is not pinned here, or has been given back")

    def is_pinned(self, data: Bytes) -> bool:
        """Return whether all of `data` lies in memory from `pin` or `register`."""
        start = host_address(data)
        known = (*self.buffers, *self.registered.values())
        return any(0 <= start - host_address(buffer) <= buffer.nbytes - data.nbytes for buffer in known)

    def chunks(self) -> list[tuple[Bytes, Any]]:
        """The buffers that uploads from ordinary memory go through, each with the event of its last copy."""
        if not self.ring:
            self.ring = [(self.pin(CHUNK_NBYTES), self.driver.Event()) for _ in range(CHUNKS)]
        return self.ring

    def release(self) -> None:
        """Free everything, in any thread. On a context that a kernel has broken the driver may refuse: no matter."""
        if self.context is None:
            return
        self.guests.wait()
        context, self.context = self.context, None
        with suppress(self.driver.Error):
            context.push()
            self._free_all()
            # PyCUDA's detach releases a primary context only while that is current, and then leaves it on the thread's
            # stack, for releasing does not pop. So it is popped first, behind PyCUDA's back.
            ctypes.CDLL(DRIVER_LIBRARY).cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
            context.detach()

    def _free_all(self) -> None:
        for stream in (*self.streams.values(), *self.others):
            with suppress(self.driver.Error):
                stream.synchronize()
        for sequence in self.sequences:
            sequence.clear()
        allocations = [*self.allocations.values(), *(buffer.base for buffer in self.buffers)]
        for allocation in allocations:
            with suppress(self.driver.Error):
                allocation.free()
        for found in self.registered.values():
            with suppress(DeviceError):
                unregister(found)
        # The others go with their last reference; that has to be here, while the context is current.
        self.sequences.clear()
        for container in (self.buffers, self.ring, self.events, self.marks, self.others):
            container.clear()
        for table in (self.allocations, self.registered, self.kernels, self.modules, self.streams):
            table.clear()
        self.stream = self.branch = None


class ContextGuard:
    """`with` it around every use of PyCUDA: the context is current inside, and the driver's errors leave as ours.

    It keeps nothing of a use, so that all threads may share one, one within another.
    """

    def __init__(self, held: DeviceResources, failure: type[Error]) -> None:
        self._held = held
        self._failure = failure  # what an error of no particular kind becomes

    def __enter__(self) -> None:
        if self._held.context is None:
            raise DeviceError("this device is closed")
        try:
            self._held.context.push()
        except self._held.driver.Error as error:
            raise self._translated(error) from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        driver = self._held.driver
        try:  # noqa: SIM105 - `suppress` takes longer than the call, and each launch comes by here
            driver.Context.pop()
        except driver.Error:  # nothing to pop if the device was closed inside
            pass
        if error is not None and isinstance(error, driver.Error):
            raise self._translated(error) from error

    def _translated(self, error: BaseException) -> Error:
        driver = self._held.driver
        if isinstance(error, driver.MemoryError):
            return DeviceError(f"out of memory: {error}; use a smaller batch or image, or free memory on the GPU")
        if isinstance(error, driver.LaunchError):
            return KernelError(str(error))
        return self._failure(str(error))


MAX_TRANSFER_NBYTES = 1 << 20  # what is larger goes by the copy engine

_PORTABLE = 1  # CU_MEMHOSTREGISTER_PORTABLE: pinned for every context


def host_address(data: Bytes) -> int:
    """Where an array lies."""
    return int(data.__array_interface__["data"][0])


def goes_by_kernel(transfer: Transfer) -> bool:
    """Return whether a copy is small, and lies as the kernel that copies needs it."""
    nbytes, starts = transfer.host.nbytes, (transfer.address, host_address(transfer.host))
    return nbytes <= MAX_TRANSFER_NBYTES and nbytes % 4 == 0 and all(start % 16 == 0 for start in starts)


def as_bytes(array: npt.NDArray[np.generic]) -> Bytes:
    """The bytes of an array, not copied. Raises DeviceError if it is not contiguous."""
    if not array.flags.c_contiguous:
        raise DeviceError(
            f"an array of shape {array.shape} with strides {array.strides} is not contiguous; copy it first"
        )
    return array.reshape(-1).view(np.uint8)


def register(data: Bytes) -> None:
    """Pin `data`, whose context is current. Raises DeviceError where the driver refuses."""
    address, nbytes = ctypes.c_void_p(host_address(data)), ctypes.c_size_t(data.nbytes)
    _check(_driver().cuMemHostRegister_v2(address, nbytes, ctypes.c_uint(_PORTABLE)), "pins", data)


def unregister(data: Bytes) -> None:
    """End what `register` did; nothing may be on its way there or from there. Raises DeviceError, likewise."""
    _check(_driver().cuMemHostUnregister(ctypes.c_void_p(host_address(data))), "unpins", data)


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL(DRIVER_LIBRARY)


def _check(status: int, does: str, data: Bytes) -> None:
    if status:
        raise DeviceError(
            f"the driver {does} no {data.nbytes:,} bytes of host memory (CUresult {status}); it may lock too little "
            "memory for this user: see `ulimit -l`"
        )
