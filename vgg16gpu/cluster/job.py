"""A job: a list of inputs cut into shards, and the folder where shards are worked on."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from vgg16gpu.cluster.manifest import Manifest
from vgg16gpu.errors import InputError, ModelError
from vgg16gpu.io.foreign.documents import OTHER_FORM, parse_json, read_json
from vgg16gpu.io.foreign.lines import NotReadError, read_lines
from vgg16gpu.io.foreign.numbers import whole_value
from vgg16gpu.io.foreign.outputs import Named, file_of, lock, refuse_read_files
from vgg16gpu.io.preprocessing import Preprocess
from vgg16gpu.io.results import Columns, RunRecord
from vgg16gpu.io.results.record import refuse_other_run
from vgg16gpu.io.shown import printable

_LOCK: Final = "lock"  # in the folder, held while it is open


class WorkFolder:
    """A folder of this process below `place`, which several processes share, on several machines."""

    def __init__(self, place: Path) -> None:
        """Create the folder. Raises ModelError where none can be made."""
        try:
            self._descriptor = self._made(place)
        except OSError as error:
            reason = error.strerror or str(error)
            raise ModelError(
                f"{printable(str(place))}: cannot be written ({reason}); name a folder that can"
            ) from error

    def rows(self, name: str) -> Path:
        """Return the path of a part's rows until they are whole."""
        return self.path / name

    def close(self) -> None:
        """Remove it. Safe to call twice."""
        if self._descriptor >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._descriptor)
            self._descriptor = -1

    @staticmethod
    def remove(path: Path) -> None:
        """Remove the folder of a process that is gone; on a file system without locks nobody knows that: it stays."""
        try:
            descriptor = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            with contextlib.suppress(OSError):  # a moment old, or its process went at once
                path.rmdir()
            return
        try:
            with contextlib.suppress(BlockingIOError):
                if lock(descriptor):
                    shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(descriptor)

    def _made(self, place: Path) -> int:
        """Create the folder and lock it; again where another process has removed it in between."""
        while True:
            self.path = place / f"{socket.gethostname()}-{secrets.token_hex(4)}"
            try:
                self.path.mkdir(parents=True)
                descriptor = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except FileNotFoundError:
                continue
            with contextlib.suppress(BlockingIOError):
                lock(descriptor)
                found = os.fstat(descriptor)
                if file_of(self.path / _LOCK) == (found.st_dev, found.st_ino):
                    return descriptor
            os.close(descriptor)


MOST: Final = 1 << 15  # inputs of a shard, unless the user says otherwise: some seconds of a GPU
LEAST: Final = 256
MOST_OF_SHARD: Final = 1 << 40  # inputs, that a record may say
EACH: Final = 8  # shards for each worker, where there are inputs enough: the last ones end at about the same time

_JOB: Final = "_job.json"
_PART: Final = "part-"
_KEYS: Final = ("run", "shard_size")


@dataclass(frozen=True)
class ShardPlan:
    """How a list is cut: shard k has the inputs from k * size on."""

    inputs: int
    size: int

    @property
    def count(self) -> int:
        """Number of shards."""
        return -(-self.inputs // self.size)

    def bounds(self, shard: int) -> tuple[int, int]:
        """Return the first input of a shard, and the one behind its last."""
        return shard * self.size, min(self.inputs, (shard + 1) * self.size)


def shard_size(inputs: int, workers: int) -> int:
    """Return how many inputs a shard has by default: some shards for each worker, neither tiny nor huge."""
    return max(LEAST, min(MOST, -(-inputs // (EACH * max(1, workers)))))


@dataclass(frozen=True)
class ShardJob:
    """All that a process needs to compute shards; it can be sent to one.

    cwd: what relative paths are relative to. engine: options of `Engine`, with one batch size. shape: of one input.
    decode: who decodes. workers: threads that read and decode, None: one for each core. run: identity of the rows.
    """

    folder: Path
    cwd: Path
    model: Path
    manifest: Path
    column: str | None
    engine: Mapping[str, Any]
    shape: tuple[int, ...]
    preprocess: Preprocess | None
    columns: Columns
    are_probabilities: bool
    decode: str
    workers: int | None
    run: RunRecord
    size: int  # of a shard

    @property
    def cut(self) -> ShardPlan:
        """Its shards."""
        assert self.run.inputs is not None
        return ShardPlan(self.run.inputs, self.size)

    @cached_property
    def inputs(self) -> Manifest:
        """The list. Raises InputError where it cannot be read."""
        return Manifest(self.manifest, self.column)


class JobFolder:
    """The folder of a job. Several processes, on several machines, may use it at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def prepare(self) -> None:
        """Create the folder if it is absent. Raises InputError for a file, or a folder that holds something else."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            entries = os.listdir(self.path)  # noqa: PTH208
        except OSError as error:
            reason = "is a file; name a folder" if self.path.is_file() else f"cannot be used: {error.strerror or error}"
            raise InputError(f"--output '{printable(str(self.path))}' {reason}") from error
        others = [name for name in entries if not name.startswith(".")]
        if others and _JOB not in entries and any(not name.startswith("_") for name in others):
            raise InputError(
                f"--output '{printable(str(self.path))}' holds '{printable(others[0])}' and no job; name a new folder"
            )

    def refuse_own(self, reads: Iterable[Named]) -> None:
        """Raise InputError where one of `reads`, what is read, is a file that the job writes here.

        The list that it has written may be given to it again.
        """
        written = (path for path in self.path.glob("*") if path.name.startswith((_PART, _JOB, "_summary", "_SUCCESS")))
        refuse_read_files((("--output", path) for path in written), reads)

    def shard_size(self) -> int | None:
        """Return the shard size of the existing job; None without one. Raises InputError for a broken file."""
        found = self._read()
        return None if found is None else found["shard_size"]

    def claim(self, job: ShardJob) -> None:
        """Claim the folder for this job, or go on with it. Raises InputError where it is another's."""
        wanted = {"run": job.run.identity(job.columns), "shard_size": job.size}
        found = self._read()
        if found is None:
            self._write(wanted)
            found = self._read()  # another process may have been first
        assert found is not None
        refuse_other_run(self.path, {key: found[key] for key in _KEYS}, wanted, _OTHER)
        (self.path / "_log").mkdir(exist_ok=True)

    def part(self, shard: int) -> Path:
        """Return the path of a shard's rows, once they are whole."""
        return self.path / f"{_PART}{shard:05}.parquet"

    @property
    def temporary(self) -> Path:
        """Folder of processes' folders for rows that are not whole."""
        return self.path / "_temporary"

    def publish(self, shard: int, rows: Path) -> None:
        """Rename whole rows to their name, unless another process has computed the shard meanwhile."""
        part = self.part(shard)
        with contextlib.suppress(FileExistsError):
            try:
                os.link(rows, part)
            except FileExistsError:
                raise
            except OSError:  # a file system without links
                if not part.exists():
                    rows.replace(part)

    def tidy(self) -> None:
        """Remove rows that processes have left which are gone; the folders of those that work stay."""
        with contextlib.suppress(OSError):  # there is none, or somebody works in it
            for path in list(self.temporary.iterdir()):
                WorkFolder.remove(path)
            self.temporary.rmdir()

    def log(self, name: str, line: Mapping[str, Any]) -> None:
        """Append a line to this process's log."""
        with (self.path / "_log" / f"{name}.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")

    def logged(self) -> list[dict[str, Any]]:
        """Return all lines of all logs; what a crash has torn is left out."""
        lines = []
        for path in sorted((self.path / "_log").glob("*.jsonl")):
            with contextlib.suppress(InputError):
                for line in read_lines(path, errors="surrogateescape"):
                    with contextlib.suppress(InputError):
                        lines.append(_log_line(parse_json(line, "a line of the log")))
        return lines

    def whole(self, cut: ShardPlan) -> set[int]:
        """Return the shards whose rows are there."""
        there = set(os.listdir(self.path))  # noqa: PTH208 - one look for a hundred thousand shards
        return {shard for shard in range(cut.count) if self.part(shard).name in there}

    def _read(self) -> dict[str, Any] | None:
        path = self.path / _JOB
        try:
            found = read_json(path)
            size = whole_value(found["shard_size"], "shard_size", 1, MOST_OF_SHARD)
            return {"run": found["run"], "shard_size": size}
        except OTHER_FORM as error:
            if isinstance(error, NotReadError) and error.is_missing:
                return None
            raise InputError(f"'{printable(str(path))}' is not the record of a job; name a new folder") from error

    def _write(self, content: Mapping[str, Any]) -> None:
        """Write the file under its name at once, unless another process was faster. Raises ModelError."""
        path = self.path / _JOB
        temporary = self.path / f".{_JOB}.{secrets.token_hex(4)}.tmp"
        try:
            temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
            try:
                with contextlib.suppress(FileExistsError):
                    os.link(temporary, path)
            except OSError:  # a file system without links: the last of those who come at the same time stays
                temporary.replace(path)
        except OSError as error:
            raise ModelError(f"{printable(str(path))}: cannot be written ({error.strerror or error})") from error
        finally:
            temporary.unlink(missing_ok=True)


def _log_line(line: Any) -> dict[str, Any]:
    """Return a line of a log as the summary reads it. Raises InputError for another form."""
    try:
        devices = [str(name) for name in line["devices"]]
        numbers = {"shard": int(line["shard"]), "inputs": int(line["inputs"]), "seconds": float(line["seconds"])}
        return {"host": str(line["host"]), "devices": devices, **numbers}
    except OTHER_FORM as error:
        raise InputError("a line of the log is of another form") from error


_OTHER: Final = "give the same again, or name a new folder"


def process_name() -> str:
    """Return the name of this process among all that compute a job."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
