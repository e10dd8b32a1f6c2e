"""What a file holds, by its first bytes, and all of its bytes. Only regular files are opened, so that none hangs."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from typing import Final, TypeVar

from vgg16gpu.errors import InputError
from vgg16gpu.io.foreign.arrays import reason_of
from vgg16gpu.pictures.limits import MAX_NBYTES
from vgg16gpu.pictures.slots import Bytes

T = TypeVar("T")

IMAGE_SUFFIXES: Final = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".avif")
NUMBER_SUFFIXES: Final = (".txt", ".npy", ".npz")

HEAD_NBYTES: Final = 64  # so much of a file tells what it holds

_BMP_HEADERS: Final = frozenset((12, 16, 40, 52, 56, 64, 108, 124))  # bytes
_TIFF_STARTS: Final = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_MISSING: Final = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG))


def picture_kind(head: bytes) -> str | None:
    """Return JPEG, PNG, BMP, WEBP, GIF, TIFF or AVIF, by the first HEAD_NBYTES of a file; None for anything else."""
    if head.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "GIF"
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "WEBP"
    if head.startswith(_TIFF_STARTS):
        return "TIFF"
    if head.startswith(b"BM") and int.from_bytes(head[14:18], "little") in _BMP_HEADERS:  # "BMW" is no picture
        return "BMP"
    return "AVIF" if _is_avif(head) else None


def suffix_of(path: str) -> str:
    """Return the ending of a file's name in lower case, with its dot; "" without one."""
    return os.path.splitext(path)[1].lower()  # noqa: PTH122 - a Path for each of 100,000 files is what takes time


def is_missing(error: OSError) -> bool:
    """Return whether there is no such file: nothing of that name, or a link to nothing."""
    return error.errno in _MISSING


def read_head(path: str) -> bytes:
    """Return the first HEAD_NBYTES of a regular file, b"" of any other. Raises OSError where it cannot be read."""
    if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116
        return b""
    file = _open(path)
    try:
        return os.read(file, HEAD_NBYTES)
    finally:
        os.close(file)


def check_regular(path: str, most: int | None = None) -> int:
    """Return the bytes of a regular file. Raises InputError for all else, and for more than `most`; opens nothing."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except (OSError, ValueError) as error:  # ValueError: the name holds a zero byte
        raise unreadable(path, error) from error
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"'{path}' is {_what(found.st_mode)}; give regular files, or folders of them")
    if most is not None and found.st_size > most:
        raise InputError(f"'{path}' has {found.st_size:,} bytes, at most {most:,} are read; give a smaller file")
    return found.st_size


def read_file(path: str, most: int | None = MAX_NBYTES) -> bytes:
    """Read all of a regular file. Raises InputError where it cannot be read; never waits for a pipe or a device."""
    size = check_regular(path, most)

    def read(file: int) -> bytes:
        data = os.read(file, size)
        while len(data) < size and (more := os.read(file, size - len(data))):
            data += more
        return data

    return _opened(path, read)


def read_into(path: str, out: Bytes) -> int | None:
    """Read a file as `read_file` into `out`; return its bytes, None where `out` is too short. Raises InputError."""
    size = check_regular(path, MAX_NBYTES)

    def read(file: int) -> int:
        place = out.data[:size]
        count = os.readv(file, [place])
        while count < size and (more := os.readv(file, [place[count:]])):
            count += more
        return count

    return None if size > len(out) else _opened(path, read)


def unreadable(path: str, error: OSError | ValueError) -> InputError:
    """Return the error for a file that the system cannot read."""
    if not isinstance(error, OSError) or is_missing(error):
        return InputError(f"'{path}' does not exist")
    return InputError(f"'{path}' cannot be read: {error.strerror or error}")


def _opened(path: str, read: Callable[[int], T]) -> T:
    """Return `read(descriptor)` of a file that is open while it runs. Raises InputError."""
    try:
        file = _open(path)
        try:
            return read(file)
        finally:
            os.close(file)
    except OSError as error:
        raise unreadable(path, error) from error
    except MemoryError as error:
        raise InputError(f"'{path}' cannot be read: {reason_of(error)}") from error


def _open(path: str) -> int:
    # Without waiting: what was a file when it was looked at may be a pipe by now.
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)


def _what(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a folder"
    if stat.S_ISFIFO(mode):
        return "a pipe"
    return "a socket" if stat.S_ISSOCK(mode) else "a device"


def _is_avif(head: bytes) -> bool:
    if head[4:8] != b"ftyp":
        return False
    # The other two are containers of several kinds: those that hold AVIF say so behind.
    return head[8:12] in (b"avif", b"avis") or (head[8:12] in (b"mif1", b"msf1") and b"avif" in head[16:])
