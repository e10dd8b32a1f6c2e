"""Batches on their way through a device: one is uploaded and one downloaded while a third is computed.

    host       fill 1 |  fill 2  |  fill 3  | ...
    upload            | 1        | 2        | 3
    compute              | 1        | 2        | 3
    download                        | 1        | 2

The kernels read and write at fixed places, which the batch at work needs. So an upload goes to a buffer of its own, and
is moved from there on the device, right before the launches; results are moved out of the way in the same manner before
they are downloaded. Moving 20 MB takes 10 us on an H200, 0.2 % of what computing such a batch takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from vgg16gpu.devices.base import Bytes, Device, Event, Lane
from vgg16gpu.devices.staging import Rows, Stager
from vgg16gpu.runtime.outputs import Results

DEPTH = 2  # batches under way: one is computed, the next is there when it ends


class Span(NamedTuple):
    """A place on the device."""

    address: int
    nbytes: int


@dataclass(frozen=True)
class Port:
    """Where batches of one size and element type go in and come out, and what runs between the two."""

    shape: tuple[int, ...]  # of the images
    element_type: str
    input: Span  # begins with the images; the host sends zeros as the rest of it
    output: Span
    launch: Callable[[], None]
    results: Callable[[Bytes, int], Results]  # what a copy of `output` says of the first images, so many

    def images(self, buffer: Bytes) -> Rows:
        """The part of a host buffer that holds the images, as an array."""
        dtype = np.dtype(self.element_type)
        return buffer[: math.prod(self.shape) * dtype.itemsize].view(dtype).reshape(self.shape)

    def rest(self, buffer: Bytes) -> Bytes:
        """What lies behind the images in a host buffer."""
        return buffer[self.images(buffer).nbytes : self.input.nbytes]


@dataclass(eq=False)
class Slot:
    """The host's buffers of one batch."""

    source: Bytes
    target: Bytes
    downloaded: Event
    under_way: bool = False


@dataclass(frozen=True, eq=False)
class Sent:
    """A batch under way."""

    slot: Slot
    port: Port
    count: int


class Pipeline:
    """Room for `DEPTH` batches of one element type, of any size in `ports`.

    One thread at a time. A pipeline that was left with batches under way can be used on: a slot is waited for before it
    is filled again. Its memory goes with the device.
    """

    def __init__(self, device: Device, stager: Stager, ports: Mapping[int, Port]) -> None:
        """Allocate. Raises DeviceError when memory runs out."""
        self._device, self._stager, self._ports = device, stager, ports
        sizes = max(port.input.nbytes for port in ports.values()), max(port.output.nbytes for port in ports.values())
        with ExitStack() as undo:
            self._input, self._output = (_allocated(device, nbytes, undo) for nbytes in sizes)
            buffers = [(device.pinned(sizes[0]), device.pinned(sizes[1])) for _ in range(DEPTH)]
            undo.pop_all()
        self._slots = [Slot(source, target, device.event()) for source, target in buffers]
        self._uploaded, self._taken, self._computed = (device.event() for _ in range(3))
        self._drained = self._slots[-1].downloaded  # of the batch before

    def send(self, batch: int, parts: Sequence[Rows]) -> Sent:
        """Enqueue a run of size `batch` on the rows of `parts`, which are copied before it returns."""
        slot = self._slots.pop(0)
        self._slots.append(slot)
        if slot.under_way:
            self._device.wait(slot.downloaded)
        port = self._ports[batch]
        self._stager.fill(port.images(slot.source), parts)
        port.rest(slot.source).fill(0)
        slot.under_way = True
        self._enqueue(slot, port)
        return Sent(slot, port, sum(len(part) for part in parts))

    def receive(self, sent: Sent) -> tuple[Rows, Results]:
        """Wait for a batch: its images, which the next `send` may overwrite, and what came of them."""
        slot, port = sent.slot, sent.port
        self._device.wait(slot.downloaded)
        slot.under_way = False
        results = port.results(slot.target[: port.output.nbytes], sent.count)
        return port.images(slot.source)[: sent.count], results

    def _enqueue(self, slot: Slot, port: Port) -> None:
        device = self._device
        device.follow(Lane.UPLOAD, self._taken)  # by the batch before
        device.copy_in(self._input, slot.source[: port.input.nbytes], Lane.UPLOAD)
        device.record(self._uploaded, Lane.UPLOAD)

        device.follow(Lane.COMPUTE, self._uploaded)
        device.copy_on_device(port.input.address, self._input, port.input.nbytes)
        device.record(self._taken, Lane.COMPUTE)
        port.launch()
        device.follow(Lane.COMPUTE, self._drained)
        device.copy_on_device(self._output, port.output.address, port.output.nbytes)
        device.record(self._computed, Lane.COMPUTE)

        device.follow(Lane.DOWNLOAD, self._computed)
        device.copy_out(slot.target[: port.output.nbytes], self._output, Lane.DOWNLOAD)
        device.record(slot.downloaded, Lane.DOWNLOAD)
        self._drained = slot.downloaded


def _allocated(device: Device, nbytes: int, undo: ExitStack) -> int:
    address = device.allocate(nbytes)
    undo.callback(device.free, address)
    return address
