"""Appending whole pieces, rows say, to a descriptor, so that whatever happens ends with a whole one."""

from __future__ import annotations

import os
import select
import stat
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from vgg16gpu.io.results.scan import WrittenState


@dataclass(frozen=True)
class _State:
    """Where a file stands. One value, for a signal may come between any two assignments."""

    start: int  # of `pending`
    checksum: int  # of what is before
    rows: int  # before
    pending: Sequence[bytes] = ()  # what is being written
    rows_each: int = 1


class Appender:
    """Appends to a descriptor of its own or to standard output.

    Each block is one `os.write`, without a buffer of Python's: a process that is killed has written all blocks but,
    at most, the end of the last. There is no fsync here; what the kernel has taken outlives the process.
    """

    def __init__(self, descriptor: int, size: int = 0, checksum: int = 0, rows: int = 0) -> None:
        """For a descriptor that stands behind `size` bytes with this checksum, in which there are `rows`."""
        self.descriptor: Final = descriptor
        self._is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        self._state = _State(size, checksum, rows)
        self._sent = 0  # bytes of `pending`, where nothing can say it afterwards: a pipe

    @property
    def rows(self) -> int:
        """Whole ones that are written."""
        return self._state.rows

    @property
    def written(self) -> WrittenState:
        """Everything that is whole."""
        return WrittenState(self._state.start, self._state.checksum)

    def append(self, pieces: Sequence[bytes], rows_each: int = 1) -> None:
        """Write pieces of `rows_each` rows. Raises OSError; the whole pieces before the fault stay, in a file alone."""
        state = self._state
        start = os.lseek(self.descriptor, 0, os.SEEK_CUR) if self._is_file else state.start
        self._sent = 0
        self._state = _State(start, state.checksum, state.rows, pieces, rows_each)
        try:
            self._write(b"".join(pieces))
        finally:
            self.settle()

    def settle(self) -> None:
        """Cut off a piece that is there in part, after an exception in the middle of `append`. Else it does nothing."""
        state = self._state
        if not state.pending:
            return
        sent = os.lseek(self.descriptor, 0, os.SEEK_CUR) - state.start if self._is_file else self._sent
        size = count = 0
        for piece in state.pending:
            if size + len(piece) > sent:
                break
            size, count = size + len(piece), count + 1
        if size < sent and self._is_file:
            self.cut(state.start + size)
        checksum = zlib.crc32(b"".join(state.pending[:count]), state.checksum)
        self._state = _State(state.start + size, checksum, state.rows + count * state.rows_each)

    def cut(self, size: int) -> None:
        """End a file after `size` bytes and go on there."""
        os.ftruncate(self.descriptor, size)
        os.lseek(self.descriptor, size, os.SEEK_SET)

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                count = os.write(self.descriptor, left)
            except BlockingIOError:  # a pipe that somebody made non-blocking
                select.select([], [self.descriptor], [])
                continue
            self._sent += count
            left = left[count:]
