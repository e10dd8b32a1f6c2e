"""Files in slots, decoded on the device: between the threads that read and the one that feeds.

    loader ── slots of files ── several decoders side by side ── slots whose pictures lie on the device ── feed

A decoder waits for what it decodes, so a slot that comes out needs no event; and what its pictures lie in is given back
when the feed has waited for the kernel that read them. The slots come out in the order in which they went in: where the
loader says that all must be computed before it can go on, all has come that it gave before.
"""

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
from typing import Final, Protocol, Self, TypeAlias

import numpy as np

from vgg16gpu.devices.base import Bytes, Stream
from vgg16gpu.devices.picture_decoder import PictureCodec, PictureDecoder, Place
from vgg16gpu.errors import InputError
from vgg16gpu.pictures.decoding import Decoder
from vgg16gpu.pictures.inputs import InputSpec
from vgg16gpu.pictures.slots import Closed, Failure, Ring, Room, Row, Slot, aligned
from vgg16gpu.runtime.closing import Closing
from vgg16gpu.runtime.engine import Engine

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
    def ring(self) -> Ring:
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

    Raises what the decoders, the loader and its threads raise. A file that a decoder refuses alone is decoded as if
    there were none, from the bytes that are there; so which pixels it gets depends on nothing but itself.
    """

    def __init__(self, engine: Engine, loader: Slots, codec: PictureCodec | None) -> None:
        """codec: None where there turned out to be none; then all files are refused."""
        self._engine, self._device, self._loader = engine, engine.device, loader
        self._cpu = Decoder(loader.spec)
        self._fitted = math.prod(loader.spec.shape)  # bytes of a picture as the network takes it
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
                    slot.room = Room(address, partial(self._rooms.give_back, address))
                    self._out.put(self._threads.submit(self._decode, slot, address))
        except Closed:
            pass
        except BaseException as error:
            self._out.put(error)
        self._out.put(_END)

    def _decode(self, slot: Slot, address: int) -> Slot:
        """All rows of a slot, as planes, as pictures or as what the network takes, from `address` on."""
        start = time.perf_counter()
        sizes = [self._needed(row) for row in slot.rows]
        addresses = [address + offset for offset in accumulate(sizes[:-1], initial=0)]
        files = [i for i, row in enumerate(slot.rows) if row.nbytes]
        places = [_place(addresses[i], slot.rows[i]) for i in files]
        decoder = self._decoders.get()
        try:
            taken = _taken(decoder.result(), [_bytes_of(slot, slot.rows[i]) for i in files], places)
        finally:
            self._decoders.put(decoder)
        refused = {i for i, is_there in zip(files, taken, strict=True) if not is_there}
        there = set(files) - refused
        rows = [row if i in there else self._by_cpu(slot, row, addresses[i]) for i, row in enumerate(slot.rows)]
        slot.addresses = [place for place, row in zip(addresses, rows, strict=True) if row]
        slot.rows = [row for row in rows if row]
        with self._lock:
            self.told.count += len(files)
            self.told.refused += len(refused)
            self.told.failed += rows.count(None)
            self.told.seconds += time.perf_counter() - start
        return slot

    def _needed(self, row: Row) -> int:
        """Bytes on the device, as the loader counted them."""
        if row.nbytes:
            return self._cpu.room_nbytes(row.height, row.width, row.sampling)
        return aligned(self._pixels_nbytes(row))

    def _by_cpu(self, slot: Slot, row: Row, address: int) -> Row | None:
        """A row that no decoder has put in its place; None where there is no picture, which the slot says then."""
        if not row.nbytes:
            self._upload(address, slot.buffer[row.offset : row.offset + self._pixels_nbytes(row)])
            return row
        data = _bytes_of(slot, row).tobytes()
        pixels = np.empty(row.height * row.width * self._cpu.channels, np.uint8)
        try:
            if self._cpu.shape(data) and self._cpu.decode_into(data, pixels):
                self._upload(address, pixels)
                return row._replace(nbytes=0, sampling=0)
            fitted = self._cpu.fitted(data, row.name)
        except InputError as error:
            slot.failures.append(Failure(row.file, row.sample, row.name, str(error)))
            return None
        self._upload(address, np.ascontiguousarray(fitted).reshape(-1))
        return row._replace(height=0, width=0, nbytes=0, sampling=0)

    def _pixels_nbytes(self, row: Row) -> int:
        return row.height * row.width * self._cpu.channels or self._fitted

    def _upload(self, address: int, pixels: Bytes) -> None:
        with self._engine.turn():
            self._device.copy_in(address, pixels, Stream.UPLOAD)  # what is read there waits for this stream


class _Rooms:
    """Places on the device, each somebody's or free."""

    def __init__(self) -> None:
        self._state = threading.Condition()
        self._free: list[int] = []
        self._closed = False

    def take(self) -> int:
        """A free one; waits for it. Raises Closed."""
        with self._state:
            while not (self._free or self._closed):
                self._state.wait()
            if self._closed:
                raise Closed
            return self._free.pop()

    def give_back(self, address: int) -> None:
        """It is free again."""
        with self._state:
            self._free.append(address)
            self._state.notify()

    def close(self) -> None:
        """Whoever waits gets Closed."""
        with self._state:
            self._closed = True
            self._state.notify_all()


def _nobody() -> None:
    """The decoder where none decodes."""


def _close(made: Future[PictureDecoder | None]) -> None:
    if not made.cancelled() and made.exception() is None and (decoder := made.result()):
        decoder.close()


def _place(address: int, row: Row) -> Place:
    return Place(address, row.height, row.width, row.sampling)


def _taken(decoder: PictureDecoder | None, files: Sequence[Bytes], places: Sequence[Place]) -> list[bool]:
    """Which files the decoder decodes. A refused one is asked for alone: its neighbours may be why."""
    if decoder is None:
        return [False] * len(files)
    taken = decoder.decode(files, places)
    if len(files) > 1:
        for i, is_there in enumerate(taken):
            taken[i] = is_there or decoder.decode(files[i : i + 1], places[i : i + 1])[0]
    return taken


def _bytes_of(slot: Slot, row: Row) -> Bytes:
    return slot.buffer[row.offset : row.offset + row.nbytes]
