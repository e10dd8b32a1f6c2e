"""JSON that somebody else wrote: size and depth are checked before it is parsed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from vgg16gpu.errors import InputError
from vgg16gpu.io.foreign.lines import read_bytes

DEEPEST = 64  # brackets inside of brackets; what the package reads and writes has at most ten
MOST_BYTES = 1 << 30

_STRUCTURE = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}]', re.DOTALL)


def parse_json(text: str | bytes | bytearray, what: str, most_bytes: int = MOST_BYTES) -> Any:
    """Return what a JSON text says. Raises InputError, which names `what`, where it is none, too long or too deep."""
    if len(text) > most_bytes:
        raise InputError(f"{what} has {len(text):,} bytes of JSON; at most {most_bytes:,} are read")
    try:
        if not isinstance(text, str):
            text = text.decode(json.detect_encoding(text))
        depth = _depth(text)
        if depth > DEEPEST:
            raise InputError(f"{what} is JSON with {depth:,} brackets inside of each other; at most {DEEPEST} are read")
        return json.loads(text)
    except InputError:
        raise
    except (ValueError, RecursionError, MemoryError) as error:  # ValueError: also wrong UTF-8, and 4,301 digits
        raise InputError(f"{what} is not JSON: {str(error) or type(error).__name__}") from error


def read_json(path: Path, what: str = "", most_bytes: int = MOST_BYTES) -> Any:
    """Return what a JSON file says. Raises InputError where it cannot be read, is none, too long or too deep."""
    name = what or f"'{path}'"
    return parse_json(read_bytes(path, name, most_bytes), name, most_bytes)


def _depth(text: str) -> int:
    """Return how many brackets are open at once at most; brackets in strings do not count."""
    depth = deepest = 0
    for found in _STRUCTURE.finditer(text):
        first = text[found.start()]
        if first in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif first != '"':
            depth -= 1
    return deepest
