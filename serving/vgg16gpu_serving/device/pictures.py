"""Pictures in slots, resized on the device into the images of a batch; files are decoded there first."""

from __future__ import annotations

import io
import math
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import numpy as np
from PIL import Image

from vgg16gpu.devices.base import Bytes, Event, Stream
from vgg16gpu.devices.picture_decoder import PictureCodec, PictureDecoder
from vgg16gpu.pictures.inputs import InputSpec
from vgg16gpu.pictures.jpeg import baseline_shape
from vgg16gpu.pictures.slots import DeviceBuffer, SampleRow, Slot
from vgg16gpu.runtime.answers.decoding import ROOM_NBYTES, FileDecoding
from vgg16gpu.runtime.answers.fitting import GpuResizer, fit_of
from vgg16gpu.runtime.closing import Closing
from vgg16gpu.runtime.engine import Engine
from vgg16gpu.runtime.streaming import Sent, StreamSession
from vgg16gpu_serving.slots import Picture, picture_in, put_picture

_ROOMS: Final = 2  # one is decoded into while the other is read; fewer than the fitter has pools
_NO_BYTES: Final = np.empty(0, np.uint8)


@dataclass(eq=False)
class _Place:
    """Memory of the device for the pictures of a part of a batch. read: what read them is done."""

    address: int
    read: Event
    is_used: bool = False


class PictureLane(Closing):
    """A way for pictures through an engine, behind `lane`, which takes pixels. One thread at a time.

    spec: of the network. codec: what decodes files; None where none come. largest: pictures of a batch. room_nbytes:
    memory of the device that the pictures of a part of a batch may take. Close it before the engine. Raises DeviceError
    when memory runs out, KernelError where a kernel cannot be had.
    """

    def __init__(
        self,
        engine: Engine,
        lane: StreamSession,
        spec: InputSpec,
        codec: PictureCodec | None,
        largest: int,
        room_nbytes: int = ROOM_NBYTES,
    ) -> None:
        fit = fit_of(spec.preprocess, (spec.shape[1], spec.shape[2])) if spec.preprocess else None
        assert fit  # whoever lets a device resize has asked for it
        self._engine, self._device, self._lane = engine, engine.device, lane
        self._files = FileDecoding(engine, spec)
        self._channels, self._nbytes = spec.shape[0], math.prod(spec.shape)  # bytes of an image
        self._black = np.zeros(self._nbytes, np.uint8)
        self.room_nbytes = room_nbytes
        with ExitStack() as undo:
            self._decoder: PictureDecoder | None = None
            if codec:
                undo.callback(codec.close)
                self._decoder = codec.decoder()
                undo.callback(self._decoder.close)
            with engine.turn():
                self._places = deque(_Place(self._allocated(undo), self._device.event()) for _ in range(_ROOMS))
                self._fitter = GpuResizer(self._device, fit, 0, largest, room_nbytes)
                self._device.synchronize()  # rooms are zero
            undo.callback(self._fitter.close)
            self._undo = undo.pop_all()

    def close(self) -> None:
        """Wait for what is under way, and give everything back. Safe to call twice."""
        try:
            with self._engine.turn():
                self._device.synchronize()
        finally:
            self._undo.close()

    def send(self, slots: Sequence[Bytes], batch: int) -> tuple[Sent, int, frozenset[int]]:
        """Enqueue a batch of that size of the pictures in these slots.

        What `lane` receives, how many files there are among them, and the numbers of those that are refused. Slots stay
        as they are until their batch has been received, and should be pinned. Raises KernelError, if the device has
        failed.
        """
        rows, data = [], []
        for number, slot in enumerate(slots):
            picture = picture_in(slot)
            nbytes = len(picture.data) if picture.sampling else 0
            rows.append(SampleRow(number, 0, "", 0, picture.height, picture.width, nbytes, picture.sampling))
            data.append(picture.data)
        with self._engine.turn():
            frame = self._lane.take()
        refused = set[int]()
        for part in self._parts(rows):
            refused |= self._bring(rows[part], data[part], frame.input + part.start * self._nbytes)
        files = sum(row.nbytes > 0 for row in rows)
        return self._lane.launch(frame, batch, len(rows)), files, frozenset(refused)

    def warm_up(self, batches: Sequence[int]) -> None:
        """Run every batch size once."""
        picture = _a_file() if self._decoder else Picture(np.zeros(64 * 96 * self._channels, np.uint8), 64, 96)
        slot = np.zeros(len(picture.data) + 64, np.uint8)
        put_picture(slot, picture)
        for batch in batches:
            sent, _, _ = self.send([slot] * batch, batch)
            self._lane.receive(sent)

    def _parts(self, rows: Sequence[SampleRow]) -> Iterator[slice]:
        """Yield slices of as many rows as there is memory for."""
        first = taken = 0
        for number, row in enumerate(rows):
            needed = self._files.needed(row)
            if taken + needed > self.room_nbytes and number > first:
                yield slice(first, number)
                first, taken = number, 0
            taken += needed
        yield slice(first, len(rows))

    def _bring(self, rows: Sequence[SampleRow], data: Sequence[Bytes], images: int) -> set[int]:
        """Write images of rows to an address; return the rows of refused files, which are black.

        Nobody but front ends decodes these: this is the only thread of a device. What was decoded is made zero behind
        the kernel that reads it, as a decoder may leave parts of a damaged picture as they were.
        """
        place = self._places[0]
        self._places.rotate(-1)
        if place.is_used:
            with self._engine.turn():
                self._device.wait(place.read)
        addresses, there = self._files.on_device(self._decoder, rows, data, place.address)
        found = [
            row if i in there else self._uploaded(row, data[i], address)
            for i, (row, address) in enumerate(zip(rows, addresses, strict=True))
        ]
        room = DeviceBuffer(place.address, lambda: None)
        slot = Slot(_NO_BYTES, is_pinned=False, rows=found, room=room, addresses=addresses)
        used = addresses[-1] - place.address + self._files.needed(rows[-1])
        with self._engine.turn():
            fitted = self._fitter.begin(slot)
            self._device.copy_on_device(images, fitted, len(rows) * self._nbytes)
            self._fitter.end()
            if self._decoder:
                self._device.zero(place.address, used)
            self._device.record(place.read, Stream.COMPUTE)
        place.is_used = True
        return {row.file for i, row in enumerate(rows) if row.nbytes and i not in there}

    def _uploaded(self, row: SampleRow, data: Bytes, address: int) -> SampleRow:
        """Upload pixels; black in place of a file that is refused."""
        if row.nbytes:
            self._files.upload(address, self._black)
            return SampleRow(row.file, 0, "", 0)
        self._files.upload(address, data)
        return row

    def _allocated(self, undo: ExitStack) -> int:
        address = self._device.allocate(self.room_nbytes)
        undo.callback(self._device.free, address)
        self._device.zero(address, self.room_nbytes)
        return address


def _a_file() -> Picture:
    """Return a black JPEG file."""
    written = io.BytesIO()
    Image.new("RGB", (96, 64)).save(written, "JPEG")
    data = written.getvalue()
    found = baseline_shape(data)
    assert found
    return Picture(np.frombuffer(data, np.uint8), *found)
