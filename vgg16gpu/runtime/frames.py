"""Batches on their way through a device: one is uploaded and one downloaded while a third is computed.

    upload            | 1        | 2        | 3
    compute              | 1        | 2        | 3
    download                        | 1        | 2

The kernels read and write at fixed places, which the batch at work needs. So the images of a batch gather in a frame, a
buffer of its own on the device, and are moved from there right before the launches; results are moved out of the way in
the same manner before they are downloaded. Moving 20 MB takes 10 us on an H200, 0.2 % of what computing such a batch
takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vgg16gpu.devices.base import Bytes, Device, Event, Stream
from vgg16gpu.devices.staging import Rows
from vgg16gpu.runtime.outputs import OutputRows


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
