"""List input files: folders, patterns, lists of names, and names as they are shown."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from vgg16gpu.errors import InputError
from vgg16gpu.io.foreign.lines import decode_text, is_utf16, read_bytes, read_standard_input
from vgg16gpu.io.shown import ending, printable, shown
from vgg16gpu.pictures.content import (
    IMAGE_SUFFIXES,
    NUMBER_SUFFIXES,
    is_missing,
    picture_kind,
    read_head,
    suffix_of,
    unreadable,
)

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


HIDDEN: Final = "hidden"
NO_PICTURE: Final = "no pictures"
NO_FILE: Final = "not files"  # pipes, sockets, devices
NO_TARGET: Final = "links to nothing"
UNREADABLE: Final = "not readable"
SEEN: Final = "folders met before"  # on another way, by a link
SUBFOLDER: Final = "subfolders"

_REASONS: Final = {  # and what one of them is called
    HIDDEN: HIDDEN,
    NO_PICTURE: "no picture",
    NO_FILE: "not a file",
    NO_TARGET: "link to nothing",
    UNREADABLE: UNREADABLE,
    SEEN: "folder met before",
    SUBFOLDER: "subfolder",
}
_FOLDER: Final = "a folder to look into"  # no reason
_EXAMPLES: Final = 3  # names for each reason
_TIFF_SUFFIXES: Final = frozenset(("", *IMAGE_SUFFIXES, *NUMBER_SUFFIXES))


class Contents(Protocol):
    """Encoded pictures by their number among the files. From any thread."""

    def __getitem__(self, index: int, /) -> bytes:
        """Return the bytes of one picture. Raises InputError where it cannot be read."""


@dataclass(frozen=True)
class Listing:
    """Files to read, in order; "-" is standard input.

    files: paths as given, and those of the pictures in folders; bytes that are no UTF-8 as surrogateescape.
    numbers: those of the files that hold numbers (.txt, .npy, .npz, "-"); all others are read as pictures.
    left_out: how many things in folders are not among the files, by reason; examples: the first of them.
    contents: the bytes of each picture, where the files are names alone; None where they are read from there.
    problems: why some of the files cannot be read, by their number, where the list itself says so.
    """

    files: tuple[str, ...]
    numbers: frozenset[str] = frozenset()
    left_out: Mapping[str, int] = field(default_factory=dict)
    examples: Mapping[str, Sequence[str]] = field(default_factory=dict)
    contents: Contents | None = None
    problems: Mapping[int, str] = field(default_factory=dict)

    @property
    def has_pictures(self) -> bool:
        """Return whether any of the files is read as a picture."""
        return any(file not in self.numbers for file in self.files)

    def line(self) -> str:
        """Return how many files were left out and why, as one line; "" where there are none."""
        count = sum(self.left_out.values())
        if not count:
            return ""
        parts = [self._part(reason, self.left_out[reason]) for reason in _REASONS if self.left_out.get(reason)]
        return f"{count:,} file{'s' * (count > 1)} left out: {', '.join(parts)}"

    def _part(self, reason: str, count: int) -> str:
        part = f"{count:,} {_REASONS[reason] if count == 1 else reason}"
        names = [printable(os.path.basename(name)) for name in self.examples.get(reason, ())]  # noqa: PTH119
        return f"{part} ({', '.join(names)}{', ...' * (count > len(names))})" if names else part


def list_files(
    given: Sequence[str | os.PathLike[str]],
    files_from: str | None = None,
    *,
    recursive: bool = True,
    null: bool = False,
) -> Listing:
    """List `given` (files, folders, "-"), then the names in the file `files_from` ("-": standard input).

    The pictures of a folder come in the order of their whole paths, as `sorted` gives them; with `recursive` those of
    its subfolders are among them. A list has a name in each line, with `null` between zero bytes (`names.py`); names
    are relative to the current folder. Raises InputError where something given does not exist, is of an unknown kind,
    or is a folder without pictures, and where there is nothing to read.
    """
    lister = _Lister(recursive)
    for path in given:
        lister.add(os.fspath(path))
    if files_from is not None:
        if files_from == STANDARD_INPUT and STANDARD_INPUT in lister.files:
            raise InputError("standard input (-) is named as numbers and as a list of files; it can be one of them")
        for path in read_names(files_from, null=null):
            lister.add_listed(path)
        if not lister.files:
            raise InputError(f"the list '{files_from}' names no files; write a name in each line")
    return lister.listing()


class _LeftOut:
    """What is in folders and not read."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}

    def add(self, reason: str, path: str) -> None:
        self.counts[reason] += 1
        if reason != HIDDEN:
            shown = self.examples.setdefault(reason, [])
            if len(shown) < _EXAMPLES:
                shown.append(path)

    def listing(self, files: Sequence[str] = (), numbers: frozenset[str] = frozenset()) -> Listing:
        return Listing(tuple(files), numbers, self.counts, self.examples)


class _Lister:
    """Files, as they are found."""

    def __init__(self, recursive: bool) -> None:
        self.files: list[str] = []
        self._recursive = recursive
        self._numbers: set[str] = set()
        self._left_out = _LeftOut()

    def listing(self) -> Listing:
        return self._left_out.listing(self.files, frozenset(self._numbers))

    def add(self, path: str) -> None:
        """Add a path that a caller named: it must exist, and a folder must have pictures. Raises InputError."""
        if path == STANDARD_INPUT:
            self._add_numbers(path)
            return
        try:
            mode = os.stat(path).st_mode  # noqa: PTH116 - a Path takes longer to make than this
        except ValueError as error:  # the name holds a zero byte
            raise InputError(f"input '{path}' does not exist") from error
        except OSError as error:
            if is_missing(error):
                raise InputError(f"input '{path}' does not exist") from error
            self.files.append(path)  # reading it says what is wrong
            return
        if stat.S_ISDIR(mode):
            self._add_folder(path)
        elif not self._add_file(path, mode):
            accepted = ", ".join((*NUMBER_SUFFIXES, *IMAGE_SUFFIXES))
            raise InputError(
                f"input '{path}' has {ending(suffix_of(path))} and does not begin as a picture; accepted are "
                f"{accepted}, a folder of images, and - for numbers on standard input"
            )

    def add_listed(self, path: str) -> None:
        """Add a path of a list; if anything is wrong, reading it says so."""
        path = f"./{path}" if path == STANDARD_INPUT else path
        try:
            mode = os.stat(path).st_mode  # noqa: PTH116
        except (OSError, ValueError):
            mode = 0
        before = len(self.files)
        if stat.S_ISDIR(mode):
            self.files += _pictures(path, self._left_out, recursive=self._recursive)
        else:
            self._add_file(path, mode)
        if len(self.files) == before:
            self.files.append(path)

    def _add_folder(self, path: str) -> None:
        try:
            os.scandir(path).close()
        except OSError as error:
            raise unreadable(path, error) from error
        left_out = _LeftOut()
        pictures = list(_pictures(path, left_out, recursive=self._recursive))
        if not pictures:
            why = left_out.listing().line()
            raise InputError(f"folder '{path}' has no images ({', '.join(IMAGE_SUFFIXES)})" + (why and f"; {why}"))
        self.files += pictures
        self._left_out.counts += left_out.counts
        for reason, paths in left_out.examples.items():
            shown = self._left_out.examples.setdefault(reason, [])
            shown += paths[: _EXAMPLES - len(shown)]

    def _add_file(self, path: str, mode: int) -> bool:
        """Add a file as picture or numbers; return whether it is either."""
        suffix = suffix_of(path)
        if suffix in IMAGE_SUFFIXES or not stat.S_ISREG(mode):
            self.files.append(path)
            return True
        try:
            is_picture = _begins_as_picture(path, suffix)
        except OSError:
            is_picture = suffix not in NUMBER_SUFFIXES  # reading it says what is wrong
        if is_picture:
            self.files.append(path)
        elif suffix in NUMBER_SUFFIXES:
            self._add_numbers(path)
        else:
            return False
        return True

    def _add_numbers(self, path: str) -> None:
        self.files.append(path)
        self._numbers.add(path)


def _pictures(root: str, left_out: _LeftOut, *, recursive: bool) -> Iterator[str]:
    """Yield the pictures in a folder, in the order of their whole paths; other files go to `left_out`."""
    seen: set[tuple[int, int]] = set()
    prefix = os.path.join(str(Path(root)), "")  # noqa: PTH118 - the folder's name with one slash behind it
    prefix = "" if prefix == "./" else prefix
    ways = [(prefix, iter(_entries(root, prefix, left_out, seen, recursive=recursive)))]
    while ways:
        prefix, names = ways[-1]
        for name in names:
            path = prefix + name
            if name.endswith("/"):  # its files come now, and what is left of this folder after them
                ways.append((path, iter(_entries(path, path, left_out, seen, recursive=recursive))))
                break
            yield path if path != STANDARD_INPUT else f"./{path}"
        else:
            ways.pop()


def _entries(
    folder: str, prefix: str, left_out: _LeftOut, seen: set[tuple[int, int]], *, recursive: bool
) -> Sequence[str]:
    """Return the names of a folder's pictures and, with a slash at the end, of its folders, sorted as whole paths."""
    taken: list[str] = []
    others: list[tuple[str, str]] = []
    try:
        found = os.stat(folder)  # noqa: PTH116
        if (found.st_dev, found.st_ino) in seen:
            left_out.add(SEEN, folder.rstrip("/"))
            return ()
        seen.add((found.st_dev, found.st_ino))
        with os.scandir(folder) as entries:
            for entry in entries:
                reason = _why_not(entry, recursive)
                if reason is None:
                    taken.append(entry.name)
                elif reason == _FOLDER:
                    taken.append(f"{entry.name}/")
                else:
                    others.append((entry.name, reason))
    except OSError:
        left_out.add(UNREADABLE, folder.rstrip("/"))
    for name, reason in sorted(others):
        left_out.add(reason, prefix + name)
    return sorted(taken)


def _why_not(entry: os.DirEntry[str], recursive: bool) -> str | None:
    """Return why an entry of a folder is not read; None for a picture, _FOLDER for a folder to look into."""
    if entry.name.startswith("."):  # macOS puts a file ._a.jpg, which is no picture, beside a.jpg
        return HIDDEN
    try:
        if entry.is_file():
            suffix = suffix_of(entry.name)
            return None if suffix in IMAGE_SUFFIXES or _begins_as_picture(entry.path, suffix) else NO_PICTURE
        if entry.is_dir():
            return _FOLDER if recursive else SUBFOLDER
        return NO_TARGET if entry.is_symlink() and not os.path.exists(entry.path) else NO_FILE  # noqa: PTH110
    except OSError as error:
        return NO_TARGET if is_missing(error) else UNREADABLE


def _begins_as_picture(path: str, suffix: str) -> bool:
    """Return whether a regular file begins as a picture does; OSError where it cannot be read."""
    kind = picture_kind(read_head(path))
    # Raw files of cameras begin as TIFF does, with a preview in them that is not the picture.
    return kind is not None and (kind != "TIFF" or suffix in _TIFF_SUFFIXES)
