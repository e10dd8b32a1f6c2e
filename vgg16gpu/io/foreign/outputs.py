"""Files that a command writes: never one that it reads, never one that another run is writing.

Files are compared by device and inode, so that symbolic and hard links are what they lead to.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final, TypeAlias

from vgg16gpu.errors import InputError
from vgg16gpu.io.shown import printable

Named: TypeAlias = tuple[str, str | os.PathLike[str]]  # what a file is called in messages, and its path

_LONGEST: Final = 160  # bytes of a name that others are made of: systems take 255


def refuse_read_files(outputs: Iterable[Named], reads: Iterable[Named]) -> None:
    """Raise InputError where writing one of `outputs` would replace one of `reads`.

    Outputs are called by their options, "--output"; what is read by what it is, "the list". Nothing is looked at but
    outputs unless one of them is there.
    """
    there = {found: output for output in outputs if (found := file_of(output[1]))}
    if not there:
        return
    for what, path in reads:
        found = file_of(path)
        if found in there:
            option, output = there[found]
            same = "" if os.fspath(output) == os.fspath(path) else f" ('{printable(os.fspath(path))}')"
            raise InputError(
                f"{option} '{printable(os.fspath(output))}' is {what}{same}, which this run reads and would replace; "
                "name another file"
            )


def file_of(path: str | os.PathLike[str]) -> tuple[int, int] | None:
    """Return device and inode of what a path leads to; None where there is nothing."""
    try:
        found = os.stat(path)  # noqa: PTH116 - a Path for each of 100,000 files is what takes time
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino


def temporary_path(target: Path) -> Path:
    """Return a name beside `target` that no other process has, on this machine or another one."""
    return target.with_name(f".{_short(target.name)}.{os.getpid()}-{os.urandom(4).hex()}.tmp")


class OutputLock:
    """The right to write a file, until `release`; a process that ends without it loses it.

    It lies on a file of its own beside the output, `.NAME.lock`: the output itself comes and goes.
    """

    def __init__(self, target: Path, name: str) -> None:
        """Lock the output. Raises InputError where another run has it, or no file can be made. `name`: for messages."""
        self._path = target.with_name(f".{_short(target.name)}.lock")
        try:
            self._descriptor = self._taken()
        except BlockingIOError as error:
            raise InputError(
                f"'{name}' is being written by another run; wait for its end, or name another file"
            ) from error
        except OSError as error:
            raise InputError(f"'{name}' cannot be written: {error.strerror or error} ('{self._path.name}')") from error

    def release(self) -> None:
        """Unlock the output. Safe to call twice."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()  # while it is held: whoever has opened it sees that it is gone, and makes another
            os.close(descriptor)

    def _taken(self) -> int | None:
        while True:
            descriptor = _opened(self._path)
            try:
                if not lock(descriptor):
                    os.close(descriptor)
                    return None
                found = os.fstat(descriptor)
                if file_of(self._path) == (found.st_dev, found.st_ino):
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # who had it has removed it meanwhile


def lock(descriptor: int) -> bool:
    """Lock a file until it is closed; False on a file system without locks. Raises BlockingIOError."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def _opened(path: Path) -> int:
    """Open a file of locks, which another user may have left."""
    flags = os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open(path, flags | os.O_RDWR, 0o666)  # network file systems lock what can be written
    except PermissionError:
        return os.open(path, flags & ~os.O_CREAT | os.O_RDONLY)


def _short(name: str) -> str:
    """Return a name, or the beginning of one that is too long with the digest of all of it."""
    data = os.fsencode(name)
    if len(data) <= _LONGEST:
        return name
    return f"{data[: _LONGEST - 20].decode(errors='ignore')}{zlib.crc32(data):08x}"
