"""What kernels/lab/counted.cuh has noted: who read and wrote what, and what follows from that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

ENTRIES: Final = 1 << 22  # that there is room for, as in counted.cuh
SECTOR: Final = 32  # bytes: what the memory of every NVIDIA card delivers at once
WARP: Final = 32

Words: TypeAlias = npt.NDArray[np.uint64]
Flags: TypeAlias = npt.NDArray[np.bool_]


class Noted(IntEnum):
    """What an entry says, by its number in counted.cuh."""

    READ = 0
    WRITE = 1
    BARRIER = 2
    PRODUCT = 3
    ATOMIC = 4


@dataclass(frozen=True)
class Race:
    """Two threads of a block at the same place of shared memory, one of them writing, no barrier between them."""

    writer: int
    other: int
    other_writes: bool
    line: int  # of the barrier that both have passed last; 0: none

    def __str__(self) -> str:
        since = f"since the __syncthreads of line {self.line}" if self.line else "from the start of the kernel on"
        did = "writes" if self.other_writes else "reads"
        return f"thread {self.writer} writes what thread {self.other} {did}, with no barrier between them {since}"


@dataclass(frozen=True, eq=False)
class Log:
    """The entries of one run, in the order in which each thread made them."""

    block: npt.NDArray[np.int64]
    thread: npt.NDArray[np.int64]
    what: npt.NDArray[np.int64]
    place: Words  # an address; the line of a barrier
    arrays: Mapping[str, tuple[int, int]]  # those in global memory: address, bytes
    complete: bool = True  # there was room for all

    def count(self, what: Noted, name: str | None = None) -> int:
        """Count the entries of a kind, of one array if it is named."""
        return int(np.count_nonzero(self._are(what, name)))

    def distinct(self, what: Noted, name: str) -> int:
        """Count the different places of an array."""
        return len(np.unique(self.place[self._are(what, name)]))

    def most_by_a_thread(self, what: Noted, name: str | None = None) -> int:
        """Count the entries of the thread that has most."""
        found = self._are(what, name)
        return int(np.bincount(self._number(self.block[found], self.thread[found])).max(initial=0))

    def shared(self, what: Noted) -> int:
        """Reads or writes of shared memory."""
        return int(np.count_nonzero((self.what == what) & self._is_shared()))

    def sectors(self, what: Noted, name: str) -> float:
        """Return the mean number of 32-byte sectors in a warp's access: 4 of float where lanes are neighbours.

        The n-th accesses of a warp's threads to the array are one access of the warp.
        """
        found = self._are(what, name)
        if not found.any():
            return 0.0
        block, thread = self.block[found], self.thread[found]
        turn = _turns(self._number(block, thread))
        warp = self._number(block, thread // WARP)
        requests = np.stack([warp, turn], axis=1)
        touched = np.column_stack([requests, (self.place[found] // SECTOR).astype(np.int64)])
        return len(np.unique(touched, axis=0)) / len(np.unique(requests, axis=0))

    def race(self) -> Race | None:
        """Find a place in shared memory that two threads of a block use between the same barriers, one writing."""
        number = self._number(self.block, self.thread)
        order = np.argsort(number, kind="stable")
        barriers = self.what[order] == Noted.BARRIER
        passed = np.cumsum(barriers)
        first = np.searchsorted(number[order], number[order])  # of each thread
        phase = passed - (passed[first] - barriers[first])
        line = self._last_lines(order, barriers, first)
        kept = self._is_shared()[order] & np.isin(self.what[order], (Noted.READ, Noted.WRITE))
        chosen = order[kept]
        keys = np.column_stack([self.block[chosen], phase[kept], self.place[chosen].astype(np.int64)])
        return _race(keys, self.thread[chosen], self.what[chosen] == Noted.WRITE, line[kept])

    def _last_lines(self, order: Any, barriers: Flags, first: Any) -> Any:
        """Return the line of the barrier that each entry's thread has passed last; 0 where it has passed none."""
        at = np.maximum.accumulate(np.where(barriers, np.arange(len(order)), -1))
        lines = self.place[order].astype(np.int64)
        return np.where(at >= first, lines[np.maximum(at, 0)], 0)

    def _are(self, what: Noted, name: str | None) -> Flags:
        found: Flags = self.what == what
        return found & self._inside(name) if name else found

    def _inside(self, name: str) -> Flags:
        start, nbytes = self.arrays[name]
        inside: Flags = (self.place >= start) & (self.place < start + nbytes)
        return inside

    def _is_shared(self) -> Flags:
        """Return which entries are in no array; barriers and products have no place at all."""
        found: Flags = np.isin(self.what, (Noted.READ, Noted.WRITE, Noted.ATOMIC))
        for name in self.arrays:
            found &= ~self._inside(name)
        return found

    @staticmethod
    def _number(block: Any, thread: Any) -> npt.NDArray[np.int64]:
        numbers: npt.NDArray[np.int64] = block * 1024 + thread
        return numbers


def read_log(words: Words, arrays: Mapping[str, tuple[int, int]]) -> Log:
    """Parse counted_log's words into a log, as many as there are entries."""
    count = int(words[0])
    entries = words[1 : 1 + 2 * min(count, ENTRIES)].reshape(-1, 2)
    first = entries[:, 0].astype(np.int64)
    return Log(first >> 32, first >> 8 & 0xFFFFFF, first & 0xFF, entries[:, 1], dict(arrays), count <= ENTRIES)


def _turns(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return how often each number has been there before."""
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    turns = np.empty_like(numbers)
    turns[order] = np.arange(len(numbers)) - np.searchsorted(ordered, ordered)
    return turns


def _race(keys: Any, thread: Any, writes: Flags, line: Any) -> Race | None:
    """Find two threads among entries with the same key, one of them writing."""
    order = np.lexsort((~writes, *keys.T[::-1]))  # by keys, writes first
    keys, thread, writes, line = keys[order], thread[order], writes[order], line[order]
    starts = np.flatnonzero(np.r_[True, (keys[1:] != keys[:-1]).any(axis=1)]) if len(keys) else np.empty(0, np.int64)
    group = np.repeat(starts, np.diff(np.r_[starts, len(keys)]))
    meets = writes[group] & (thread != thread[group])  # the first of a group is a write if any of it is
    if not meets.any():
        return None
    at = int(np.argmax(meets))
    return Race(int(thread[group[at]]), int(thread[at]), bool(writes[at]), int(line[at]))
