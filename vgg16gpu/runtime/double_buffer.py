"""Batches from arrays on the host, through two frames: a batch is staged and uploaded while the one before is computed.

host       fill 1 |  fill 2  |  fill 3  | ...
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vgg16gpu.devices.base import Bytes, Device
from vgg16gpu.devices.staging import Rows, Stager
from vgg16gpu.runtime.frames import Frame, Frames, Port
from vgg16gpu.runtime.outputs import Results

DEPTH = 2  # batches under way: one is computed, the next is there when it ends


@dataclass(frozen=True, eq=False)
class Sent:
    """A batch under way."""

    frame: Frame
    port: Port
    source: Bytes
    count: int


class Pipeline:
    """Room for `DEPTH` batches of one element type, of any size in `ports`.

    One thread at a time. A pipeline that was left with batches under way can be used on: a frame is waited for before
    its buffer is filled again. Its memory is given back by `close`, or with the device.
    """

    def __init__(self, device: Device, stager: Stager, ports: Mapping[int, Port]) -> None:
        """Allocate. Raises DeviceError when memory runs out."""
        self._stager, self._ports = stager, ports
        self._frames = Frames(device, ports, DEPTH)
        nbytes = max(port.input.nbytes for port in ports.values())
        self.nbytes = DEPTH * (nbytes + max(port.output.nbytes for port in ports.values()))  # on the device
        self._device = device
        self._sources: list[Bytes] = []
        try:
            for _ in range(DEPTH):
                self._sources.append(device.pinned(nbytes))
        except BaseException:
            self.close()
            raise

    def send(self, batch: int, parts: Sequence[Rows]) -> Sent:
        """Enqueue a run of size `batch` on the rows of `parts`, which are copied before it returns."""
        frame, source, port = self._frames.take(), self._sources.pop(0), self._ports[batch]
        self._sources.append(source)
        self._stager.fill(port.images(source), parts)
        port.rest(source).fill(0)
        self._frames.upload(frame, source[: port.input.nbytes])
        self._frames.launch(frame, batch)
        return Sent(frame, port, source, sum(len(part) for part in parts))

    def receive(self, sent: Sent) -> tuple[Rows, Results]:
        """Wait for a batch: its images, which the next `send` may overwrite, and what came of them."""
        batch = sent.port.shape[0]
        results = self._frames.receive(sent.frame, batch, sent.count)
        return sent.port.images(sent.source)[: sent.count], results

    def close(self) -> None:
        """Give all memory back, once what is under way is done. Safe to call twice."""
        try:
            self._frames.drain()
        finally:
            self._frames.close()
            while self._sources:
                self._device.unpin(self._sources.pop())
