"""What a .csv or .jsonl file of results holds already: its whole rows, and where the last of them ends."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol

from vgg16gpu.errors import InputError
from vgg16gpu.io.scores import PredictionBatch
from vgg16gpu.io.shown import printable, shown

_REMEDY = "repeat the run without --resume to replace the file, or name another"


class TextForm(Protocol):
    """How answers become rows of text and how rows are recognised."""

    header: bytes
    longest: int  # bytes of a row that can be

    def rows(self, answers: PredictionBatch) -> list[bytes]:
        """Return a line for each answer."""

    def is_row(self, line: bytes) -> bool:
        """Return whether a line feed at the end of `line` ends the row, and not one within quotes."""

    def head(self, row: bytes) -> tuple[str, bool] | None:
        """Return a row's input name and whether it has an error; None if it is not a row of these columns."""

    def may_be_torn(self, tail: bytes) -> bool:
        """Return whether `tail` can be the beginning of a row."""


@dataclass
class FoundRows:
    """Rows that are there: the names of their inputs, how many have an error, the bytes up to the end of the last."""

    names: list[str] = field(default_factory=list)
    unanswered: int = 0
    size: int = 0
    checksum: int = 0  # zlib.crc32 of these bytes


@dataclass(frozen=True)
class WrittenState:
    """The state that a run left a file in: so many bytes with this checksum. More may have been written since."""

    size: int
    checksum: int


def scan_rows(stream: BinaryIO, form: TextForm, path: str, written: WrittenState | None = None) -> FoundRows:
    """Read a file from its beginning, a row at a time; what is behind `size` is a row torn by a kill.

    Raises InputError where it is not what a run with these columns writes: another header, a row that is none, bytes
    that have changed since the run `written` them.
    """
    header = stream.read(len(form.header))
    if header != form.header:
        if form.header.startswith(header):  # torn itself
            return FoundRows()
        raise InputError(
            f"'{path}' begins with {shown(header[:60].decode(errors='replace'))}, not as this run would write it; the "
            f"columns are others, or an editor changed the file: {_REMEDY}"
        )
    found = FoundRows(size=len(header), checksum=zlib.crc32(header))
    for row in _rows(stream, form, path):
        if not (row.endswith(b"\n") and form.is_row(row)):
            if not form.may_be_torn(row):
                raise _no_row(path, found, row)
            break
        head = form.head(row)
        if head is None:
            raise _no_row(path, found, row)
        found.names.append(head[0])
        found.unanswered += head[1]
        before, found.size, found.checksum = found.size, found.size + len(row), zlib.crc32(row, found.checksum)
        if written and before < written.size <= found.size and WrittenState(found.size, found.checksum) != written:
            raise InputError(f"'{path}' has been changed since the run wrote it, in one of its rows: {_REMEDY}")
    return found


def _rows(stream: BinaryIO, form: TextForm, path: str) -> Iterator[bytes]:
    """Yield whole rows, and at the end what is not one. Raises InputError for a row that is too long."""
    row = b""
    while line := stream.readline(form.longest):
        row = row + line if row else line
        if len(row) >= form.longest:
            raise InputError(
                f"'{path}' has a row of {len(row):,} bytes or more, too long for one of this run: {_REMEDY}"
            )
        if line.endswith(b"\n") and form.is_row(row):
            yield row
            row = b""
    if row:
        yield row


def _no_row(path: str, found: FoundRows, row: bytes) -> InputError:
    begin = printable(row[:60].decode(errors="surrogateescape"))
    return InputError(
        f"row {len(found.names) + 1:,} of '{path}' is none that this run would write: '{begin}'; "
        f"an editor changed the file, or it belongs to something else: {_REMEDY}"
    )
