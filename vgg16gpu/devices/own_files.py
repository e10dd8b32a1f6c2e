"""Files that nobody but this user can have written: what is read, or run, is judged by its open descriptor.

Loading a compiled kernel runs its code. A name may mean another file a moment later, and a folder that others could
write once may hold what they put there. So a folder is opened first, and judged; its files are opened in it, not
through links, and judged: regular, of this user, not to be written by others. Content and code come from what is open.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Final

_PRIVATE: Final = 0o700
_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe would have it wait for a writer
_PROC: Final = Path("/proc/self/fd")
_MOST_KEPT: Final = 8  # folders that stay open

_kept: OrderedDict[tuple[int, int], OwnFolder] = OrderedDict()  # by device and inode, the one used last comes last
_kept_lock = threading.Lock()


class UntrustedError(Exception):
    """Why a folder cannot be trusted or used: "belongs to user 1000, not to user 0"."""


class OwnFolder:
    """An open folder of this user. It stays open for as long as somebody has this object."""

    def __init__(self, path: Path, number: int) -> None:
        self.path = path
        self._number = number

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._number)

    def names(self) -> list[str]:
        """Return the names in it, sorted. Raises OSError."""
        # Descriptors of one opening share a place in the listing, and threads would share it.
        number = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._number)
        try:
            return sorted(os.listdir(number))  # noqa: PTH208 - a path might be another folder by now
        finally:
            os.close(number)

    def read(self, name: str) -> bytes | None:
        """Return the content of a file that this user alone can have written; None for anything else."""
        try:
            number = os.open(name, _READ, dir_fd=self._number)
        except OSError:  # no such file, a link, one that cannot be read
            return None
        try:
            status = os.fstat(number)
            if not is_own_file(status):
                return None
            parts = []
            while part := os.read(number, status.st_size + 1):
                parts.append(part)
            return b"".join(parts)
        except OSError:
            return None
        finally:
            os.close(number)

    def place(self, name: str) -> Path:
        """Return a path of a file in it that goes by the open folder, whatever stands at the folder's own path now.

        It is good in this process, while this object lives.
        """
        return _PROC / str(self._number) / name if _PROC.is_dir() else self.path / name

    def inner(self, name: str) -> OwnFolder:
        """Return a folder in it, made if there is none, and no link. Raises UntrustedError."""
        try:
            try:
                return _opened(self.path / name, name, self._number)
            except FileNotFoundError:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, _PRIVATE, dir_fd=self._number)
                return _opened(self.path / name, name, self._number)
        except OSError as error:
            raise UntrustedError(f"has no usable folder '{name}': {error.strerror or error}") from error

    def make(self, prefix: str, suffix: str) -> Path:
        """Create an empty file of a new name; return its path. Raises OSError."""
        name = f"{prefix}{os.urandom(8).hex()}{suffix}"
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=self._number))
        return self.path / name

    def lock_file(self, name: str) -> int:
        """Return the open descriptor of a file for locks, made if there is none. Raises OSError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        return os.open(name, flags, 0o600, dir_fd=self._number)

    def make_private(self, name: str) -> None:
        """Restrict a file to this user: a linker leaves what the umask allows. Raises OSError."""
        number = os.open(name, _READ, dir_fd=self._number)
        try:
            os.fchmod(number, 0o600)
        finally:
            os.close(number)

    def rename(self, name: str, new: str) -> None:
        """Rename a file, atomically, over one of the new name. Raises OSError."""
        os.replace(name, new, src_dir_fd=self._number, dst_dir_fd=self._number)

    def remove(self, name: str) -> None:
        """Remove a file, if there is one. Raises OSError for a folder."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._number)


def open_own_folder(path: Path) -> OwnFolder:
    """Return a folder, made if there is none, that this user alone can write. Raises UntrustedError."""
    try:
        try:
            return _opened(path, str(path), None)
        except FileNotFoundError:
            path.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
            return _opened(path, str(path), None)
    except OSError as error:
        raise UntrustedError(f"cannot be created: {error.strerror or error}") from error


def is_own_file(status: os.stat_result) -> bool:
    """Return whether an open file is a regular one of this user that others cannot write."""
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & _OTHERS


def _opened(path: Path, name: str, parent: int | None) -> OwnFolder:
    """Open the folder at `name`, relative to an open folder, in which no link is followed. Raises UntrustedError."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | (0 if parent is None else os.O_NOFOLLOW)
    number = os.open(name, flags, dir_fd=parent)
    try:
        status = os.fstat(number)
        if reason := _objection(status):
            raise UntrustedError(reason)
        if not os.access(path, os.W_OK | os.X_OK):
            raise UntrustedError("is not writable")
        return _known(path, number, status)
    except BaseException:
        os.close(number)
        raise


def _known(path: Path, number: int, status: os.stat_result) -> OwnFolder:
    """Return the object for an open folder: an existing one if there is one, and then close the new descriptor."""
    key = (status.st_dev, status.st_ino)
    with _kept_lock:
        if (folder := _kept.get(key)) and folder.path == path:
            _kept.move_to_end(key)
            os.close(number)
            return folder
        folder = _kept[key] = OwnFolder(path, number)
        while len(_kept) > _MOST_KEPT:
            _kept.popitem(last=False)
        return folder


def _objection(status: os.stat_result) -> str:
    """Return why an open folder cannot be trusted; "" if it can."""
    if status.st_uid != os.geteuid():
        return f"belongs to user {status.st_uid}, not to user {os.geteuid()}"
    if status.st_mode & _OTHERS:
        return (
            f"can be written by others (mode {stat.S_IMODE(status.st_mode):o}), so code of theirs may lie in it; "
            "delete the folder, another mode does not make it safe"
        )
    return ""
