"""The record of a run, beside the file of its results: RESULTS.run.json.

    {"run": {"model": SHA-256, "options": {...}, "list": SHA-256, "inputs": 1000, "version": ..., "columns": {...}},
     "started": "2026-01-31T12:00:00+00:00", "finished": ... or null, "rows": ..., "bytes": ..., "crc32": ...}

A .csv or .jsonl file holds rows and nothing else, so what they are rows of stands here. `--resume` goes on only where
`run` is the same: the same model, options, list of inputs, columns and version of the package give the same rows. It
is written before the first row and stays: `--resume` on a finished file answers that all is there. `rows`, `bytes` and
`crc32` tell how the file was left, of .parquet the stream that it was made of; null while it is written and after a
kill. Until then `replaces` tells, by size and a sum, the older file whose name the run's own is about to take. A
.parquet file has `run` in the metadata of its schema as well, and that is what is compared.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from vgg16gpu.errors import InputError
from vgg16gpu.io.files import atomic_writer
from vgg16gpu.io.foreign.documents import OTHER_FORM, read_json
from vgg16gpu.io.foreign.lines import NotReadError
from vgg16gpu.io.results.columns import Columns
from vgg16gpu.io.results.scan import WrittenState
from vgg16gpu.io.shown import shown

_END_NBYTES: Final = 1 << 16
_DIGEST: Final = re.compile("[0-9a-f]{64}")  # SHA-256
_DIGESTS: Final = {  # of what, by the key in a record
    "model": "the model file",
    "list": "the list of inputs",
    "labels": "the list of class names",
    "scales": "the file of int8 scales",
}
_SAME = "give the same again, or repeat the run without --resume to replace the file"


@dataclass(frozen=True)
class RunRecord:
    """What makes the rows of two runs the same. All are JSON values.

    `model`: SHA-256 of its file. `options`: whatever changes an answer, precision, preprocessing and device say.
    `list`: `list_digest` of the inputs' names, or None where they are not known before. `inputs`: how many, or None.
    `version`: of the package.
    """

    model: str
    options: Mapping[str, Any]
    list: str | None
    inputs: int | None
    version: str

    def identity(self, columns: Columns) -> dict[str, Any]:
        """Return everything as parsed JSON, for comparison."""
        content: dict[str, Any] = json.loads(json.dumps({**vars(self), "columns": columns.fields()}))
        return content


def list_digest(names: Iterable[str]) -> str:
    """Return the SHA-256 (hex) of names in their order."""
    digest = hashlib.sha256()
    for name in names:
        digest.update(json.dumps(name).encode() + b"\n")
    return digest.hexdigest()


def record_path(path: Path) -> Path:
    """Return the path of a result file's record."""
    return path.with_name(f"{path.name}.run.json")


class RecordFile:
    """The record beside one file of results."""

    def __init__(self, results: Path, identity: Mapping[str, Any]) -> None:
        """Describe the run with this identity; nothing is read or written."""
        self.path = record_path(results)
        self.identity = identity
        self.is_finished = False  # as `read` finds it
        self._started = _now()
        self._replaces: Any = None  # as `read` finds it

    def read(self) -> WrittenState | None:
        """Read the record of an interrupted run; return the state of its file, None if it has none.

        Raises InputError when there is none, it is broken, or it is of another run.
        """
        try:
            content = read_json(self.path)
            identity, self._started = content["run"], str(content["started"])
            self.is_finished = content["finished"] is not None
            self._replaces = content.get("replaces")
            written = (
                WrittenState(int(content["bytes"]), int(content["crc32"])) if content["bytes"] is not None else None
            )
        except NotReadError as error:
            if not error.is_missing:
                raise
            raise InputError(
                f"'{self.path}' does not exist, so nobody knows of which run the results are; {_SAME}"
            ) from error
        except OTHER_FORM as error:
            raise InputError(f"'{self.path}' is no record of a run; {_SAME}") from error
        refuse_other_run(self.path, identity, self.identity)
        return written

    def begin(self, file: Path) -> None:
        """Record that the run has begun, and the present content of `file`, which it is about to replace.

        Raises ModelError when that cannot be written.
        """
        with atomic_writer(self.path) as stream:
            stream.write(self._content(replaces=_fingerprint(file)))

    def has_replaced(self, file: Path) -> bool:
        """Return whether `file` is the older one that the recorded run was about to replace, not the run's own."""
        return self._replaces is not None and self._replaces == _fingerprint(file)

    def leave(self, rows: int, written: WrittenState, *, finished: bool) -> None:
        """Record the file's state. Raises ModelError when that cannot be written."""
        with atomic_writer(self.path) as stream:
            stream.write(self._content(rows, written, _now() if finished else None))

    def _content(
        self,
        rows: int | None = None,
        written: WrittenState | None = None,
        finished: str | None = None,
        replaces: Mapping[str, int] | None = None,
    ) -> bytes:
        content = {
            "run": self.identity,
            "started": self._started,
            "finished": finished,
            "rows": rows,
            "bytes": written and written.size,
            "crc32": written and written.checksum,
        }
        content |= {"replaces": replaces} if replaces else {}
        return json.dumps(content, indent=1).encode() + b"\n"


def _fingerprint(file: Path) -> dict[str, int] | None:
    """Return a file's bytes, and a sum of the first and the last of them, to tell it from one that takes its name.

    A file of the same rows may have the same, and then it does not matter which one it is. None without a file.
    """
    try:
        with file.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            checksum = zlib.crc32(stream.read(_END_NBYTES))
            stream.seek(max(0, size - _END_NBYTES))
            return {"bytes": size, "crc32": zlib.crc32(stream.read(_END_NBYTES), checksum)}
    except OSError:
        return None


def refuse_other_run(path: Path, found: Any, wanted: Mapping[str, Any], remedy: str = _SAME) -> None:
    """Raise InputError, with the first difference, unless what is in `path` is of the wanted run."""
    if found == wanted:
        return
    difference = _difference(found, wanted) if isinstance(found, dict) else "it says nothing of the run"
    raise InputError(f"'{path}' is of another run: {difference}; {remedy}")


def _difference(found: Mapping[str, Any], wanted: Mapping[str, Any], of: str = "") -> str:
    for key in [*wanted, *found]:
        was, now = found.get(key), wanted.get(key)
        if was != now:
            if isinstance(was, dict) and isinstance(now, dict):
                return _difference(was, now, f"{key}: ")
            if _is_digest(was) or _is_digest(now):  # numbers that tell nobody anything
                what = _DIGESTS.get(key, f"{of}{key}")
                return f"{what} {'is another one' if was and now else 'was not there' if now else 'is there no more'}"
            return f"{of}{key} was {shown(was)} and is {shown(now)}"
    return "nothing that has a name"  # not reached: equal ones are not compared


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
