"""The inputs of a job, in order, in a parquet file of which each shard reads its own rows alone.

Either one that a user has: a column of paths (text) or of encoded pictures (binary), then with a column `path` or
`name` beside it, or numbers, as names. Or one that is written here of files and folders: `file` (the bytes of each
path), `numbers` (whether the file holds numbers).
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from vgg16gpu.errors import InputError
from vgg16gpu.io.files import atomic_writer
from vgg16gpu.io.foreign.arrays import reading
from vgg16gpu.io.foreign.lines import opened
from vgg16gpu.io.results.parquet_results import need_pyarrow
from vgg16gpu.io.shown import printable, shown
from vgg16gpu.pictures.content import NUMBER_SUFFIXES, suffix_of
from vgg16gpu.pictures.limits import MAX_NBYTES
from vgg16gpu.pictures.listing import STANDARD_INPUT, Listing

SUFFIX: Final = ".parquet"
GROUP_ROWS: Final = 1 << 15  # of a manifest that is written here

_FILE, _NUMBERS = "file", "numbers"
_NAMES: Final = ("path", "name")
_MARK: Final = {b"vgg16gpu.manifest": b"1"}
_FOOTER_NBYTES: Final = 8  # behind the footer: its length, and PAR1


class Manifest:
    """A manifest on a file system. Nothing but its footer is read before rows are asked for.

    column: of paths or encoded pictures; None: the only one that there is, or `path`. Raises InputError for what is no
    such file.
    """

    def __init__(self, path: Path, column: str | None = None) -> None:
        need_pyarrow(path)
        import pyarrow.parquet as pq  # noqa: PLC0415 - optional

        self.path = path
        with reading(f"the list '{printable(str(path))}'", "cannot be read as a .parquet file:"):
            self._file = pq.ParquetFile(path, memory_map=True)
        self._is_own = _MARK.items() <= (self._file.schema_arrow.metadata or {}).items()
        self.column = _FILE if self._is_own else self._chosen(column)
        kind = _stored(self._file.schema_arrow.field(self.column).type)
        self.holds_pictures = not self._is_own and _is_binary(kind)
        groups = self._file.metadata
        self._ends = list(accumulate(groups.row_group(i).num_rows for i in range(groups.num_row_groups)))
        self.count: int = groups.num_rows
        if self.count != (self._ends or [0])[-1]:
            raise InputError(f"the list '{printable(str(path))}' is damaged: its footer says two numbers of rows")
        if not self.count:
            raise InputError(f"the list '{printable(str(path))}' has no rows; write one for each input")

    def digest(self) -> str:
        """Return the SHA-256 (hex) of its size, column name and footer, which has the extremes of all columns."""
        with opened(self.path, f"the list '{printable(str(self.path))}'") as stream:
            size = os.fstat(stream.fileno()).st_size
            stream.seek(size - _FOOTER_NBYTES)
            length = int.from_bytes(stream.read(4), "little")
            stream.seek(max(0, size - _FOOTER_NBYTES - length))
            footer = stream.read(length)
        return hashlib.sha256(f"{size} {self.column}\n".encode() + footer).hexdigest()

    def listing(self, first: int, last: int) -> Listing:
        """Return the inputs of rows `first` to `last`; one without a path or a picture fails when it is read.

        Raises InputError where the rows cannot be read.
        """
        if self.holds_pictures:
            return self._pictures(first, last)
        columns = [_FILE, _NUMBERS] if self._is_own else [self.column]
        table = self._rows(first, last, columns)
        found = _names(table.column(0))
        files = [_row_name(first + i) if name is None else name for i, name in enumerate(found)]
        missing = {i: f"'{files[i]}' has no path: its row is null" for i, name in enumerate(found) if name is None}
        if self._is_own:
            numbers = [file for file, is_one in zip(files, table.column(1).to_pylist(), strict=True) if is_one]
        else:
            files = [f"./{name}" if name == STANDARD_INPUT else name for name in files]
            numbers = [file for i, file in enumerate(files) if i not in missing and suffix_of(file) in NUMBER_SUFFIXES]
        return Listing(tuple(files), frozenset(numbers), problems=missing)

    def names(self, first: int, last: int) -> Any:
        """Return the names of these inputs as an Arrow array, made without Python strings; None if only `listing` can.

        That is so for files of numbers, which have a row for each sample, and for names that are not UTF-8.
        """
        import pyarrow as pa  # noqa: PLC0415 - optional
        import pyarrow.compute as pc  # noqa: PLC0415 - optional

        if self.holds_pictures:
            return None
        try:
            if not self._is_own:
                found = _whole(self._rows(first, last, [self.column]).column(0)).cast(pa.string())
                endings = "|".join(map(re.escape, NUMBER_SUFFIXES))
                others = pc.match_substring_regex(found, f"(?i)({endings})$|^-$")
                return None if pc.any(others).as_py() or found.null_count else found
            table = self._rows(first, last, [_FILE, _NUMBERS])
            return None if pc.any(table.column(1)).as_py() else table.column(0).cast(pa.string()).combine_chunks()
        except pa.ArrowInvalid:
            return None

    def _pictures(self, first: int, last: int) -> Listing:
        names = next((name for name in _NAMES if name in self._file.schema_arrow.names), None)
        if names is None:
            files = [_row_name(number) for number in range(first, last)]
        else:
            found = _names(self._rows(first, last, [names]).column(0))
            files = [_row_name(first + i) if name is None else name for i, name in enumerate(found)]
        return Listing(tuple(files), contents=_Contents(self, first, files))

    def _rows(self, first: int, last: int, columns: Sequence[str]) -> Any:
        """Return some rows of some columns, as a table. Raises InputError."""
        begin, end = self.group_of(first), self.group_of(last - 1)
        with reading(self._words(first, last), "cannot be read:"):
            table = self._file.read_row_groups(range(begin, end + 1), columns=list(columns))
            return table.slice(first - self.start_of(begin), last - first)

    def group_of(self, row: int) -> int:
        """Return the row group of a row."""
        return bisect_right(self._ends, row)

    def start_of(self, group: int) -> int:
        """Return the first row of a row group."""
        return self._ends[group - 1] if group else 0

    def read_group(self, group: int) -> Any:
        """Return all pictures of a row group. Raises InputError where it is damaged."""
        with reading(self._words(self.start_of(group), self._ends[group]), "cannot be read:"):
            return self._file.read_row_group(group, columns=[self.column]).column(0)

    def _words(self, first: int, last: int) -> str:
        return f"rows {first:,} to {last - 1:,} of the list '{printable(str(self.path))}'"

    def _chosen(self, column: str | None) -> str:
        schema = self._file.schema_arrow
        kinds = {field.name: _stored(field.type) for field in schema}
        usable = [name for name, kind in kinds.items() if _is_text(kind) or _is_binary(kind)]
        if column is None:
            column = usable[0] if len(usable) == 1 else "path"
        if column not in usable:
            there = ", ".join(map(shown, usable)) or "none"
            if column in kinds:
                raise InputError(
                    f"the column {shown(column)} of the list '{printable(str(self.path))}' is of type {kinds[column]}, "
                    f"and not of paths (text) or encoded pictures (binary); there are: {there}; --column names one"
                )
            raise InputError(
                f"the list '{printable(str(self.path))}' has no column {shown(column)} of paths (text) or encoded "
                f"pictures (binary); there are: {there}; --column names one"
            )
        return column


class _Contents:
    """The pictures of some rows; row groups are read when they are asked for, and the last few are kept."""

    _KEPT: Final = 3

    def __init__(self, manifest: Manifest, first: int, names: Sequence[str]) -> None:
        self._manifest, self._first, self._names = manifest, first, names
        self._lock = threading.Lock()
        self._groups: dict[int, Any] = {}

    def __getitem__(self, index: int) -> bytes:
        row = self._first + index
        group = self._manifest.group_of(row)
        with self._lock:
            if group not in self._groups:
                while len(self._groups) >= self._KEPT:
                    self._groups.pop(next(iter(self._groups)))
                self._groups[group] = self._manifest.read_group(group)
            value = self._groups[group][row - self._manifest.start_of(group)]
        if not value.is_valid:
            raise InputError(f"'{self._names[index]}' has no picture: its row is null")
        data: bytes = value.as_py()  # of a category, too
        if len(data) > MAX_NBYTES:
            raise InputError(f"'{self._names[index]}' has {len(data):,} bytes, at most {MAX_NBYTES:,} are read")
        return data


def write_manifest(path: Path, listing: Listing) -> None:
    """Make a manifest of files. Raises InputError for standard input, ModelError where it cannot be written."""
    import pyarrow as pa  # noqa: PLC0415 - optional
    import pyarrow.parquet as pq  # noqa: PLC0415 - optional

    if STANDARD_INPUT in listing.numbers:
        raise InputError("standard input (-) cannot be shared by several processes; write it to a file, and name that")
    schema = pa.schema([(_FILE, pa.binary()), (_NUMBERS, pa.bool_())], metadata=_MARK)
    with atomic_writer(path) as stream, pq.ParquetWriter(stream, schema) as writer:
        for files in _parts(listing.files):
            columns = [pa.array(map(os.fsencode, files), pa.binary())]
            columns.append(pa.array([file in listing.numbers for file in files], pa.bool_()))
            writer.write_batch(pa.record_batch(columns, schema=schema))


def _parts(files: Sequence[str]) -> Iterator[Sequence[str]]:
    return (files[first : first + GROUP_ROWS] for first in range(0, len(files), GROUP_ROWS))


def _row_name(number: int) -> str:
    """Return the name of an input without one."""
    return f"row {number}"


def _stored(kind: Any) -> Any:
    """Return the type of a column's elements; of a category (pandas', say) its value type."""
    import pyarrow as pa  # noqa: PLC0415 - optional

    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _whole(column: Any) -> Any:
    """Return a column in one piece, without categories."""
    import pyarrow as pa  # noqa: PLC0415 - optional

    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # categories that differ from piece to piece
        return pa.chunked_array([each.dictionary_decode() for each in array.chunks]).combine_chunks()
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _names(column: Any) -> list[str | None]:
    """Return a column as names of files; None for null. Texts need not be UTF-8: file names need not be."""
    import pyarrow as pa  # noqa: PLC0415 - optional

    array = _whole(column)
    view = getattr(pa, "binary_view", pa.binary)
    as_bytes = {"string": pa.binary(), "large_string": pa.large_binary(), "string_view": view()}
    if (kind := as_bytes.get(str(array.type))) is not None:
        array = array.cast(kind)
    return [_name(value) for value in array.to_pylist()]


def _name(value: object) -> str | None:
    if isinstance(value, bytes):
        return os.fsdecode(value)
    return None if value is None else str(value)


def _is_text(kind: Any) -> bool:
    return str(kind) in ("string", "large_string", "string_view")


def _is_binary(kind: Any) -> bool:
    return str(kind) in ("binary", "large_binary", "binary_view")
