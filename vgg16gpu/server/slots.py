"""Slots in shared memory (a memfd): a row of input each, and what came of it.

Every front end owns as many. It writes inputs and reads outputs; the device process does the reverse between the
message that names a slot and its answer. A front end that lost the device process begins a new generation, in which
all its slots are free, and what was leased before is not given back any more.
"""

from __future__ import annotations

import itertools
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from vgg16gpu.server.refused import RefusedError
from vgg16gpu.server.served import Description

_ALIGNMENT: Final = 64  # bytes: a cache line of the CPU


@dataclass(frozen=True)
class SlotLayout:
    """input: bytes of a row. outputs: float32 numbers of a row of each output."""

    input: int
    outputs: tuple[int, ...]

    @classmethod
    def of(cls, description: Description) -> SlotLayout:
        """That of a model: floats are the largest rows."""
        return cls(4 * description.input.size, tuple(each.size for each in description.outputs))

    @property
    def stride(self) -> int:
        """Bytes from slot to slot."""
        return -(-(self.input + 4 * sum(self.outputs)) // _ALIGNMENT) * _ALIGNMENT


class SlotMemory:
    """The slots as arrays. The memory grows to `count` slots where it is smaller."""

    def __init__(self, memory: int, layout: SlotLayout, count: int) -> None:
        nbytes = layout.stride * count
        if os.fstat(memory).st_size < nbytes:
            os.ftruncate(memory, nbytes)
        rows = np.frombuffer(mmap.mmap(memory, nbytes), np.uint8).reshape(count, layout.stride)
        self._inputs = rows[:, : layout.input]
        ends = itertools.accumulate(layout.outputs, lambda first, size: first + 4 * size, initial=layout.input)
        self._outputs = [rows[:, first : first + 4 * size] for first, size in zip(ends, layout.outputs, strict=False)]

    def input(self, slot: int, nbytes: int) -> npt.NDArray[np.uint8]:
        """The first bytes of the row of input."""
        return self._inputs[slot, :nbytes]

    def outputs(self, slot: int) -> list[npt.NDArray[np.float32]]:
        """A row of each output, flat."""
        return [rows[slot].view(np.float32) for rows in self._outputs]


@dataclass(frozen=True)
class Lease:
    """Slots that a request has, and the generation that they are of."""

    slots: Sequence[int]
    generation: int


class SlotPool:
    """The slots of one front end."""

    def __init__(self, first: int, count: int) -> None:
        self._all = range(first, first + count)
        self._free = list(self._all)
        self._generation = 0

    @property
    def used(self) -> int:
        """How many are leased."""
        return len(self._all) - len(self._free)

    def lease(self, count: int) -> Lease:
        """Raises RefusedError (429) where so many are not free."""
        if count > len(self._free):
            raise RefusedError(429, f"the queue is full: {self.used} images wait; try again in a moment", retry=True)
        taken = self._free[len(self._free) - count :]
        del self._free[len(self._free) - count :]
        return Lease(taken, self._generation)

    def is_current(self, lease: Lease) -> bool:
        """Whether its slots are still whose it was given."""
        return lease.generation == self._generation

    def give_back(self, lease: Lease) -> None:
        """Free its slots, once nobody writes them."""
        if self.is_current(lease):
            self._free.extend(lease.slots)

    def renew(self) -> None:
        """All slots are free: the process that may have written them is gone."""
        self._generation += 1
        self._free = list(self._all)
