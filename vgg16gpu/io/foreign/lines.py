"""Text files that somebody else wrote: byte-order marks, line ends, binaries, files without an end."""

from __future__ import annotations

import codecs
from pathlib import Path

from vgg16gpu.errors import InputError
from vgg16gpu.io.shown import printable

MOST_BYTES = 1 << 30
_CHUNK = 1 << 20
_UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_UTF32 = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)  # the first begins as UTF-16's does


def read_bytes(path: Path, what: str, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of a file, pipes included. Raises InputError, which names `what`, where it has no end."""
    parts: list[bytes] = []
    left = most_bytes
    try:
        with path.open("rb") as stream:
            while left >= 0 and (part := stream.read(min(_CHUNK, left + 1))):
                parts.append(part)
                left -= len(part)
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{what} cannot be read: {reason}") from error
    if left < 0:
        raise InputError(f"{what} has more than {most_bytes:,} bytes, the most that are read of it")
    return b"".join(parts)


def decode_text(data: bytes, what: str, *, keeps_nul: bool = False, errors: str = "surrogateescape") -> str:
    r"""Return a text of UTF-8, or of UTF-16 that begins with its mark, without the mark, its lines ended by \n.

    Bytes that are no UTF-8 become surrogates, as in names of files; errors="strict" refuses them. Raises InputError,
    which names `what`, for what is no text: a zero byte in it (unless `keeps_nul`), UTF-32, half a UTF-16 unit.
    """
    if data.startswith(_UTF32):
        raise InputError(f"{what} is text of UTF-32; save it as UTF-8")
    encoding = next((name for mark, name in _UTF16.items() if data.startswith(mark)), "")
    try:
        text = data[2:].decode(encoding) if encoding else data.removeprefix(codecs.BOM_UTF8).decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise InputError(f"{what} is no text of {error.encoding}: {error.reason} at byte {error.start:,}") from error
    if not keeps_nul and "\0" in text:
        raise InputError(f"{what} has a zero byte, so it is no text; give a text file in UTF-8 or UTF-16")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_text(path: Path, what: str = "", most_bytes: int = MOST_BYTES, *, errors: str = "surrogateescape") -> str:
    """Return the text of a file as `decode_text` reads it. Raises InputError where it cannot be read or is no text."""
    name = what or f"'{printable(str(path))}'"
    return decode_text(read_bytes(path, name, most_bytes), name, errors=errors)
