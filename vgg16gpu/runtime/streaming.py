"""Batches on their way through an engine: staging buffers, two batches under way, uploads beside launches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from vgg16gpu.devices.base import Bytes, Device, Event, Stream
from vgg16gpu.devices.staging import PinnedCopier, Rows
from vgg16gpu.runtime.outputs import OutputRows, Outputs


class Span(NamedTuple):
    """A place on the device."""

    address: int
    nbytes: int


@dataclass(frozen=True)
class IoBinding:
    """Where batches of one size and element type go in and come out, and what runs between the two."""

    shape: tuple[int, ...]  # of the images
    element_type: str
    input: Span  # begins with the images; the rest of it must be zeros
    output: Span
    launch: Callable[[], None]
    results: Callable[[Bytes, int], OutputRows]  # what a copy of `output` says of the first images, so many

    @property
    def images_nbytes(self) -> int:
        """The bytes of a whole batch of images."""
        return math.prod(self.shape) * np.dtype(self.element_type).itemsize

    def images(self, buffer: Bytes) -> Rows:
        """The part of a host buffer that holds the images, as an array."""
        return buffer[: self.images_nbytes].view(self.element_type).reshape(self.shape)

    def rest(self, buffer: Bytes) -> Bytes:
        """What lies behind the images in a host buffer."""
        return buffer[self.images_nbytes : self.input.nbytes]


@dataclass(eq=False)
class StagingBuffer:
    """Room for one batch: where its images gather, and where its results arrive."""

    input: int  # address of the images, with zeros behind a batch of the largest size
    output: int
    target: Bytes  # on the host, pinned
    computed: Event
    downloaded: Event
    under_way: bool = False


class StagingBuffers:
    """Room for `depth` batches of one element type, of any size in `ports`, used in turn.

    One thread at a time. Frames that were left with a batch under way can be used on: `take` waits for it. All memory
    is given back by `close`, or with the device.
    """

    def __init__(self, device: Device, ports: Mapping[int, IoBinding], depth: int) -> None:
        """Allocate. Raises DeviceError when memory runs out."""
        self._device, self._ports = device, ports
        largest = max(ports.values(), key=lambda port: port.input.nbytes)
        sizes = largest.input.nbytes, max(port.output.nbytes for port in ports.values())
        with ExitStack() as undo:
            self._frames = [_frame(device, sizes, undo) for _ in range(depth)]
            self._undo = undo.pop_all()
        for frame in self._frames:
            device.zero(frame.input, sizes[0])
        device.synchronize()  # before an upload, which is in another stream
        self._uploaded = device.event()

    def take(self) -> StagingBuffer:
        """The frame whose turn it is, once no batch is under way in it."""
        frame = self._frames.pop(0)
        self._frames.append(frame)
        if frame.under_way:
            self._device.wait(frame.downloaded)
            frame.under_way = False
        return frame

    def upload(self, frame: StagingBuffer, data: npt.NDArray[np.generic], offset: int = 0) -> None:
        """Enqueue a copy of pinned memory to the frame's images, from byte `offset` on."""
        self._device.copy_in(frame.input + offset, data, Stream.UPLOAD)

    def launch(self, frame: StagingBuffer, batch: int) -> None:
        """Enqueue a run of size `batch`, behind all that was uploaded or computed into the frame."""
        device, port = self._device, self._ports[batch]
        device.record(self._uploaded, Stream.UPLOAD)
        device.follow(Stream.COMPUTE, self._uploaded)
        device.copy_on_device(port.input.address, frame.input, port.input.nbytes)
        port.launch()
        device.copy_on_device(frame.output, port.output.address, port.output.nbytes)
        device.record(frame.computed, Stream.COMPUTE)
        device.follow(Stream.DOWNLOAD, frame.computed)
        device.copy_out(frame.target[: port.output.nbytes], frame.output, Stream.DOWNLOAD)
        device.record(frame.downloaded, Stream.DOWNLOAD)
        frame.under_way = True

    def receive(self, frame: StagingBuffer, batch: int, count: int) -> OutputRows:
        """Wait for a batch: what came of its first `count` images."""
        self._device.wait(frame.downloaded)
        frame.under_way = False
        port = self._ports[batch]
        return port.results(frame.target[: port.output.nbytes], count)

    def images(self, frame: StagingBuffer, batch: int, chosen: npt.NDArray[np.intp]) -> Rows:
        """Some of the images of the batch that was received last from this frame, brought back from the device."""
        port = self._ports[batch]
        nbytes = port.images_nbytes // port.shape[0]
        rows = np.empty((len(chosen), nbytes), np.uint8)
        for row, i in zip(rows, chosen.tolist(), strict=True):
            self._device.copy_out(row, frame.input + i * nbytes)
        self._device.synchronize()
        return rows.view(port.element_type).reshape(-1, *port.shape[1:])

    def drain(self) -> None:
        """Wait for all that is under way."""
        for _ in range(len(self._frames)):
            self.take()

    def close(self) -> None:
        """Give all memory back; nothing may be under way. Safe to call twice."""
        self._undo.close()


def _frame(device: Device, sizes: tuple[int, int], undo: ExitStack) -> StagingBuffer:
    def allocated(nbytes: int) -> int:
        address = device.allocate(nbytes)
        undo.callback(device.free, address)
        return address

    images, results = map(allocated, sizes)
    target = device.pinned(sizes[1])
    undo.callback(device.unpin, target)
    return StagingBuffer(images, results, target, device.event(), device.event())


DEPTH = 2  # batches under way: one is computed, the next is there when it ends


@dataclass(frozen=True, eq=False)
class Sent:
    """A batch under way. source: where its images lie on the host; None where they came straight from the caller's."""

    frame: StagingBuffer
    port: IoBinding
    source: Bytes | None
    count: int


class EnqueueBatch(Protocol):
    """What enqueues a batch: the rows of several arrays, at the smallest built size that holds them, or at `batch`."""

    def __call__(self, rows: Sequence[Rows], batch: int | None = None) -> Sent:
        """The rows may change on return."""


class StreamSession(NamedTuple):
    """A way for batches of one form through an engine, `DEPTH` of them under way at most."""

    send: EnqueueBatch
    take: Callable[
        [], StagingBuffer
    ]  # of a direct one, in one's turn: for who brings images there on the device, and then ...
    launch: Callable[[StagingBuffer, int, int], Sent]  # ... has a batch of a size run, and so many first images of it
    receive: Callable[[Sent], OutputRows]  # in the order of sending
    joined: Callable[..., Outputs]  # of all results of an input; raises InputError for those that are not valid


class Pipeline:
    """Room for `DEPTH` batches of one element type, of any size in `ports`.

    One thread at a time. A pipeline that was left with batches under way can be used on: a frame is waited for before
    its buffer is filled again. Its memory is given back by `close`, or with the device.

    is_direct: rows go to the device from where they lie, without a copy on the host, each by a copy of its own. They
    stay as they are until their batch has been received, and should be pinned.
    """

    def __init__(
        self, device: Device, stager: PinnedCopier, ports: Mapping[int, IoBinding], *, is_direct: bool = False
    ) -> None:
        """Allocate. Raises DeviceError when memory runs out."""
        self._stager, self._ports = stager, ports
        self._frames = StagingBuffers(device, ports, DEPTH)
        nbytes = max(port.input.nbytes for port in ports.values())
        self.nbytes = DEPTH * (nbytes + max(port.output.nbytes for port in ports.values()))  # on the device
        self._device = device
        self._is_direct = is_direct
        self._sources: list[Bytes] = []
        self._pinned: list[Bytes] = []
        rest = max(port.input.nbytes - port.images_nbytes for port in ports.values())
        try:
            for size in [rest] if is_direct else [nbytes] * DEPTH:
                self._pinned.append(device.pinned(size))
        except BaseException:
            self.close()
            raise
        if is_direct:
            self._zeros = self._pinned[0]
            self._zeros[:] = 0
        else:
            self._sources += self._pinned

    def send(self, batch: int, parts: Sequence[Rows]) -> Sent:
        """Enqueue a run of size `batch` on the rows of `parts`, which are copied before it returns, or sent."""
        if self._is_direct:
            return self._send_directly(batch, parts)
        frame, source, port = self._frames.take(), self._sources.pop(0), self._ports[batch]
        self._sources.append(source)
        self._stager.fill(port.images(source), parts)
        port.rest(source).fill(0)
        self._frames.upload(frame, source[: port.input.nbytes])
        self._frames.launch(frame, batch)
        return Sent(frame, port, source, sum(len(part) for part in parts))

    def _send_directly(self, batch: int, parts: Sequence[Rows]) -> Sent:
        """Images that nobody wants stay what they were."""
        frame, place = self.take(), 0
        for part in parts:
            self._frames.upload(frame, part, place)
            place += part.nbytes
        return self.launch(frame, batch, sum(map(len, parts)))

    def take(self) -> StagingBuffer:
        """The frame of the next batch, for whoever brings images there himself; of a pipeline that is direct."""
        return self._frames.take()

    def launch(self, frame: StagingBuffer, batch: int, count: int) -> Sent:
        """Enqueue a run of size `batch` on the first `count` images of a frame; behind all images it finds zeros."""
        port = self._ports[batch]
        if rest := port.input.nbytes - port.images_nbytes:
            self._frames.upload(frame, self._zeros[:rest], port.images_nbytes)
        self._frames.launch(frame, batch)
        return Sent(frame, port, None, count)

    def receive(self, sent: Sent) -> tuple[Callable[[npt.NDArray[np.intp]], Rows], OutputRows]:
        """Wait for a batch: what gives copies of some of its images, until the next `send`, and what came of them."""
        batch = sent.port.shape[0]
        results = self._frames.receive(sent.frame, batch, sent.count)
        if sent.source is None:
            return partial(self._frames.images, sent.frame, batch), results
        return sent.port.images(sent.source)[: sent.count].__getitem__, results

    def close(self) -> None:
        """Give all memory back, once what is under way is done. Safe to call twice."""
        try:
            self._frames.drain()
        finally:
            self._frames.close()
            self._sources.clear()
            while self._pinned:
                self._device.unpin(self._pinned.pop())
