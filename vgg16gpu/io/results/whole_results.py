"""Results in files that are whole or not there: .npy, .npz, .txt, .json.

Rows go to temporary files beside the target as they come, so memory does not grow with them; the end makes the file of
them and gives it its name, in the place of an older one. That is so, too, when a run is interrupted: the file then has
the rows so far. A run that is killed leaves nothing new but its temporary files (.NAME.*.tmp).
"""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from vgg16gpu.errors import ModelError
from vgg16gpu.io.files import atomic_writer, target_of, write_error
from vgg16gpu.io.foreign.outputs import OutputLock, temporary_path
from vgg16gpu.io.results.columns import Columns
from vgg16gpu.io.results.parts import ArrayPart, JsonPart, Part, TextPart, array_header
from vgg16gpu.io.results.results import ResultWriter
from vgg16gpu.io.scores import PredictionBatch

_NAMES_AT_A_TIME: Final = 4096
_COPIED_AT_A_TIME: Final = 1 << 20  # bytes


class WholeFile(ResultWriter):
    """A .npy, .npz, .txt or .json file."""

    def __init__(self, path: Path, columns: Columns, kind: str, lock: OutputLock) -> None:
        """`kind`: the ending without its dot. `lock`: of `path`. Raises ModelError where no file can be there."""
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
        """Make the file of as many rows as every part has. Raises ModelError."""
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
    """An array of names as a .npy file, in pieces: each takes four bytes for every character of the longest."""
    dtype = np.dtype(f"<U{max(1, *map(len, names))}")
    yield array_header(dtype, (len(names),))
    for first in range(0, len(names), _NAMES_AT_A_TIME):
        yield np.array(names[first : first + _NAMES_AT_A_TIME], dtype).tobytes()
