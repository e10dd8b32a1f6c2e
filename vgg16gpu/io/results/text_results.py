"""Results as rows of text: .csv and .jsonl files that grow, and standard output."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from vgg16gpu.errors import InputError, ModelError
from vgg16gpu.io.files import target_of
from vgg16gpu.io.foreign.outputs import OutputLock
from vgg16gpu.io.results.columns import Columns
from vgg16gpu.io.results.csv_rows import CsvForm
from vgg16gpu.io.results.growing import Appender, GrowingFile, open_to_resume
from vgg16gpu.io.results.jsonl_rows import JsonlForm
from vgg16gpu.io.results.record import RecordFile, RunRecord
from vgg16gpu.io.results.results import ResultWriter
from vgg16gpu.io.results.scan import TextForm, scan_rows
from vgg16gpu.io.scores import PredictionBatch


def text_form(kind: str, columns: Columns) -> TextForm:
    """Return the row format of "csv" or "jsonl"."""
    return CsvForm(columns) if kind == "csv" else JsonlForm(columns)


class TextFile(ResultWriter):
    """A .csv or .jsonl file. Each block of answers is in it when `write` returns."""

    def __init__(
        self, path: Path, form: TextForm, columns: Columns, run: RunRecord, lock: OutputLock, *, resume: bool
    ) -> None:
        """Open the file; `lock`: of the file. Raises InputError where `resume` finds a file that is not this run's."""
        super().__init__(str(path), columns, lock)
        target = target_of(path)
        self._form = form
        self._record = RecordFile(target, run.identity(columns))
        self._file = GrowingFile(target, form.header, self._record, self._path)
        if resume and target.is_file():
            self._go_on(target)

    def _finish(self) -> None:
        """See ResultWriter."""
        self._file.finish()

    def _close(self) -> None:
        """See ResultWriter."""
        self._file.close()

    def _write(self, answers: PredictionBatch) -> None:
        self._file.append(self._form.rows(answers))

    def _go_on(self, target: Path) -> None:
        descriptor = open_to_resume(target)
        try:
            if not os.fstat(descriptor).st_size and not self._record.path.exists():
                os.close(descriptor)  # an empty file of nobody's: begin
                return
            written = self._record.read()
            if self._record.has_replaced(target):
                os.close(descriptor)  # a kill came before this run's file had its name
                return
            with open(descriptor, "rb", closefd=False) as stream:
                found = scan_rows(stream, self._form, self._path, written)
        except BaseException:
            os.close(descriptor)
            raise
        self.done, self.unanswered = found.names, found.unanswered
        self._file.go_on(descriptor, found.size, found.checksum, len(found.names))


class StandardOutput(ResultWriter):
    """Rows to standard output; nothing else may be written there. There is no record and no --resume."""

    def __init__(self, form: TextForm, columns: Columns) -> None:
        """Open standard output. Raises InputError where the process has none."""
        super().__init__("standard output", columns)
        self._form = form
        descriptor = standard_output()
        self._appender = None if descriptor is None else Appender(descriptor)
        self._is_begun = False

    def _finish(self) -> None:
        """Do nothing: everything is written already."""

    def _close(self) -> None:
        """Do nothing: everything is written already."""

    def _write(self, answers: PredictionBatch) -> None:
        rows = self._form.rows(answers)
        try:
            if not self._is_begun and self._form.header:
                self._append([self._form.header], rows_each=0)
            self._is_begun = True
            self._append(rows)
        except OSError as error:
            raise self._failure(error) from error

    def _append(self, pieces: Sequence[bytes], rows_each: int = 1) -> None:
        if self._appender:
            self._appender.append(pieces, rows_each)
        else:
            sys.stdout.buffer.write(b"".join(pieces))
            sys.stdout.buffer.flush()

    def _failure(self, error: OSError) -> ModelError:
        rows = f" after {self._appender.rows:,} rows" if self._appender else ""
        if error.errno == errno.EPIPE:
            return ModelError(f"{self._path}: its reader has closed it{rows}")
        return ModelError(f"{self._path}: cannot be written ({error.strerror or error}){rows}")


def standard_output() -> int | None:
    """Flush standard output and return its descriptor; None if an object of Python stands in for it.

    Raises InputError where there is none.
    """
    if sys.stdout is None or sys.stdout.closed:
        raise InputError("--output -: the process has no standard output to write to; name a file")
    sys.stdout.flush()
    try:
        return sys.stdout.fileno()
    except OSError:  # io.UnsupportedOperation: a program's or a test's own object
        return None
