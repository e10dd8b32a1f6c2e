"""Files in slots, decoded on the device: between the threads that read and the one that feeds.

    loader ── slots of files ── several decoders side by side ── slots whose pictures lie on the device ── feed

A decoder waits for what it decodes, so a slot that comes out needs no event; and what its pictures lie in is given back
when the feed has waited for the kernel that read them. The slots come out in the order in which they went in: where the
loader says that all must be computed before it can go on, all has come that it gave before.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Final, Protocol, Self, TypeAlias

from vgg16gpu.devices.picture_decoder import PictureCodec, PictureDecoder
from vgg16gpu.pictures.inputs import InputSpec
from vgg16gpu.pictures.slots import BufferPool, Closed, DeviceBuffer, Slot
from vgg16gpu.runtime.answers.file_decoding import FileDecoding
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
