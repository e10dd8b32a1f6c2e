"""Arrays that somebody else wrote, .npy and .npz: what a header claims is checked before memory is taken for it.

A file may hold more samples than memory has room for, and two megabytes of an archive may unpack to gigabytes: samples
are read one at a time. Whatever a reader raises becomes an error of the input that was read.
"""

from __future__ import annotations

import io
import math
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from vgg16gpu.errors import Error, InputError
from vgg16gpu.io.foreign.lines import opened
from vgg16gpu.io.shown import printable, shown

AnyArray: TypeAlias = npt.NDArray[Any]

_MAGIC: Final = b"\x93NUMPY"
_HEADER_NBYTES: Final = 1 << 14  # of a file's beginning; numpy reads headers of 10,000 bytes at most
_MOST_DIMS: Final = 32
_SMALL: Final = 1 << 26  # bytes of a member of an archive whose sum is checked before it is used
_MOST_UNPACKED: Final = 1 << 28  # bytes of a member that is read whole, or as follows
_MOST_RATIO: Final = 64  # of what is packed
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # numpy writes no others; others unpack without bounds
_HEADERS: Final = {  # by version; a third one is for records
    b"\1\0": np.lib.format.read_array_header_1_0,
    b"\2\0": np.lib.format.read_array_header_2_0,
}
_PICKLED: Final = "holds pickled objects, which could run code and are refused; save a plain float32 or uint8 array"
_BROKEN: Final = "is a broken numpy file:"


@contextmanager
def reading(what: str, how: str = "cannot be read:") -> Iterator[None]:
    """Turn any exception inside into an InputError that names `what` and says `how` it fails.

    Foreign files make readers raise anything: MemoryError for a size they claim, OverflowError, RecursionError,
    struct.error, zlib.error. Errors of the package pass as they are; so do KeyboardInterrupt and SystemExit.
    """
    try:
        yield
    except Error:
        raise
    except Exception as error:
        raise InputError(f"{what} {how} {reason_of(error)}") from error


def reason_of(error: Exception) -> str:
    """Return what a reader's exception says, on one line."""
    if isinstance(error, MemoryError):
        return "it needs more memory than there is"
    text = str(getattr(error, "strerror", None) or error).strip()
    return printable(text.splitlines()[0] if text else type(error).__name__)


@dataclass(frozen=True, eq=False)
class ForeignArray:
    """An array in a file, of which the header alone is read. `name`: of the file, or of the member of an archive."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_fortran: bool  # first axis fastest
    _stream: io.BufferedIOBase  # behind the header
    _most_whole: int  # bytes that may be read at once
    _path: Path | None = None  # of a file that can be mapped

    @property
    def nbytes(self) -> int:
        """Bytes of the dense array."""
        return math.prod(self.shape) * self.dtype.itemsize

    def samples(self, rank: int) -> Iterator[AnyArray]:
        """Yield the samples of `rank` axes that it holds, one after the other, each an array of its own.

        Raises InputError where the file ends before, or is damaged. May be called once.
        """
        count, shape = math.prod(self.shape[:-rank]), self.shape[len(self.shape) - rank :]
        with reading(f"'{self.name}'", _BROKEN):
            if self.is_fortran:
                whole = self._mapped().reshape(count, *shape) if count == 1 else self._mapped()
                yield from (np.array(sample, order="C") for sample in whole)
                return
            for _ in range(count):
                yield self._read(math.prod(shape)).reshape(shape)
            self._stream.read(1)  # an archive's sum is compared at its end

    def whole(self) -> AnyArray:
        """Return all of it. Raises InputError where the file ends before, is damaged, or unpacks to far too much."""
        with reading(f"'{self.name}'", _BROKEN):
            if self.nbytes > self._most_whole:
                raise InputError(
                    f"'{self.name}' unpacks to {self.nbytes:,} bytes, at most {self._most_whole:,} are read at once (a "
                    "decompression bomb?); save it by numpy.save, in C order (numpy.ascontiguousarray)"
                )
            found = self._read(math.prod(self.shape)).reshape(self.shape, order="F" if self.is_fortran else "C")
            self._stream.read(1)
            return found

    def _mapped(self) -> AnyArray:
        """Return all of it, of which only what is looked at is read where the file can be mapped."""
        if self._path is None or not self.nbytes:
            return self.whole()
        return np.memmap(self._path, self.dtype, "r", self._stream.tell(), self.shape, "F")

    def _read(self, elements: int) -> AnyArray:
        found = np.empty(elements, self.dtype)
        room: Any = found.view(np.uint8)
        done = 0
        while done < room.size:
            count = self._stream.readinto(room[done:])
            if not count:
                raise InputError(f"'{self.name}' {_BROKEN} it ends before its array does")
            done += count
        return found


@contextmanager
def opened_npy(path: Path) -> Iterator[ForeignArray]:
    """Open a .npy file. Raises InputError where it is none, is cut short, or the system does not give it."""
    with opened(path, f"'{path}'") as stream, reading(f"'{path}'", _BROKEN):
        start = stream.read(len(_MAGIC))
        if start != _MAGIC:
            found = "is empty" if not start else "does not begin as a .npy file does (a bare pickle, or something else)"
            raise InputError(f"'{path}' {found}; write it with numpy.save")
        stream.seek(0)
        array = _array(str(path), stream, 1 << 62, path)
        there = os.fstat(stream.fileno()).st_size - stream.tell()
        if array.nbytes > there:
            raise InputError(
                f"'{path}' {_BROKEN} its header says {array.nbytes:,} bytes of numbers, and {there:,} are there"
            )
        yield array


@contextmanager
def opened_npz(path: Path) -> Iterator[Iterator[tuple[str, ForeignArray | InputError]]]:
    """Open an archive of arrays: each member's name and array, or why it is none. Read an array before the next comes.

    Raises InputError where it is no archive, or the system does not give it.
    """
    with opened(path, f"'{path}'") as stream, reading(f"'{path}'", _BROKEN):
        if not zipfile.is_zipfile(stream):
            raise InputError(f"'{path}' is not a .npz archive, or is truncated; write it with numpy.savez")
        with zipfile.ZipFile(stream) as archive:
            members = archive.infolist()
            if not members:
                raise InputError(f"'{path}' holds no arrays; write it with numpy.savez")
            yield (_named(path, archive, member) for member in members)


def read_npy(path: Path) -> AnyArray:
    """Return the array of a .npy file. Raises InputError."""
    with opened_npy(path) as array:
        return array.whole()


def read_npz(path: Path) -> dict[str, AnyArray]:
    """Return all arrays of an archive by their keys.

    Raises InputError for a member that is no array, or unpacks to far more than the file has.
    """
    found: dict[str, AnyArray] = {}
    with opened_npz(path) as members:
        for name, array in members:
            if isinstance(array, InputError):
                raise array
            found[name] = array.whole()
    return found


def _named(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> tuple[str, ForeignArray | InputError]:
    key = member.filename.removesuffix(".npy")
    name = f"{path}[{key}]"
    try:
        with reading(f"'{name}'", _BROKEN):
            if member.compress_type not in _METHODS:
                raise InputError(f"'{name}' is packed by method {member.compress_type}; write it with numpy.savez")
            small = member.file_size <= _SMALL
            stream: Any = io.BytesIO(archive.read(member)) if small else archive.open(member)
            most = max(_MOST_UNPACKED, _MOST_RATIO * member.compress_size)
            array = _array(name, stream, most)
            if array.nbytes > member.file_size:
                raise InputError(
                    f"'{name}' {_BROKEN} its header says {array.nbytes:,} bytes, and it has {member.file_size:,}"
                )
            return key, array
    except InputError as error:
        return key, error


def _array(name: str, stream: io.BufferedIOBase, most_whole: int, path: Path | None = None) -> ForeignArray:
    """Read the header of an array; the stream stands behind it then. Raises InputError, or what numpy raises."""
    with reading(f"'{name}'", _BROKEN):
        start = stream.read(len(_MAGIC) + 2)
        if not start.startswith(_MAGIC):
            raise InputError(f"'{name}' is no array: it does not begin as a .npy file does; leave it out")
        read = _HEADERS.get(start[len(_MAGIC) :])
        if read is None:
            raise InputError(f"'{name}' is of an unknown version of numpy's format; save a plain array of numbers")
        shape, is_fortran, dtype = read(_Head(stream))
    if dtype.hasobject:
        raise InputError(f"'{name}' {_PICKLED}")
    if len(shape) > _MOST_DIMS or any(not 0 <= side < 1 << 62 for side in shape):
        raise InputError(f"'{name}' {_BROKEN} its shape is {shown(shape)}")
    array = ForeignArray(name, dtype, tuple(shape), bool(is_fortran), stream, most_whole, path)
    if array.nbytes >= 1 << 62:
        raise InputError(f"'{name}' {_BROKEN} its shape is {shown(shape)}")
    return array


class _Head:
    """The first bytes of a stream, from which a header is read: numpy would read whatever length it claims."""

    def __init__(self, stream: io.BufferedIOBase) -> None:
        self._stream, self._left = stream, _HEADER_NBYTES

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes."""
        if not 0 <= size <= self._left:
            raise ValueError(f"its header has more than {_HEADER_NBYTES:,} bytes")
        data = self._stream.read(size)
        self._left -= len(data)
        return data
