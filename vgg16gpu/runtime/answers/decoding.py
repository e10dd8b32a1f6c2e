"""Decode pictures on the device: files in buffers, batches of them."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from queue import SimpleQueue
from typing import Final, NamedTuple, Protocol, Self, TypeAlias

import numpy as np

from vgg16gpu.devices.base import Bytes, Stream
from vgg16gpu.devices.picture_decoder import PictureCodec, PictureDecoder, Place
from vgg16gpu.errors import InputError
from vgg16gpu.pictures.decoding import Decoder
from vgg16gpu.pictures.inputs import InputSpec
from vgg16gpu.pictures.slots import BufferPool, Closed, DeviceBuffer, Failure, SampleRow, Slot, aligned
from vgg16gpu.runtime.closing import Closing
from vgg16gpu.runtime.engine import Engine


class Decoded(NamedTuple):
    """What became of rows.

    rows: as they lie now, at `addresses`; None where there is no picture, of which a failure tells. refused: how many
    the CPU was asked for.
    """

    rows: list[SampleRow | None]
    addresses: list[int]
    failures: list[Failure]
    refused: int


class FileDecoding:
    """Brings rows to the device of an engine, for a network that takes `spec`. Several threads may use it.

    A file that a decoder refuses alone is decoded as if there were none, from the bytes that are there; so which pixels
    it gets depends on nothing but itself.
    """

    def __init__(self, engine: Engine, spec: InputSpec) -> None:
        self._engine = engine
        self._cpu = Decoder(spec)
        self._fitted = math.prod(spec.shape)  # bytes of a picture as the network takes it

    def needed(self, row: SampleRow) -> int:
        """Bytes on the device, as a loader counts them."""
        if row.nbytes:
            return self._cpu.room_nbytes(row.height, row.width, row.sampling)
        return aligned(self.nbytes(row))

    def nbytes(self, row: SampleRow) -> int:
        """Bytes of the row on the host: of a file, of a picture, or of what the network takes."""
        return row.nbytes or row.height * row.width * self._cpu.channels or self._fitted

    def decode(
        self, decoder: PictureDecoder | None, rows: Sequence[SampleRow], data: Sequence[Bytes], address: int
    ) -> Decoded:
        """All rows as planes, as pictures or as what the network takes, from `address` on. data: the bytes of each.

        decoder: None where there turned out to be none; then all files are refused.
        """
        addresses, there = self.on_device(decoder, rows, data, address)
        failures: list[Failure] = []
        found = [
            row if i in there else self._by_cpu(row, data[i], addresses[i], failures) for i, row in enumerate(rows)
        ]
        return Decoded(found, addresses, failures, sum(row.nbytes > 0 for row in rows) - len(there))

    def on_device(
        self, decoder: PictureDecoder | None, rows: Sequence[SampleRow], data: Sequence[Bytes], address: int
    ) -> tuple[list[int], set[int]]:
        """Where each row has its place, from `address` on; and the numbers of the files that lie decoded in theirs."""
        ends = accumulate((self.needed(row) for row in rows), initial=address)
        addresses = [end for end, _ in zip(ends, rows, strict=False)]
        files = [i for i, row in enumerate(rows) if row.nbytes]
        places = [_place(addresses[i], rows[i]) for i in files]
        taken = _taken(decoder, [data[i] for i in files], places)
        return addresses, {i for i, is_there in zip(files, taken, strict=True) if is_there}

    def upload(self, address: int, pixels: Bytes) -> None:
        """Enqueue a copy to a place of a row; what reads there waits for it."""
        with self._engine.turn():
            self._engine.device.copy_in(address, pixels, Stream.UPLOAD)

    def _by_cpu(self, row: SampleRow, data: Bytes, address: int, failures: list[Failure]) -> SampleRow | None:
        """A row that no decoder has put in its place; None where there is no picture, which `failures` say then."""
        if not row.nbytes:
            self.upload(address, data)
            return row
        file = data.tobytes()
        pixels = np.empty(row.height * row.width * self._cpu.channels, np.uint8)
        try:
            if self._cpu.shape(file) and self._cpu.decode_into(file, pixels):
                self.upload(address, pixels)
                return row._replace(nbytes=0, sampling=0)
            fitted = self._cpu.fitted(file, row.name)
        except InputError as error:
            failures.append(Failure(row.file, row.sample, row.name, str(error)))
            return None
        self.upload(address, np.ascontiguousarray(fitted).reshape(-1))
        return row._replace(height=0, width=0, nbytes=0, sampling=0)


def _place(address: int, row: SampleRow) -> Place:
    return Place(address, row.height, row.width, row.sampling)


def _taken(decoder: PictureDecoder | None, files: Sequence[Bytes], places: Sequence[Place]) -> list[bool]:
    """Which files the decoder decodes. Refused ones are asked for in halves, down to each alone: others may be why."""
    if decoder is None or not files:
        return [False] * len(files)
    taken = decoder.decode(files, places)
    left = [i for i, is_there in enumerate(taken) if not is_there]
    middle = len(left) // 2
    for half in (left[:middle], left[middle:]) if len(files) > 1 else ():
        again = _taken(decoder, [files[i] for i in half], [places[i] for i in half])
        for i, is_there in zip(half, again, strict=True):
            taken[i] = is_there
    return taken


DECODERS: Final = 1  # side by side: what a second one gains on the card it loses in the interpreter
ROWS: Final = 128  # files of a slot, decoded in one call
FILES_NBYTES: Final = 12 << 20  # of a slot of files
ROOM_NBYTES: Final = 96 << 20  # of a slot's pictures on the device: 170 of 500x375
SPARE_ROOMS: Final = 3  # beside one for each decoder: two that are read by the kernel, one that waits for it

_END: Final = object()
_Item: TypeAlias = "Future[Slot] | Slot | BaseException | object | None"


class Slots(Protocol):
    """Where slots come from: a loader, or one's hand of it."""

    @property
    def spec(self) -> InputSpec:
        """What a sample is."""

    @property
    def ring(self) -> BufferPool:
        """Where slots go back to."""

    def __iter__(self) -> Iterator[Slot | None]:
        """Filled slots; None where all must be computed before there are more."""


@dataclass
class DecodedFiles:
    """What became of the files that the device was asked to decode. seconds: of all decoders together."""

    by: str
    decoders: int
    count: int = 0
    refused: int = 0  # of these, that the CPU was asked for
    failed: int = 0  # of these, that nobody decodes
    seconds: float = 0.0

    def add(self, other: Self) -> None:
        """What the decoders of another device did beside these."""
        self.decoders += other.decoders
        self.count += other.count
        self.refused += other.refused
        self.failed += other.failed
        self.seconds += other.seconds

    @property
    def rate(self) -> float | None:
        """Files a second of all decoders at work together; None if there was none."""
        return self.count * self.decoders / self.seconds if self.seconds else None


class DeviceDecoding(Closing):
    """A loader's slots, the files in them decoded. Iterate over it once, in one thread, and `close` it.

    Raises what the decoders, the loader and its threads raise.
    """

    def __init__(self, engine: Engine, loader: Slots, codec: PictureCodec | None) -> None:
        """codec: None where there turned out to be none; then all files are refused."""
        self._engine, self._device, self._loader = engine, engine.device, loader
        self._files = FileDecoding(engine, loader.spec)
        self.told = DecodedFiles(codec.name if codec else "the CPU", DECODERS)
        self._lock = threading.Lock()
        self._out: SimpleQueue[_Item] = SimpleQueue()
        self._decoders: SimpleQueue[Future[PictureDecoder | None]] = SimpleQueue()
        self._rooms = _Rooms()
        self._threads = ThreadPoolExecutor(DECODERS, "vgg16gpu-gpu-decode")
        with ExitStack() as undo:
            if codec:
                undo.callback(codec.close)
            undo.callback(self._threads.shutdown, cancel_futures=True)
            for _ in range(DECODERS + SPARE_ROOMS):
                with engine.turn():
                    address = self._device.allocate(loader.ring.room_nbytes)
                undo.callback(self._free, address)
                self._rooms.give_back(address)
            for _ in range(DECODERS):  # side by side, beside whatever else begins: each takes a tenth of a second
                made = self._threads.submit(codec.decoder if codec else _nobody)
                undo.callback(_close, made)
                self._decoders.put(made)
            self._undo = undo.pop_all()
        self._giver = threading.Thread(target=self._give, name="vgg16gpu-gpu-files")

    def __iter__(self) -> Iterator[Slot | None]:
        self._giver.start()
        while (item := self._out.get()) is not _END:
            if isinstance(item, BaseException):
                raise item
            slot = item.result() if isinstance(item, Future) else item
            assert slot is None or isinstance(slot, Slot)
            yield slot

    def close(self) -> None:
        """End the threads, once the loader is closed and nothing is read from its rooms. Safe to call twice."""
        self._rooms.close()
        if self._giver.ident is not None:
            self._giver.join()
        self._threads.shutdown(cancel_futures=True)
        self._undo.close()

    def _free(self, address: int) -> None:
        with self._engine.turn():
            self._device.free(address)

    def _give(self) -> None:
        """Each slot with files to a decoder, once there is room for their pictures."""
        try:
            for slot in self._loader:
                if slot is None or not any(row.nbytes for row in slot.rows):
                    self._out.put(slot)
                else:
                    address = self._rooms.take()
                    slot.room = DeviceBuffer(address, partial(self._rooms.give_back, address))
                    self._out.put(self._threads.submit(self._decode, slot, address))
        except Closed:
            pass
        except BaseException as error:
            self._out.put(error)
        self._out.put(_END)

    def _decode(self, slot: Slot, address: int) -> Slot:
        """All rows of a slot, as planes, as pictures or as what the network takes, from `address` on."""
        start = time.perf_counter()
        data = [slot.buffer[row.offset : row.offset + self._files.nbytes(row)] for row in slot.rows]
        count = sum(row.nbytes > 0 for row in slot.rows)
        decoder = self._decoders.get()
        try:
            found = self._files.decode(decoder.result(), slot.rows, data, address)
        finally:
            self._decoders.put(decoder)
        slot.addresses = [place for place, row in zip(found.addresses, found.rows, strict=True) if row]
        slot.rows = [row for row in found.rows if row]
        slot.failures += found.failures
        with self._lock:
            self.told.count += count
            self.told.refused += found.refused
            self.told.failed += len(found.failures)
            self.told.seconds += time.perf_counter() - start
        return slot


class _Rooms:
    """Places on the device, each somebody's or free."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._free: list[int] = []
        self._closed = False

    def take(self) -> int:
        """A free one; waits for it. Raises Closed."""
        with self._lock:
            while not (self._free or self._closed):
                self._changed.wait()
            if self._closed:
                raise Closed
            return self._free.pop()

    def give_back(self, address: int) -> None:
        """It is free again."""
        with self._lock:
            self._free.append(address)
            self._changed.notify()

    def close(self) -> None:
        """Whoever waits gets Closed."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()


def _nobody() -> None:
    """The decoder where none decodes."""


def _close(made: Future[PictureDecoder | None]) -> None:
    if not made.cancelled() and made.exception() is None and (decoder := made.result()):
        decoder.close()
