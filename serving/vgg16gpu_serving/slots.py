"""Slots in shared memory: a row of input each, and what came of it.

Every front end makes memory of its own (a memfd) and hands it to each device process as it says hello, so that what
the front end before it left under way is written where nobody reads. A front end writes inputs and reads outputs; a
device process does the reverse between the message that names a slot and its answer.
"""

from __future__ import annotations

import itertools
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from vgg16gpu.pictures.slots import Bytes
from vgg16gpu_serving.refused import RefusedError
from vgg16gpu_serving.served import Description

_ALIGNMENT: Final = 64  # bytes: a cache line of the CPU
_HEAD_NBYTES: Final = 16  # of a picture in a slot: how many bytes it has, then as in `Picture`, as uint32
_PICTURE_NBYTES: Final = 1 << 20  # 640x480 pixels, and what is before them


class Picture(NamedTuple):
    """What the device makes an image of: a file that it decodes, decoded pixels, or pixels of the network's size.

    height, width: before it is resized; zero of what has the network's size. sampling: of a file, as its header says,
    see `program.ycbcr`; zero of pixels.
    """

    data: Bytes
    height: int = 0
    width: int = 0
    sampling: int = 0


def room_for(row: Bytes, nbytes: int) -> Bytes | None:
    """Return the place of a picture's bytes in a row of input; None where it is too small for `nbytes`."""
    return row[_HEAD_NBYTES:][:nbytes] if _HEAD_NBYTES + nbytes <= len(row) else None


def put_head(row: Bytes, nbytes: int, height: int = 0, width: int = 0, sampling: int = 0) -> None:
    """Write the head of a picture in `room_for` `nbytes` bytes."""
    row[:_HEAD_NBYTES].view(np.uint32)[:] = nbytes, height, width, sampling


def put_picture(row: Bytes, picture: Picture) -> None:
    """Write a picture into a row of input that has room for it."""
    place = room_for(row, len(picture.data))
    assert place is not None
    place[:] = picture.data
    put_head(row, len(picture.data), *picture[1:])


def picture_in(row: Bytes) -> Picture:
    """Read a picture from a row of input; its bytes stay where they are."""
    nbytes, *shape = row[:_HEAD_NBYTES].view(np.uint32).tolist()
    return Picture(row[_HEAD_NBYTES:][:nbytes], *shape)


@dataclass(frozen=True)
class SlotLayout:
    """input: bytes of a row. outputs: float32 numbers of a row of each output."""

    input: int
    outputs: tuple[int, ...]

    @classmethod
    def of(cls, description: Description) -> SlotLayout:
        """Return the layout of a model: of its inputs floats are the largest; pictures may be larger."""
        pictures = _PICTURE_NBYTES if description.room_nbytes else 0
        return cls(max(4 * description.input.size, pictures), tuple(each.size for each in description.outputs))

    @property
    def stride(self) -> int:
        """Bytes from slot to slot."""
        return -(-(self.input + 4 * sum(self.outputs)) // _ALIGNMENT) * _ALIGNMENT


class SlotMemory:
    """The slots as arrays, laid out as `layout`. `bytes`: all, in whole pages.

    descriptor: from `slot_memory`; it stays the caller's.
    """

    def __init__(self, descriptor: int, layout: SlotLayout) -> None:
        nbytes = os.fstat(descriptor).st_size
        self.layout = layout
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(mmap.mmap(descriptor, nbytes), np.uint8)
        rows = self.bytes[: nbytes - nbytes % layout.stride].reshape(-1, layout.stride)
        self._inputs = rows[:, : layout.input]
        ends = itertools.accumulate(layout.outputs, lambda first, size: first + 4 * size, initial=layout.input)
        self._outputs = [rows[:, first : first + 4 * size] for first, size in zip(ends, layout.outputs, strict=False)]

    def input(self, slot: int, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return the first bytes of the row of input."""
        return self._inputs[slot, :nbytes]

    def outputs(self, slot: int) -> list[npt.NDArray[np.float32]]:
        """Return a row of each output, flat."""
        return [rows[slot].view(np.float32) for rows in self._outputs]


def slot_memory(layout: SlotLayout, count: int) -> int:
    """Create memory for `count` slots; return its descriptor."""
    descriptor = os.memfd_create("vgg16gpu-slots")
    os.ftruncate(descriptor, -(-layout.stride * count // mmap.PAGESIZE) * mmap.PAGESIZE)
    return descriptor


@dataclass(frozen=True, eq=False)
class Lease:
    """Slots that a request has."""

    slots: Sequence[int]


class SlotPool:
    """The slots of a front end."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count))
        self._leases: set[Lease] = set()
        self._count = count

    @property
    def used(self) -> int:
        """Return how many are leased."""
        return self._count - len(self._free)

    def lease(self, count: int) -> Lease:
        """Raises RefusedError (429) where so many are not free."""
        if count > len(self._free):
            raise RefusedError(429, f"the queue is full: {self.used} images wait; try again in a moment", retry=True)
        lease = Lease(self._free[len(self._free) - count :])
        del self._free[len(self._free) - count :]
        self._leases.add(lease)
        return lease

    def give_back(self, lease: Lease) -> None:
        """Free its slots, once no device process writes them. Safe to call twice."""
        if lease in self._leases:
            self._leases.remove(lease)
            self._free.extend(lease.slots)
