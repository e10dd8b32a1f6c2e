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

from vgg16gpu.server.refused import RefusedError
from vgg16gpu.server.served import Description

_ALIGNMENT: Final = 64  # bytes: a cache line of the CPU
_HEAD_NBYTES: Final = 16  # of a file in a slot: how many bytes it has, then as in `File`, as uint32


class File(NamedTuple):
    """A picture for the device to decode. height, width, sampling: as its header says, see `program.ycbcr`."""

    data: npt.NDArray[np.uint8]
    height: int
    width: int
    sampling: int


def put_file(row: npt.NDArray[np.uint8], file: File) -> None:
    """Into a row of input that `holds` it."""
    row[:_HEAD_NBYTES].view(np.uint32)[:] = len(file.data), *file[1:]
    row[_HEAD_NBYTES:][: len(file.data)] = file.data


def file_in(row: npt.NDArray[np.uint8]) -> File:
    """The reverse; its bytes stay where they are."""
    nbytes, *shape = row[:_HEAD_NBYTES].view(np.uint32).tolist()
    return File(row[_HEAD_NBYTES:][:nbytes], *shape)


@dataclass(frozen=True)
class SlotLayout:
    """input: bytes of a row. outputs: float32 numbers of a row of each output."""

    input: int
    outputs: tuple[int, ...]

    @classmethod
    def of(cls, description: Description) -> SlotLayout:
        """That of a model: floats are the largest rows."""
        return cls(4 * description.input.size, tuple(each.size for each in description.outputs))

    def holds(self, nbytes: int) -> bool:
        """Whether a row of input has room for a file of so many bytes."""
        return _HEAD_NBYTES + nbytes <= self.input

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
        """The first bytes of the row of input."""
        return self._inputs[slot, :nbytes]

    def outputs(self, slot: int) -> list[npt.NDArray[np.float32]]:
        """A row of each output, flat."""
        return [rows[slot].view(np.float32) for rows in self._outputs]


def slot_memory(layout: SlotLayout, count: int) -> int:
    """The descriptor of memory for so many slots."""
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
        """How many are leased."""
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
