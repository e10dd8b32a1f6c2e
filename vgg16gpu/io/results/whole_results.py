"""Results in files without resume: .npy, .npz, .txt, .json."""

from __future__ import annotations

import io
import json
import math
import os
import shutil
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vgg16gpu.errors import ModelError
from vgg16gpu.io.files import atomic_writer, target_of, write_error
from vgg16gpu.io.foreign.outputs import OutputLock, temporary_path
from vgg16gpu.io.results.columns import Columns
from vgg16gpu.io.results.growing import Appender
from vgg16gpu.io.results.jsonl_rows import FINITE, quoted
from vgg16gpu.io.results.number_texts import row_texts
from vgg16gpu.io.results.results import ResultWriter
from vgg16gpu.io.scores import Array, PredictionBatch, Scores

_AS_THEY_ARE: Final[dict[str, str]] = {}


class Part(ABC):
    """A temporary file with a row for each input."""

    def __init__(self, path: Path, header: bytes = b"") -> None:
        """Create a new file. Raises OSError."""
        self.path = path
        self._header = header
        self._appender = Appender(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666))

    @property
    def rows(self) -> int:
        """Whole ones."""
        return self._appender.rows

    def write(self, answers: PredictionBatch) -> None:
        """Write a row for each answer. Raises OSError; whole rows before the fault stay."""
        if self._header and not self._appender.written.size:
            self._appender.append([self._header], rows_each=0)
        self._appender.append(self._rows(answers))

    def end(self, rows: int) -> None:
        """Complete a valid file of the first rows, and bring it to the disk. Raises OSError; may be called again."""
        self._end(self._appender, rows)
        os.fsync(self._appender.descriptor)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._appender.descriptor)

    def _end(self, appender: Appender, rows: int) -> None:  # noqa: ARG002 - an array is cut after so many
        """Write what is behind the last row or before the first."""
        appender.settle()

    @abstractmethod
    def _rows(self, answers: PredictionBatch) -> Sequence[bytes]:
        """Return the rows to append."""


class TextPart(Part):
    """White-space separated numbers, a line a row; NaN is nan."""

    def _rows(self, answers: PredictionBatch) -> Sequence[bytes]:
        rows = row_texts(answers.scores.reshape(len(answers.names), -1), " ", _AS_THEY_ARE)
        return [f"{row}\n".encode() for row in rows]


class JsonPart(Part):
    """A list of objects with `input` and `scores`, nested as the output is; NaN and infinite numbers are null."""

    def __init__(self, path: Path, shape: tuple[int, ...]) -> None:
        """Create a file for rows of scores of this shape."""
        super().__init__(path, b"[")
        self._template = _nested(shape) if len(shape) != 1 else None
        self._is_ended = False

    def _rows(self, answers: PredictionBatch) -> Sequence[bytes]:
        lists = self._lists(answers.scores.reshape(len(answers.names), -1))
        pairs = zip(answers.names, lists, strict=True)
        objects = [f'{{"input": {quoted(name)}, "scores": {scores}}}' for name, scores in pairs]
        return [f"{', ' * (self.rows + i > 0)}{text}".encode() for i, text in enumerate(objects)]

    def _lists(self, rows: Scores) -> list[str]:
        texts = row_texts(rows, ", ", FINITE)
        if self._template is None:
            return [f"[{text}]" for text in texts]
        return [self._template % tuple(text.split(", ")) for text in texts]

    def _end(self, appender: Appender, rows: int) -> None:
        super()._end(appender, rows)
        if not self._is_ended:
            appender.append([b"]\n"], rows_each=0)
            self._is_ended = True


class ArrayPart(Part):
    """An array of numpy's. The header is written at the end again, in as many bytes, with the number of rows."""

    def __init__(self, path: Path, output: int, rows: Array) -> None:
        """Create a file for output number `output` of the model, which has rows like `rows`."""
        self._output = output
        self._dtype, self._shape = rows.dtype, rows.shape[1:]
        self._row_size = rows.dtype.itemsize * math.prod(self._shape)
        super().__init__(path, array_header(self._dtype, (0, *self._shape)))

    def _rows(self, answers: PredictionBatch) -> Sequence[bytes]:
        array = (answers.scores, *answers.others)[self._output]
        data = np.ascontiguousarray(array, self._dtype).tobytes()
        return [data[i : i + self._row_size] for i in range(0, len(data), self._row_size)]

    def _end(self, appender: Appender, rows: int) -> None:
        super()._end(appender, rows)
        appender.cut(len(self._header) + rows * self._row_size)
        os.pwrite(appender.descriptor, array_header(self._dtype, (rows, *self._shape)), 0)


def array_header(dtype: npt.DTypeLike, shape: tuple[int, ...]) -> bytes:
    """Return a .npy header. Its length is the same for any number of rows: numpy leaves room for their digits."""
    stream = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
    np.lib.format.write_array_header_1_0(stream, {"descr": descr, "fortran_order": False, "shape": shape})
    return stream.getvalue()


def _nested(shape: tuple[int, ...]) -> str:
    """Return a template of nested JSON lists with a %s for each number."""
    empty: Any = np.full(shape, "%s").tolist()
    return json.dumps(empty).replace('"', "")


_NAMES_AT_A_TIME: Final = 4096
_COPIED_AT_A_TIME: Final = 1 << 20  # bytes


class WholeFile(ResultWriter):
    """A .npy, .npz, .txt or .json file."""

    def __init__(self, path: Path, columns: Columns, kind: str, lock: OutputLock) -> None:
        """Open the file; `kind`: its ending without the dot; `lock`: of `path`. Raises ModelError if none can be."""
        super().__init__(str(path), columns, lock)
        self._target = target_of(path)
        self._kind = kind
        self._names: list[str] = []
        self._parts: list[Part] = []
        self._temporaries: list[Path] = []  # each named before it is there, for signals come at any time

    def _finish(self) -> None:
        """See ResultWriter."""
        try:
            if self._parts:
                self._assemble()
        except ModelError:
            self._drop()
            raise
        self._drop()  # not after a signal: `close` tries again

    def _close(self) -> None:
        """See ResultWriter."""
        self._finish()

    def _write(self, answers: PredictionBatch) -> None:
        try:
            if not self._parts:
                self._begin(answers)
            self._names += answers.names
            for part in self._parts:
                part.write(answers)
        except OSError as error:
            raise self._failure(error) from error

    def _begin(self, answers: PredictionBatch) -> None:
        arrays = (answers.scores, *(answers.others if self._kind == "npz" else ()))
        for output, array in enumerate(arrays):
            path = temporary_path(self._target)
            self._temporaries.append(path)
            match self._kind:
                case "txt":
                    self._parts.append(TextPart(path))
                case "json":
                    self._parts.append(JsonPart(path, self._columns.shape))
                case _:
                    self._parts.append(ArrayPart(path, output, array))

    def _assemble(self) -> None:
        """Write the file of as many rows as every part has. Raises ModelError."""
        rows = min(part.rows for part in self._parts)
        if not rows:
            return
        try:
            for part in self._parts:
                part.end(rows)
            if self._kind == "npz":
                self._assemble_archive(self._names[:rows])
            elif self._parts[0].path.exists():  # else a signal came when it had its name
                self._parts[0].path.replace(self._target)
        except OSError as error:
            raise write_error(Path(self._path), error) from error

    def _assemble_archive(self, names: Sequence[str]) -> None:
        keys = ["scores", *(f"scores:{name}" for name in self._columns.outputs[1:])]
        with atomic_writer(Path(self._path)) as stream, zipfile.ZipFile(stream, "w") as archive:
            with archive.open(zipfile.ZipInfo("names.npy"), "w", force_zip64=True) as member:
                for piece in _names_array(names):
                    member.write(piece)
            for key, part in zip(keys, self._parts, strict=True):
                info = zipfile.ZipInfo(f"{key}.npy")
                with part.path.open("rb") as source, archive.open(info, "w", force_zip64=True) as member:
                    shutil.copyfileobj(source, member, _COPIED_AT_A_TIME)

    def _failure(self, error: OSError) -> ModelError:
        """Keep what can be kept of a file that grows no more."""
        rows = min((part.rows for part in self._parts), default=0)
        try:
            self._finish()
        except ModelError:
            rows = 0
        reason = error.strerror or str(error)
        left = f"it has the {rows:,} rows before" if rows else "nothing of this run is left"
        return ModelError(f"{self._path}: cannot be written ({reason}); {left}; name a file where there is room")

    def _drop(self) -> None:
        while self._parts:
            self._parts.pop().close()
        for path in self._temporaries:
            path.unlink(missing_ok=True)


def _names_array(names: Sequence[str]) -> Iterator[bytes]:
    """Yield an array of names as a .npy file, in pieces: each takes four bytes for every character of the longest."""
    dtype = np.dtype(f"<U{max(1, *map(len, names))}")
    yield array_header(dtype, (len(names),))
    for first in range(0, len(names), _NAMES_AT_A_TIME):
        yield np.array(names[first : first + _NAMES_AT_A_TIME], dtype).tobytes()
