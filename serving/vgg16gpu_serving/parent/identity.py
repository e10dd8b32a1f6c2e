"""The files that a server serves: from its start to its end they are the same, or its processes are not started again.

Their sizes and times tell in a moment that nothing was written; where they differ the content decides, by SHA-256.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from vgg16gpu.errors import InputError
from vgg16gpu.io.shown import printable

_CHUNK: Final = 1 << 22
_LOWEST: Final = 19  # of the priorities of threads


class Stamp(NamedTuple):
    """What changes with a file's content: its place, its size, and when it was written last (nanoseconds)."""

    device: int
    inode: int
    nbytes: int
    mtime: int

    @classmethod
    def of(cls, found: os.stat_result) -> Stamp:
        """Create a stamp from the system's status."""
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


@dataclass(eq=False)
class _Served:
    """A file as it was at the start. descriptor: keeps it readable when another takes its name. digest: once known."""

    path: Path
    descriptor: int
    stamp: Stamp
    digest: str | None = None
    accepted: set[Stamp] = field(default_factory=set)  # of files of the same content


class Identity:
    """The files of a model, opened as they are now. Close it."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Raises InputError where one cannot be read."""
        self._files: list[_Served] = []
        self._is_closed = False
        for path in paths:
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                self.close()
                raise InputError(f"'{printable(str(path))}' cannot be read: {error.strerror}") from error
            self._files.append(_Served(path, descriptor, Stamp.of(os.fstat(descriptor))))

    def close(self) -> None:
        """Close the files."""
        self._is_closed = True
        while self._files:
            os.close(self._files.pop().descriptor)

    def learn(self) -> None:
        """Compute the digests in a thread of low priority: then a file that is written anew may be recognised."""
        threading.Thread(target=self._learn, name="vgg16gpu-digest", daemon=True).start()

    def changed(self) -> str | None:
        """Return in a line which file is another one now; None where all are what they were."""
        return next((words for file in self._files if (words := _change(file))), None)

    def _learn(self) -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST)
        for file in list(self._files):
            with suppress(OSError):
                file.digest = _digest_of_served(file)


def _change(file: _Served) -> str | None:
    name = f"'{printable(str(file.path))}'"
    advice = "put it back, or start the server again"
    try:
        descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # it may be a pipe now
    except OSError as error:
        return f"{name}, which is served, cannot be read: {error.strerror}; {advice}"
    try:
        found = Stamp.of(os.fstat(descriptor))
        if found == file.stamp or found in file.accepted:
            return None
        if found.nbytes == file.stamp.nbytes:
            before = file.digest or _digest_of_served(file)
            if before and before == _digest(descriptor):
                file.digest = before
                file.accepted.add(found)
                return None
    except OSError as error:
        return f"{name}, which is served, cannot be read: {error.strerror}; {advice}"
    finally:
        os.close(descriptor)
    return f"{name} is another file than the one that is served; {advice}"


def _digest_of_served(file: _Served) -> str | None:
    """Return the digest of the content at the start; None where the file was written since."""
    digest = _digest(file.descriptor)
    return digest if Stamp.of(os.fstat(file.descriptor)) == file.stamp else None


def _digest(descriptor: int) -> str:
    digest, place = hashlib.sha256(), 0
    while data := os.pread(descriptor, _CHUNK, place):
        digest.update(data)
        place += len(data)
    return digest.hexdigest()
