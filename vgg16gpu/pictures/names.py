"""Names of files that somebody has listed: one in each line, or between zero bytes.

Lists come from many programs: in UTF-8 or, by its mark, in UTF-16; with line ends of any system; with blanks behind a
name, or quotes around it. A name is taken as it stands where there is such a file, else without blanks and quotes. What
is no text is refused, so that nobody takes pieces of a table or a picture for names: "/" is one.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from vgg16gpu.errors import InputError
from vgg16gpu.io.foreign.lines import decode_text, is_utf16, read_bytes, read_standard_input
from vgg16gpu.io.shown import printable, shown

STANDARD_INPUT: Final = "-"

_QUOTED: Final = re.compile(r"""(["'])(.+)\1""", re.DOTALL)
_CONTROL: Final = re.compile("[\x01-\x08\x0e-\x1a\x1c-\x1f]")
_NO_UTF8: Final = re.compile("[\ud800-\udfff]")
_WANTED: Final = "give a name in each line, in UTF-8 or UTF-16"


def read_names(files_from: str, *, null: bool = False) -> list[str]:
    """Return the names that a file lists, "-": standard input. Bytes that are no UTF-8 are as `os.fsdecode` has them.

    null: they stand between zero bytes, as `find -print0` writes them. They do, too, in a list without --null that has
    zero bytes, where each name so read is there. Raises InputError for what cannot be read or is no text.
    """
    what = f"the list '{printable(files_from)}'"
    data = read_standard_input(what) if files_from == STANDARD_INPUT else read_bytes(Path(files_from), what)
    if not null and (is_utf16(data) or b"\0" not in data):
        return list(_cleaned(_lines(data, what)))
    pieces = data.removesuffix(b"\0").split(b"\0")
    names = [os.fsdecode(name) for name in pieces if name]
    if null:
        return names
    missing = next((name for name in names if not os.path.lexists(name)), "")  # a piece without a byte is none, too
    if missing or len(names) < len(pieces):
        raise InputError(
            f"{what} has zero bytes, so it is no text; {_WANTED}, or --null for names between zero bytes: the first "
            f"that is not there would be {shown(missing)}"
        )
    return names


def _lines(data: bytes, what: str) -> Iterator[str]:
    """Yield the lines of a text as names of files. Raises InputError for what is none."""
    is_bytes = not is_utf16(data) and sys.getfilesystemencoding() != "utf-8"
    for line in decode_text(data, what).split("\n"):
        name = os.fsdecode(line.encode(errors="surrogateescape")) if is_bytes else line
        if _NO_UTF8.search(name) and _CONTROL.search(name) and not os.path.lexists(name):
            raise InputError(f"{what} has lines that are no text, {shown(name)} say; {_WANTED}")
        yield name


def _cleaned(lines: Iterable[str]) -> Iterator[str]:
    """Yield each name as it stands if it is there, else without blanks and quotes around it; no empty ones."""
    for line in lines:
        name = line.strip(" \t")
        if quoted := _QUOTED.fullmatch(name):
            name = quoted[2]
        if name == line or os.path.lexists(line):
            name = line
        if name:
            yield name
