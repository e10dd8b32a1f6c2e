"""Host buffers that go from the threads that decode to the device and back: a ring, bounded in bytes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

ROWS = 32  # at most in one slot
SLOT_NBYTES = 12 << 20  # 22 pictures of 500x375; a larger picture than this is resized where it was decoded
ALIGNMENT = 16  # of a picture, in a slot and on the device
MAX_SIDE = 8192  # and one with a longer side, too


def aligned(nbytes: int) -> int:
    """Round bytes up to the place of the next picture."""
    return nbytes + -nbytes % ALIGNMENT


class SampleRow(NamedTuple):
    """A sample in a slot: which, and where its bytes lie.

    height, width: of a picture as it was decoded, which is still to be resized and cropped; zero of what is ready.
    nbytes: of a file that the device is to decode, to a picture of that height and width; zero of what is decoded.
    sampling: of a file, and of the planes that the device has decoded it to (`program.ycbcr`); zero of what is RGB.
    """

    file: int  # its number among all files
    sample: int  # its number in that file
    name: str
    offset: int
    height: int = 0
    width: int = 0
    nbytes: int = 0
    sampling: int = 0


class DeviceBuffer(NamedTuple):
    """Memory of the device that a slot has for its pictures. `give_back` it when nobody reads them any more."""

    address: int
    give_back: Callable[[], None]


class Failure(NamedTuple):
    """An input without a sample, in its place."""

    file: int
    sample: int
    name: str
    problem: str


@dataclass(eq=False)
class Slot:
    """A buffer, and what lies in it: samples of one element type, failures, and the ends of files.

    ends: (number of a file, samples in it), once that is known. needed: bytes on the device, where that decodes.
    room: where there the rows lie, at `addresses`, once it has decoded. holder: who of several has it in hand. number:
    of its part of memory that processes share.
    """

    buffer: Bytes
    is_pinned: bool
    most_rows: int = ROWS
    most_needed: int = 0
    element_type: str = "uint8"
    used: int = 0
    rows: list[SampleRow] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    ends: list[tuple[int, int]] = field(default_factory=list)
    needed: int = 0
    room: DeviceBuffer | None = None
    addresses: list[int] = field(default_factory=list)
    holder: object | None = None
    number: int = 0

    @property
    def is_empty(self) -> bool:
        """Return whether nobody has to hear of it."""
        return not (self.rows or self.failures or self.ends)

    def has_room(self, nbytes: int, needed: int = 0) -> bool:
        """Return whether one more row of so many bytes, which needs so many on the device, fits."""
        fits_there = not self.most_needed or self.needed + needed <= self.most_needed
        return len(self.rows) < self.most_rows and self.used + nbytes <= len(self.buffer) and fits_there

    def rest(self, nbytes: int) -> Bytes:
        """Return the place of the next `nbytes` bytes."""
        return self.buffer[self.used : self.used + nbytes]

    def clear(self) -> None:
        """Reset the slot to empty."""
        self.used = self.needed = 0
        self.rows, self.failures, self.ends, self.addresses = [], [], [], []


class Closed(Exception):  # noqa: N818 - no error: the reader has gone
    """The ring is closed: whoever fills slots ends."""


def ordinary(nbytes: int) -> Bytes:
    """Return memory that no device knows of, for `BufferPool.pin` without a device."""
    return np.empty(nbytes, np.uint8)


class BufferPool:
    """`count` slots of `nbytes` each, for `rows` samples at most.

    room_nbytes: what the pictures of a slot may take on the device, if that decodes: then slots hold files. Zero: they
    are decoded before they come here.

    Before `pin` slots are ordinary memory, so that decoding starts before there is a device; those are used once.
    early: how many of them there may be, `count` unless it is said.
    """

    def __init__(
        self, nbytes: int, count: int, rows: int | None = None, room_nbytes: int = 0, early: int | None = None
    ) -> None:
        self.nbytes, self.count, self.rows, self.room_nbytes = nbytes, count, rows or ROWS, room_nbytes
        self.memory: Bytes | None = None  # where slots lie that processes share
        self.takes_pictures = False  # whether rows may be pictures that are still to be resized
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._free: deque[Slot] = deque()
        self._buffer: Bytes | None = None
        self._early = early or count  # slots of ordinary memory that may still be made
        self._closed = False

    def pin(self, pinned: Callable[[int], Bytes], *, takes_pictures: bool) -> None:
        """Make the slots parts of a buffer from `pinned`. Raises what it raises."""
        buffer = pinned(self.nbytes * self.count)
        with self._lock:
            self._buffer = buffer
            self.takes_pictures = takes_pictures
            self._early = 0
            parts = (buffer[i * self.nbytes : (i + 1) * self.nbytes] for i in range(self.count))
            self._free.extend(self._slot(part, is_pinned=True) for part in parts)
            self._changed.notify_all()

    @property
    def is_pinned(self) -> bool:
        """Return whether `pin` has been called."""
        return self._buffer is not None

    def unpinned(self) -> Bytes | None:
        """Return the buffer of `pin`, to be freed, once no slot is in use; None if there is none."""
        buffer, self._buffer = self._buffer, None
        return buffer

    def take(self) -> Slot:
        """Wait for a free slot and return it. Raises Closed."""
        with self._lock:
            while not self._closed:
                if self._free:
                    return self._free.popleft()
                if self._early:
                    self._early -= 1
                    return self._slot(np.empty(self.nbytes, np.uint8), is_pinned=False)
                self._changed.wait()
            raise Closed

    def give_back(self, slot: Slot) -> None:
        """Release a slot, and its memory on the device."""
        if slot.room:
            slot.room.give_back()
            slot.room = None
        slot.holder = None
        if slot.is_pinned:
            slot.clear()
            self._put_back(slot)

    def close(self) -> None:
        """Close the pool: callers that wait for a slot get Closed."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()

    def release(self) -> None:
        """Free what only the pool's creator needs, once it is closed. Safe to call twice."""

    def _put_back(self, slot: Slot) -> None:
        with self._lock:
            self._free.append(slot)
            self._changed.notify()

    def _slot(self, buffer: Bytes, *, is_pinned: bool) -> Slot:
        return Slot(buffer, is_pinned, self.rows, self.room_nbytes)
