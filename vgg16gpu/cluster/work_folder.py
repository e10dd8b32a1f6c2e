"""Where a process of a job has rows that are not whole: a folder of its own, which nobody removes while it works."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
from pathlib import Path
from typing import Final

from vgg16gpu.errors import ModelError
from vgg16gpu.io.foreign.outputs import file_of, lock
from vgg16gpu.io.shown import printable

_LOCK: Final = "lock"  # in the folder, held while it is open


class WorkFolder:
    """A folder of this process below `place`, which several processes share, on several machines."""

    def __init__(self, place: Path) -> None:
        """Raises ModelError where none can be made."""
        try:
            self._descriptor = self._made(place)
        except OSError as error:
            reason = error.strerror or str(error)
            raise ModelError(
                f"{printable(str(place))}: cannot be written ({reason}); name a folder that can"
            ) from error

    def rows(self, name: str) -> Path:
        """Where the rows of a part of that name are until they are whole."""
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
        """Make it and hold its lock: again where somebody has removed it in between."""
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
