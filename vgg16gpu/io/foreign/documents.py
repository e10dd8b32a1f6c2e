"""JSON that somebody else wrote: size and depth are checked before it is parsed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

from vgg16gpu.errors import InputError
from vgg16gpu.io.foreign.lines import read_bytes

DEEPEST = 64  # brackets inside of brackets; what the package reads and writes has at most ten
MOST_BYTES = 1 << 30

# What our own code raises when a document has another form than it expects: a list for a table, null, 0, Infinity.
OTHER_FORM: Final = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)

_ESCAPES = re.compile(rb"\\.", re.DOTALL)
_STRINGS = re.compile(rb'"[^"]*"')
_CHUNK: Final = 1 << 20  # brackets
_OPENING: Final = ord("[")
_ONE_KIND: Final = bytes.maketrans(b"{}", b"[]")
_NO_STRUCTURE: Final = bytes(set(range(256)) - set(b'[]{}"'))


def _float(text: str) -> float:
    return float(text)


def _int(text: str) -> int:
    return int(text)


# Numbers of long texts are read by functions of Python: there other threads take turns, which C does not let in.
_YIELDING: Final[dict[str, Any]] = {"parse_float": _float, "parse_int": _int}
_LONG: Final = 1 << 22


def parse_json(text: str | bytes | bytearray, what: str, most_bytes: int = MOST_BYTES) -> Any:
    """Return what a JSON text says. Raises InputError, which names `what`, where it is none, too long or too deep."""
    if len(text) > most_bytes:
        raise InputError(f"{what} has {len(text):,} bytes of JSON; at most {most_bytes:,} are read")
    try:
        if not isinstance(text, str):
            text = text.decode(json.detect_encoding(text))
        if _is_deep(text.encode("utf-8", "surrogatepass")):
            raise InputError(f"{what} is JSON with more than {DEEPEST} brackets inside of each other; no more are read")
        return json.loads(text, **_YIELDING) if len(text) > _LONG else json.loads(text)
    except InputError:
        raise
    except (ValueError, RecursionError, MemoryError) as error:  # ValueError: also wrong UTF-8, and 4,301 digits
        raise InputError(f"{what} is not JSON: {str(error) or type(error).__name__}") from error


def read_json(path: Path, what: str = "", most_bytes: int = MOST_BYTES) -> Any:
    """Return what a JSON file says. Raises InputError where it cannot be read, is none, too long or too deep."""
    name = what or f"'{path}'"
    return parse_json(read_bytes(path, name, most_bytes), name, most_bytes)


def _is_deep(text: bytes) -> bool:
    """Return whether more than DEEPEST brackets are open at once; brackets in strings do not count.

    Whole texts are looked at by functions of C: there may be a gigabyte of brackets.
    """
    if text.count(b"[") + text.count(b"{") <= DEEPEST:
        return False
    import numpy as np  # noqa: PLC0415 - options are read before anything that takes long to import

    if b"\\" in text:
        text = _ESCAPES.sub(b"", text)
    brackets = np.frombuffer(_STRINGS.sub(b"", text.translate(_ONE_KIND, _NO_STRUCTURE)), np.uint8)
    depth = 0
    for first in range(0, len(brackets), _CHUNK):
        steps = np.where(brackets[first : first + _CHUNK] == _OPENING, np.int8(1), np.int8(-1))
        depths = depth + np.cumsum(steps, dtype=np.int64)
        if depths.max() > DEEPEST:
            return True
        depth = int(depths[-1])
    return False
