"""Slots in memory that processes share: who fills them, and who reads them, each has the same bytes.

The numbers of free slots lie in a pipe: whoever needs one reads it there, and who is done with one writes it back.
When the process that reads slots is gone, so is the pipe's other end, and all others end.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import numpy as np

from vgg16gpu.pictures.slots import BufferPool, Bytes, Closed, Slot

_NUMBER_NBYTES: Final = 4
_ORDER: Final = "little"


class SharedBufferPool(BufferPool):
    """A ring whose slots lie in a memory file.

    takes_pictures: from the start, as a device is to resize; only threads of this process may learn it later.
    descriptors: of the memory, of free numbers to read, and to write; the last is None where another process has it.
    """

    def __init__(
        self,
        nbytes: int,
        count: int,
        rows: int | None = None,
        room_nbytes: int = 0,
        descriptors: tuple[int, int, int | None] | None = None,
        *,
        takes_pictures: bool = True,
    ) -> None:
        super().__init__(nbytes, count, rows, room_nbytes)
        self.takes_pictures = takes_pictures
        self._is_own = descriptors is None
        self.memory_file, self.numbers, self._back = descriptors or _descriptors(nbytes * count)
        self.memory = self._all = np.frombuffer(mmap.mmap(self.memory_file, nbytes * count), np.uint8)
        if self._is_own:
            for number in range(count):
                self._write(number)

    def pin(self, pinned: Callable[[int], Bytes], *, takes_pictures: bool) -> None:
        """Pin the memory on a device: `pinned` returns it. Slots may be full already."""
        del takes_pictures
        self._buffer = pinned(self.nbytes * self.count)

    def take(self) -> Slot:
        """See BufferPool. Other processes may take slots, too."""
        if not (number := os.read(self.numbers, _NUMBER_NBYTES)):
            raise Closed
        return self.slot(int.from_bytes(number, _ORDER))

    def slot(self, number: int) -> Slot:
        """Return slot `number`, empty."""
        slot = self._slot(self._all[number * self.nbytes : (number + 1) * self.nbytes], is_pinned=True)
        slot.number = number
        return slot

    def close(self) -> None:
        """See BufferPool; in all processes. Safe to call twice."""
        with self._lock:
            back, self._back = self._back, None
        if back is not None:
            os.close(back)

    def release(self) -> None:
        """Close what is left of the descriptors, once nobody waits for a slot. Safe to call twice."""
        self.close()
        if self._is_own:
            self._is_own = False
            os.close(self.numbers)
            os.close(self.memory_file)

    def _put_back(self, slot: Slot) -> None:
        with self._lock:
            if self._back is not None:
                self._write(slot.number)

    def _write(self, number: int) -> None:
        assert self._back is not None
        with suppress(BrokenPipeError):  # nobody waits for one any more
            os.write(self._back, number.to_bytes(_NUMBER_NBYTES, _ORDER))


def _descriptors(nbytes: int) -> tuple[int, int, int]:
    memory = os.memfd_create("vgg16gpu-slots")
    os.truncate(memory, nbytes)
    return memory, *os.pipe()
