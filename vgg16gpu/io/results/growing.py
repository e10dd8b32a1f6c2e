"""Files that grow row by row, and go on after a crash."""

from __future__ import annotations

import contextlib
import os
import select
import stat
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vgg16gpu.errors import InputError, ModelError
from vgg16gpu.io.files import write_error
from vgg16gpu.io.foreign.outputs import temporary_path
from vgg16gpu.io.results.record import RecordFile
from vgg16gpu.io.results.scan import WrittenState
from vgg16gpu.io.shown import printable


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
        """Take a descriptor that stands behind `size` bytes with this checksum, which hold `rows` rows."""
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
        """The length and checksum of all whole rows."""
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


class GrowingFile:
    """Rows are appended as they come.

    A new file begins under a temporary name. It gets its own with its first row, and replaces an older file then: who
    fails before has changed nothing. In that moment the record comes first, then the new file: whenever the process is
    killed, the name has the older file or the new one. The record says which file it found, so that rows of an older
    one are never taken for this run's.
    """

    def __init__(self, path: Path, header: bytes, record: RecordFile, name: str) -> None:
        """Describe a new file, called `name` in messages; nothing is written."""
        self._path = path
        self._name = printable(name)
        self._header = header
        self._record = record
        self._temporary = temporary_path(path)
        self._file: Appender | None = None
        self._is_published = False
        self.is_changed = False  # whether anything is written, or cut off

    def go_on(self, descriptor: int, size: int, checksum: int, rows: int) -> None:
        """Go on in a file that is there, behind `size` bytes, with the first append; until then nothing changes."""
        self._file = Appender(descriptor, size, checksum, rows)
        self._is_published = True

    @property
    def rows(self) -> int:
        """Rows in the file, those found included."""
        return self._file.rows if self._file else 0

    def append(self, pieces: Sequence[bytes], rows_each: int = 1) -> None:
        """Write whole pieces of `rows_each` rows. Raises ModelError, and the whole ones before the fault stay."""
        with self._failing():
            file = self._begun()
            try:
                file.append(pieces, rows_each)
            finally:
                self._publish()

    def finish(self) -> None:
        """Cut off what is behind the last row, bring all rows to the disk, and mark the record as finished."""
        if self._file and (self.is_changed or not self._is_finished(self._file)):
            with self._failing():
                file = self._begun()
                os.fsync(file.descriptor)  # once: a machine that goes down before costs rows, which --resume computes
            self._leave(file, finished=True)
        self._release()

    def settle(self) -> None:
        """Leave whole rows, in a file with its name, after an exception in the middle of `append`."""
        if self._file and self.is_changed:
            with self._failing():
                self._file.settle()
                self._publish()

    def close(self) -> None:
        """Keep the rows so far; nothing changes where none was written. After `finish` it does nothing."""
        try:
            if self._file and self.is_changed:
                self.settle()
                if self._is_published:
                    self._leave(self._file, finished=False)
        finally:
            self._release()

    def _begun(self) -> Appender:
        """Return the file to append to, behind the header or behind the rows that are there."""
        file = self._file
        if file and self.is_changed:
            return file
        self.is_changed = True
        if file:
            file.cut(file.written.size)
        else:
            descriptor = os.open(self._temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            file = self._file = Appender(descriptor)
        if not file.written.size:
            file.append([self._header], rows_each=0)
        return file

    def _is_finished(self, file: Appender) -> bool:
        """Return whether a run has finished the file that was found, and nothing is behind its rows."""
        return self._record.is_finished and os.fstat(file.descriptor).st_size == file.written.size

    def _leave(self, file: Appender, *, finished: bool) -> None:
        """Record the file's state. Raises ModelError where the name is another file's by now."""
        try:
            is_there = os.path.samestat(self._path.stat(), os.fstat(file.descriptor))
        except OSError:
            is_there = False
        if not is_there:
            raise ModelError(
                f"{self._name}: somebody removed or replaced it while this run wrote to it; its {file.rows:,} rows are "
                "lost: run it again under another name"
            )
        self._record.leave(file.rows, file.written, finished=finished)

    def _publish(self) -> None:
        """Rename a new file to its name, as soon as it has a row."""
        if self._is_published or not self.rows:
            return
        if self._temporary.exists():  # else a signal came before the last line
            self._record.begin(self._path)
            self._temporary.replace(self._path)
        self._is_published = True

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not self.rows:
                raise write_error(Path(self._name), error) from error
            reason = error.strerror or str(error)
            raise ModelError(
                f"{self._name}: cannot be written ({reason}); {self.rows:,} rows are in it, and --resume goes on there"
            ) from error

    def _release(self) -> None:
        if self._file:
            os.close(self._file.descriptor)
            self._file = None
        if not self._is_published:
            self._temporary.unlink(missing_ok=True)


def open_to_resume(path: Path) -> int:
    """Return a descriptor of an existing file. Raises InputError."""
    try:
        return os.open(path, os.O_RDWR)
    except OSError as error:
        raise InputError(f"--resume: '{path}' cannot be opened to go on in it: {error.strerror or error}") from error
