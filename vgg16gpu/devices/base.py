"""What a device is: the one interface between the engine and the hardware."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from vgg16gpu.errors import KernelError
from vgg16gpu.program.launch import Kernel, KernelLaunch
from vgg16gpu.program.types import Arena, DeviceFacts

Bytes: TypeAlias = npt.NDArray[np.uint8]
Event: TypeAlias = int  # a mark in a stream, named by a number


class Stream(Enum):
    """A queue of work: in order by itself, beside the others unless an event holds it back."""

    COMPUTE = "compute"  # launches, and every copy that is not told otherwise
    UPLOAD = "upload"
    DOWNLOAD = "download"


class Transfer(NamedTuple):
    """A copy that every run makes: `host` is, or lies in, a buffer from `Device.pinned`."""

    host: Bytes
    address: int  # of its counterpart on the device


@dataclass
class Counters:
    """What a device has done since it was opened."""

    copies_in: int = 0
    copies_out: int = 0
    launches: int = 0  # of kernels, copies from place to place on the device, and zeroing there
    synchronisations: int = 0
    allocations: int = 0

    def since(self, earlier: Counters) -> Counters:
        """Return the difference to an earlier copy."""
        return Counters(*(now - then for now, then in zip(vars(self).values(), vars(earlier).values(), strict=True)))


class CardMemory(Protocol):
    """Memory of a card that belongs to whoever holds this object, whether the device that made it is open or not."""

    address: int

    def read(self, target: npt.NDArray[np.generic]) -> None:
        """Copy the first bytes to a contiguous host array, and wait for it."""


class Captured(Protocol):
    """Work of another library as one CUDA graph."""

    def __call__(self) -> None:
        """Enqueue it on the compute stream. Raises KernelError."""

    def close(self) -> None:
        """Free the graph, which must not be under way. Safe to call twice, and after the device is closed."""


class ArrayInterop(Protocol):
    """What other libraries have on the same card: their memory and streams, and what is made for them."""

    ordinal: int  # of the card

    @property
    def stream(self) -> int:
        """The handle of the compute stream."""

    def card_of(self, address: int) -> int | None:
        """Return the number of the card whose memory this is; None for other memory."""

    def follow(self, stream: int) -> None:
        """Hold back what will be enqueued on the compute stream until all on this foreign one now is done."""

    def lead(self, stream: int) -> None:
        """Hold back what will be enqueued on this foreign stream until all on the compute stream now is done."""

    def captures(self, stream: int) -> bool:
        """Return whether what is enqueued on this foreign stream now goes into a CUDA graph."""

    def open_stream(self) -> int:
        """Return the handle of a further stream, which waits for no other one; valid as long as the device is open."""

    def finish(self, stream: int) -> None:
        """Wait for everything on a stream; from any thread, at any time. Raises KernelError if something failed."""

    def used_nbytes(self) -> int:
        """Return the bytes of the card's memory in use, by any process."""

    def memory(self, nbytes: int) -> CardMemory:
        """Allocate memory. Raises DeviceError when it runs out."""

    def current(self) -> AbstractContextManager[None]:
        """Make this card's context current inside a block, to call another library there."""

    def capture(self, work: Callable[[], None]) -> Captured:
        """Return what `work` enqueues on the compute stream, as one CUDA graph; nothing is executed.

        Raises KernelError for what cannot be captured, DeviceError without cuda-bindings, and what `work` raises.
        """


class Device(Protocol):
    """Compile, allocate, upload, bind, run, read back, time. Every method raises only vgg16gpu errors.

    Work is asynchronous and in order within its stream: launches and copies return before they are done; `synchronize`
    and `wait` wait. Methods may be called from any thread, one at a time.
    """

    facts: DeviceFacts
    counters: Counters

    @property
    def foreign(self) -> ArrayInterop | None:
        """Interoperation with other libraries on this card; None without a card."""

    def build(self, kernels: Iterable[Kernel]) -> None:
        """Compile (or take from the cache) and load kernels. Raises KernelError with the compiler's message."""

    def constant(self, kernel: Kernel, name: str) -> int:
        """Return the address of a `__constant__` array that a built kernel's file defines outside of namespaces.

        Copies to and from it work like others. It is shared by the kernels of that file and those macros, and there as
        long as the device is open. Raises KernelError where there is no such array.
        """

    def allocate(self, nbytes: int) -> int:
        """Allocate device memory, aligned to 256 bytes; return its address. Raises DeviceError with need and free."""

    def free(self, address: int) -> None:
        """Free the memory of `allocate`."""

    def pinned(self, nbytes: int) -> Bytes:
        """Return a host buffer for fast copies to and from the device; freed with the device, if not before."""

    def pin(self, memory: Bytes) -> None:
        """Pin memory of the caller's, whole pages, for copies as fast as those of `pinned`. Raises DeviceError."""

    def unpin(self, buffer: Bytes) -> None:
        """Free the memory of `pinned`, or undo `pin`. No copy there or from there may be under way."""

    def copy_in(self, address: int, source: npt.NDArray[np.generic], stream: Stream = Stream.COMPUTE) -> None:
        """Enqueue a copy of a contiguous host array to the device."""

    def copy_out(self, target: npt.NDArray[np.generic], address: int, stream: Stream = Stream.COMPUTE) -> None:
        """Enqueue a copy from the device into a contiguous host array."""

    def copy_on_device(self, target: int, source: int, nbytes: int) -> None:
        """Enqueue a copy from one address to another, on the compute stream."""

    def zero(self, address: int, nbytes: int) -> None:
        """Enqueue that these bytes become zero, on the compute stream; counts as a launch."""

    def event(self) -> Event:
        """Return a new event, which counts as reached until it is recorded; freed with the device."""

    def record(self, event: Event, stream: Stream) -> None:
        """Put the event behind everything enqueued on `stream`, from where it was recorded before."""

    def follow(self, stream: Stream, event: Event) -> None:
        """Hold back what will be enqueued on `stream` until the event is reached, as it is recorded now."""

    def wait(self, event: Event) -> None:
        """Wait until the event is reached; counts as a synchronisation. Raises KernelError if a launch failed."""

    def bind(
        self, steps: Sequence[KernelLaunch], bases: Mapping[Arena, int], *, as_graph: bool = True
    ) -> Callable[[], None]:
        """Resolve arguments once; the result enqueues all steps in order. Their kernels must be built.

        as_graph: as one CUDA graph where the device has such; else launch by launch, for a stream that captures.
        """

    def unbind(self, launch: Callable[[], None]) -> None:
        """Free the result of `bind` or `round_trip`, which must not be called again, nor be under way.

        Anything else that can be called is left alone. Kernels stay: other launches have them too.
        """

    def round_trip(self, upload: Transfer, launch: Callable[[], None], download: Transfer) -> Callable[[], None]:
        """Prepare a run: `upload` to the device, what `bind` returned, `download` to the host, and wait for it.

        The result does it all and counts each part. Raises KernelError if a launch failed.
        """

    def synchronize(self) -> None:
        """Wait for everything enqueued on the compute stream. Raises KernelError if a launch failed."""

    def measure(self, work: Callable[[], None], repeats: int) -> list[float]:
        """Return seconds on the device of each of `repeats` calls of `work` (events around it on a GPU)."""

    def measure_back_to_back(self, work: Callable[[], None], repeats: int) -> float:
        """Return seconds on the device per call of `work`, enqueued `repeats` times without waiting in between."""

    def close(self) -> None:
        """Free everything. Safe to call twice."""


def no_constant(kernel: Kernel, name: str) -> KernelError:
    """Return the error of `Device.constant` for an unknown name."""
    return KernelError(
        f"{kernel.source} has no __constant__ array '{name}' that {kernel.label} could read; write at the file's top "
        f"level: __constant__ float {name}[LENGTH];"
    )


def step_by_step(
    device: Device, upload: Transfer, launch: Callable[[], None], download: Transfer
) -> Callable[[], None]:
    """Return a round trip of four calls, for devices that have no shorter way."""

    def run() -> None:
        device.copy_in(upload.address, upload.host)
        launch()
        device.copy_out(download.host, download.address)
        device.synchronize()

    return run


@dataclass(frozen=True)
class KernelResources:
    """What the compiler says a kernel takes; zero where it does not say."""

    registers: int = 0
    shared_nbytes: int = 0
    local_nbytes: int = 0  # spills and stack
