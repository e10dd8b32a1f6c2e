"""Slots into batches, batches through a device: the part of the pipeline that knows both."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from vgg16gpu.devices.base import Event, Stream
from vgg16gpu.pictures.slots import BufferPool, SampleRow, Slot
from vgg16gpu.runtime.engine import Engine
from vgg16gpu.runtime.outputs import OutputRows
from vgg16gpu.runtime.streaming import StagingBuffer

if TYPE_CHECKING:
    from vgg16gpu.compiler.op_kernels.layout.resize import ResizeSpec
    from vgg16gpu.runtime.answers.fitting import GpuResizer

DEPTH = 3  # batches: one is computed, one waits for that, one is filled
IN_UPLOAD = 2  # slots whose bytes may be on their way, or be read; the next one waits for the first of them


class Computed(NamedTuple):
    """A batch that is done."""

    rows: list[SampleRow]
    results: OutputRows
    seconds: float  # from its launch until it was received


@dataclass(eq=False)
class Batch:
    """What gathers in a frame."""

    frame: StagingBuffer
    rows: list[SampleRow] = field(default_factory=list)
    launched: float = 0.0


class BatchAssembler:
    """Samples of one element type, in batches of the engine's largest size.

    One thread at a time; `close` it before the engine. Raises DeviceError when memory runs out.
    """

    def __init__(self, engine: Engine, element_type: str, ring: BufferPool, fit: ResizeSpec | None) -> None:
        """fit: what is done to pictures that come as they are; None where there are none."""
        self._engine, self._device, self._ring = engine, engine.device, ring
        self._size = engine.program.batch
        with ExitStack() as undo, engine.turn() as executor:
            shape = executor.image_shape(self._size, element_type)
            self._frames = executor.frames(self._size, element_type, DEPTH)
            undo.callback(self._frames.close)
            self._fitter = self._fits(fit) if fit else None
            if self._fitter:
                undo.callback(self._fitter.close)
            self._events = deque(self._device.event() for _ in range(IN_UPLOAD + 1))
            self._undo = undo.pop_all()
        self._nbytes = int(np.prod(shape[1:])) * np.dtype(element_type).itemsize  # of a row
        self._filling: Batch | None = None
        self._under_way: deque[Batch] = deque()
        self._uploading: deque[tuple[Event, Slot]] = deque()

    def put(self, slot: Slot) -> Iterator[Computed]:
        """Bring the rows of a slot to the device; what is done meanwhile. The slot goes back to its ring by itself."""
        while len(self._uploading) >= IN_UPLOAD:
            self._recycle()
        images = self._begin(slot)
        first = 0
        while first < len(slot.rows):
            if self._filling is None:
                yield from self._open()
            assert self._filling is not None
            batch = self._filling
            rows = slot.rows[first : first + self._size - len(batch.rows)]
            with self._engine.turn():
                if images is None:
                    self._upload(slot, rows, batch)
                else:
                    self._take(images, first, len(rows), batch)
            batch.rows += rows
            first += len(rows)
            if len(batch.rows) == self._size:
                self._launch(batch)
        self._mark(slot, is_fitted=images is not None)

    def flush(self) -> Iterator[Computed]:
        """Run what is not a full batch, wait for all; everything that is not out yet."""
        if self._filling and self._filling.rows:
            self._launch(self._filling)
        while self._under_way:
            yield self._receive()
        while self._uploading:
            self._recycle()

    def _fits(self, fit: ResizeSpec) -> GpuResizer:
        from vgg16gpu.runtime.answers.fitting import GpuResizer  # noqa: PLC0415 - pictures may come as they are computed

        return GpuResizer(self._device, fit, self._ring.nbytes, self._ring.rows, self._ring.room_nbytes)

    def close(self) -> None:
        """Wait for what is under way, whose results nobody wants; give memory back."""
        with self._engine.turn():
            for batch in self._under_way:
                self._device.wait(batch.frame.downloaded)
            for event, _ in self._uploading:
                self._device.wait(event)
            self._under_way.clear()
            self._uploading.clear()
            self._undo.close()

    def _open(self) -> Iterator[Computed]:
        """Begin a batch, in the frame of the one that was sent `DEPTH` batches ago."""
        if len(self._under_way) == DEPTH:
            yield self._receive()
        with self._engine.turn():
            self._filling = Batch(self._frames.take())

    def _begin(self, slot: Slot) -> int | None:
        """The address of a slot's images, where they are made on the device."""
        if self._fitter is None or not (slot.room or any(row.height for row in slot.rows)):
            return None
        with self._engine.turn():
            return self._fitter.begin(slot)

    def _take(self, images: int, first: int, count: int, batch: Batch) -> None:
        place = batch.frame.input + len(batch.rows) * self._nbytes
        self._device.copy_on_device(place, images + first * self._nbytes, count * self._nbytes)

    def _upload(self, slot: Slot, rows: list[SampleRow], batch: Batch) -> None:
        first, last = rows[0].offset, rows[-1].offset + self._nbytes
        place = len(batch.rows) * self._nbytes
        if last - first == len(rows) * self._nbytes:
            self._frames.upload(batch.frame, slot.buffer[first:last], place)
            return
        for number, row in enumerate(rows):  # they were filled with gaps
            sample = slot.buffer[row.offset : row.offset + self._nbytes]
            self._frames.upload(batch.frame, sample, place + number * self._nbytes)

    def _mark(self, slot: Slot, *, is_fitted: bool) -> None:
        event = self._events.popleft()
        with self._engine.turn():
            if self._fitter and is_fitted:
                self._fitter.end()
            self._device.record(event, Stream.COMPUTE if slot.room else Stream.UPLOAD)  # the last that reads it
        self._uploading.append((event, slot))

    def _recycle(self) -> None:
        event, slot = self._uploading.popleft()
        with self._engine.turn():
            self._device.wait(event)
        self._events.append(event)
        self._ring.give_back(slot)

    def _launch(self, batch: Batch) -> None:
        batch.launched = time.perf_counter()
        with self._engine.turn():
            self._frames.launch(batch.frame, self._size)
        self._under_way.append(batch)
        self._filling = None

    def _receive(self) -> Computed:
        batch = self._under_way.popleft()
        with self._engine.turn() as executor:
            results = self._frames.receive(batch.frame, self._size, len(batch.rows))
            images = partial(self._frames.images, batch.frame, self._size)
            finished = executor.finished(results, images)
        return Computed(batch.rows, finished, time.perf_counter() - batch.launched)
