"""What people gave, as part of a message: printable on one line whatever it holds, and never long."""

from __future__ import annotations

import re
import reprlib
from numbers import Number
from pathlib import PurePath

LONGEST = 1000  # characters of a text; names of files have at most 255, and folders are rarely deep
_LONGEST_PART = 120
_LONGEST_BITS = 256

# What steers a terminal, breaks a line, turns the direction of what follows, or is no character at all: Python reads
# each byte of a file's name that is no UTF-8 as one of U+DC80 to U+DCFF.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Return a text on one line: unprintable characters as escapes, \n say, or \xff for a byte that is not UTF-8.

    The middle of what has more than LONGEST characters is left out.
    """
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"
    return _UNPRINTABLE.sub(_escaped, text)


def printable_lines(text: str) -> str:
    """Return `printable` of each line of a text."""
    return "\n".join(printable(line) for line in text.expandtabs().split("\n"))


def escaped_lines(text: str) -> str:
    """Return a text of any length whose lines can be printed: what steers a terminal becomes an escape."""
    return "\n".join(_UNPRINTABLE.sub(_escaped, line) for line in text.expandtabs().split("\n"))


def shown(value: object) -> str:
    """Return a value as Python writes it, in LONGEST characters at most.

    Of arrays it tells element type and shape, of bytes how many, of what may be of any size the type alone: the file of
    a model has half a gigabyte, and a message must not.
    """
    return printable(_BOUNDED.repr(value))


def ending(suffix: str) -> str:
    """Return a file name's ending for a message that says what a file has: "the ending '.doc'", or "no ending"."""
    return f"the ending '{printable(suffix)}'" if suffix else "no ending"


class _Bounded(reprlib.Repr):
    """Looks at the beginning of what it describes, and calls nobody else's __repr__."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = _LONGEST_PART
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = self.maxfrozenset = 4
        self.maxlevel = 2

    def repr_bytes(self, x: bytes, level: int) -> str:  # noqa: ARG002 - reprlib names the arguments
        """Return the number of bytes."""
        return f"{len(x):,} bytes"

    repr_bytearray = repr_memoryview = repr_bytes

    def repr_int(self, x: int, level: int) -> str:  # noqa: ARG002
        """Return the digits; beyond _LONGEST_BITS, where Python refuses to write them, the number of bits."""
        return repr(x) if x.bit_length() <= _LONGEST_BITS else f"a number of {x.bit_length():,} bits"

    def repr_instance(self, x: object, level: int) -> str:
        """Return numbers, paths and types as they are; of arrays dtype and shape, of others the type."""
        match x:
            case PurePath() | str():  # a subclass of str, as numpy's
                return self.repr_str(str(x), level)
            case bytes():
                return self.repr_bytes(x, level)
            case Number() | None:
                return repr(x)
        dtype, shape = _attribute(x, "dtype"), _attribute(x, "shape")
        if dtype is not None and isinstance(shape, tuple):
            return f"{type(x).__name__} of {dtype} {tuple(shape)}"
        return f"an object of type {type(x).__module__}.{type(x).__qualname__}"


_BOUNDED = _Bounded()


def _attribute(x: object, name: str) -> object:
    """Return an attribute; None without one, and where asking for it fails, as for the shape of nested tensors."""
    try:
        return getattr(x, name, None)
    except RuntimeError:
        return None


def _escaped(match: re.Match[str]) -> str:
    number = ord(match.group())
    if 0xDC80 <= number <= 0xDCFF:
        return f"\\x{number - 0xDC00:02x}"
    return match.group().encode("unicode_escape", "surrogatepass").decode()
