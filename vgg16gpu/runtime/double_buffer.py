"""Batches from arrays on the host, through two frames: a batch is staged and uploaded while the one before is computed.

host       fill 1 |  fill 2  |  fill 3  | ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from vgg16gpu.devices.base import Bytes, Device
from vgg16gpu.devices.staging import PinnedCopier, Rows
from vgg16gpu.runtime.frames import IoBinding, StagingBuffer, StagingBuffers
from vgg16gpu.runtime.outputs import OutputRows, Outputs

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
