"""A file of rows that grows, with its record: .csv, .jsonl, and the stream beside a .parquet file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from vgg16gpu.errors import InputError, ModelError
from vgg16gpu.io.files import write_error
from vgg16gpu.io.foreign.outputs import temporary_path
from vgg16gpu.io.results.appending import Appender
from vgg16gpu.io.results.record import RecordFile
from vgg16gpu.io.shown import printable


class GrowingFile:
    """Rows are appended as they come.

    A new file begins under a temporary name. It gets its own with its first row, and replaces an older file then: who
    fails before has changed nothing. In that moment the record comes first, then the new file: whenever the process is
    killed, the name has the older file or the new one. The record says which file it found, so that rows of an older
    one are never taken for this run's.
    """

    def __init__(self, path: Path, header: bytes, record: RecordFile, name: str) -> None:
        """A new file, called `name` in messages; nothing is written."""
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
        """All rows are there: cut off what is behind them, bring them to the disk, say so in the record."""
        if self._file and (self.is_changed or not self._is_finished(self._file)):
            with self._failing():
                file = self._begun()
                os.fsync(file.descriptor)  # once: a machine that goes down before costs rows, which --resume computes
            self._leave(file, finished=True)
        self._release()

    def settle(self) -> None:
        """After an exception in the middle of `append` leave whole rows, in a file with its name."""
        if self._file and self.is_changed:
            with self._failing():
                self._file.settle()
                self._publish()

    def close(self) -> None:
        """Leave the rows so far; nothing changes where none was written. After `finish` it does nothing."""
        try:
            if self._file and self.is_changed:
                self.settle()
                if self._is_published:
                    self._leave(self._file, finished=False)
        finally:
            self._release()

    def _begun(self) -> Appender:
        """What is appended to, behind the header or behind the rows that are there."""
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
        """Whether a run has finished the file that was found, and nothing is behind its rows."""
        return self._record.is_finished and os.fstat(file.descriptor).st_size == file.written.size

    def _leave(self, file: Appender, *, finished: bool) -> None:
        """Say in the record how the file is left. Raises ModelError where the name is another file's by now."""
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
        """Give a new file its name, as soon as it has a row."""
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
    """A descriptor of a file that is there. Raises InputError."""
    try:
        return os.open(path, os.O_RDWR)
    except OSError as error:
        raise InputError(f"--resume: '{path}' cannot be opened to go on in it: {error.strerror or error}") from error
