"""Text files that somebody else wrote: byte-order marks, line ends, binaries, files without an end."""

from __future__ import annotations

import codecs
import errno
import io
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, TextIO

from vgg16gpu.errors import InputError
from vgg16gpu.io.shown import printable

MOST_BYTES: Final = 1 << 30
MOST_TYPED: Final = 1 << 20  # of a terminal, or of a device without an end: /dev/zero
_CHUNK: Final = 1 << 20
_UTF16: Final = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_UTF32: Final = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)  # the first begins as UTF-16's does


class NotReadError(InputError):
    """The system does not give a file, or gives too much of it. `is_missing`: there is none of that name."""

    def __init__(self, message: str, *, is_missing: bool = False) -> None:
        super().__init__(message)
        self.is_missing = is_missing


def read_bytes(path: Path, what: str, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of a file, pipes included. Raises NotReadError, which names `what`, where it has no end."""
    with opened(path, what) as stream:
        return read_stream(stream, what, most_bytes)


def read_stream(stream: BinaryIO, what: str, most_bytes: int = MOST_BYTES) -> bytes:
    """Return what is left of a stream. Raises NotReadError, which names `what`, where that is more than `most_bytes`.

    A device, a terminal say, is read to its MOST_TYPED bytes at most.
    """
    data = bytearray()
    with _failing(what):
        if _is_device(stream):
            most_bytes = min(most_bytes, MOST_TYPED)
        while len(data) <= most_bytes and (part := stream.read(min(_CHUNK, most_bytes + 1 - len(data)))):
            data += part
    if len(data) > most_bytes:
        raise NotReadError(f"{what} has more than {most_bytes:,} bytes, the most that are read of it")
    return bytes(data)


def read_standard_input(what: str, most_bytes: int = MOST_BYTES) -> bytes:
    """Return all of standard input; b"" in a process that has none. Raises NotReadError."""
    return read_stream(sys.stdin.buffer, what, most_bytes) if sys.stdin else b""


def decode_text(data: bytes, what: str, *, keeps_nul: bool = False, errors: str = "surrogateescape") -> str:
    r"""Return a text of UTF-8, or of UTF-16 that begins with its mark, without the mark, its lines ended by \n.

    Bytes that are no UTF-8 become surrogates, as in names of files; errors="strict" refuses them. A lone \r ends a line
    where there is no other end. Raises InputError, which names `what`, for what is no text: a zero byte in it (unless
    `keeps_nul`), UTF-32, half a UTF-16 unit.
    """
    if data.startswith(_UTF32):
        raise InputError(f"{what} is text of UTF-32; save it as UTF-8")
    encoding = _utf16(data)
    try:
        text = data[2:].decode(encoding) if encoding else data.removeprefix(codecs.BOM_UTF8).decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise InputError(f"{what} is no text of {error.encoding}: {error.reason} at byte {error.start:,}") from error
    if not keeps_nul and "\0" in text:
        raise InputError(f"{what} has a zero byte, so it is no text; give a text file in UTF-8 or UTF-16")
    return text.replace("\r\n", "\n") if "\n" in text else text.replace("\r", "\n")


def as_utf8(data: bytes, what: str) -> bytes:
    """Return a text's bytes in UTF-8, without its mark; those of UTF-16 by its mark are turned.

    Raises InputError, which names `what`, for half a UTF-16 unit.
    """
    if is_utf16(data):
        return decode_text(data, what, keeps_nul=True).encode("utf-8", "surrogatepass")
    return data.removeprefix(codecs.BOM_UTF8)


def is_utf16(data: bytes) -> bool:
    """Return whether a text begins with the mark of UTF-16."""
    return bool(_utf16(data))


def read_text(path: Path, what: str = "", most_bytes: int = MOST_BYTES, *, errors: str = "surrogateescape") -> str:
    """Return the text of a file as `decode_text` reads it. Raises InputError where it cannot be read or is no text."""
    name = what or f"'{printable(str(path))}'"
    return decode_text(read_bytes(path, name, most_bytes), name, errors=errors)


def read_lines(path: Path, what: str = "", most_bytes: int = MOST_BYTES, *, errors: str = "strict") -> list[str]:
    """Return the lines of a text file that are not blank, without blanks around them. Raises as `read_text`."""
    return [line.strip() for line in read_text(path, what, most_bytes, errors=errors).split("\n") if line.strip()]


@contextmanager
def opened(path: Path, what: str) -> Iterator[io.BufferedReader]:
    """Open a file to read its bytes. Raises NotReadError, which names `what`, where the system does not give them."""
    with _failing(what):
        try:
            stream = path.open("rb")
        except ValueError as error:  # a name with a zero byte
            raise NotReadError(f"{what} cannot be read: {error}") from error
        with stream:
            yield stream


@contextmanager
def opened_text(path: Path, what: str) -> Iterator[TextIO]:
    """Open a text that may be larger than memory, its encoding by its mark; line ends stay as they are.

    Bytes that are no UTF-8 become surrogates. Raises NotReadError as `opened`, and UnicodeDecodeError for half a UTF-16
    unit.
    """
    with opened(path, what) as stream:
        encoding = "utf-16" if is_utf16(stream.peek(2)) else "utf-8-sig"
        errors = "strict" if encoding == "utf-16" else "surrogateescape"
        with io.TextIOWrapper(stream, encoding, errors, newline="") as text:
            yield text


@contextmanager
def _failing(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        is_missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
        raise NotReadError(f"{what} cannot be read: {error.strerror or error}", is_missing=is_missing) from error


def _utf16(data: bytes) -> str:
    """Return the encoding that a mark of UTF-16 names; "" without one."""
    return next((name for mark, name in _UTF16.items() if data.startswith(mark)), "")


def _is_device(stream: BinaryIO) -> bool:
    try:
        return stat.S_ISCHR(os.fstat(stream.fileno()).st_mode)
    except (OSError, AttributeError):  # an object that has no descriptor
        return False
