"""What all results have in common: answers go in, in the order of the inputs, and at the end somebody says so."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

from vgg16gpu.errors import Error, InputError, ModelError
from vgg16gpu.io.foreign.outputs import OutputLock
from vgg16gpu.io.results.columns import Columns, checked
from vgg16gpu.io.scores import PredictionBatch
from vgg16gpu.io.shown import printable

_log = logging.getLogger(__name__)


class ResultWriter(ABC):
    """Where answers go. As a context it is closed at its end; that leaves the rows so far unless `finish` was called.

    One thread at a time may use it.

    `done`: the names of the inputs whose rows are there already, in order (--resume); the caller computes nothing for
    them and begins behind. `unanswered`: how many of these have an error.
    """

    done: Sequence[str] = ()
    unanswered: int = 0

    def __init__(self, path: str, columns: Columns, lock: OutputLock | None = None) -> None:
        """Take `path` as people gave it. `lock`: of the file, which `close` releases."""
        self._path = path
        self._lock = lock
        self._columns = columns
        self._skipped = 0
        self._has_failed = False  # to write

    def skip(self, names: Iterable[str]) -> None:
        """Compare the next names of `done` with those of the inputs that are left out for them.

        Raises InputError where they differ: the rows are of other inputs, or of the same in another order.
        """
        for name in names:
            row = self._skipped
            if row >= len(self.done):
                raise InputError(f"'{self._path}' has {row:,} rows, and more inputs than that are to be left out")
            if self.done[row] != self._stored(name):
                raise InputError(
                    f"row {row + 1:,} of '{self._path}' is of '{printable(self.done[row])}', and that input is "
                    f"'{printable(name)}' now; give the same inputs again, or repeat the run without --resume"
                )
            self._skipped += 1

    def write(self, answers: PredictionBatch) -> None:
        """Write a row for each input.

        Raises ModelError when that fails, and InputError for answers of another form or while `done` is not skipped.
        """
        self._check_skipped()
        answers = checked(answers, self._columns)
        try:
            if len(answers.names):
                self._write(answers)
        except ModelError:
            self._has_failed = True
            raise

    def finish(self) -> None:
        """Complete the file: all inputs are in it. Raises ModelError; InputError as `write`."""
        self._check_skipped()
        try:
            self._finish()
        except ModelError:
            self._has_failed = True
            raise

    def close(self) -> None:
        """Keep a valid file with the rows so far, or the former one without any; after `finish` do nothing.

        Raises ModelError.
        """
        try:
            self._close()
        finally:
            if self._lock:
                self._lock.release()

    @abstractmethod
    def _close(self) -> None:
        """Close while no other process may write the file."""

    @abstractmethod
    def _write(self, answers: PredictionBatch) -> None:
        """Write one row or more."""

    @abstractmethod
    def _finish(self) -> None:
        """Complete the file: all rows are written."""

    def _check_skipped(self) -> None:
        if self._skipped < len(self.done):
            raise InputError(
                f"'{self._path}' has rows of {len(self.done):,} inputs, and this run has {self._skipped:,} of these; "
                "give the same inputs again, or repeat the run without --resume"
            )

    def _stored(self, name: str) -> str:
        """Return a name as it is read back from the file."""
        return name

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        try:
            self.close()
        except Error as second:
            if not self._has_failed:  # else the first has said that there is no room
                _log.warning("%s", second)
