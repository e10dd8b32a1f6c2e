"""Names of classes: those of ImageNet, and files of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from vgg16gpu.errors import InputError
from vgg16gpu.io.foreign.documents import parse_json
from vgg16gpu.io.foreign.lines import read_text

IMAGENET_MEAN: Final = (0.485, 0.456, 0.406)  # R, G, B, of pixels in [0, 1]
IMAGENET_STD: Final = (0.229, 0.224, 0.225)


IMAGENET_CLASSES: Final = 1000

_MOST_BYTES: Final = 1 << 26  # of a file of names

_LONGEST_LITERAL: Final = 1 << 24  # characters

_IMAGENET_FILE = Path(__file__).resolve().parent.parent / "data" / "imagenet_classes.txt"


def load(path: str | Path | None, count: int) -> tuple[str, ...]:
    """Return `count` class names, one a line of a text file; without a file ImageNet's, or 'class 0', 'class 1', ...

    ImageNet's are taken for 1000 scores. Empty lines at the end do not count. A file may also hold a list or a dict, as
    Python or JSON writes them: names, {index: name}, {index: [id, name]} or {name: index}. Raises InputError when the
    file cannot be read or has another number of names.
    """
    if path is None:
        if count != IMAGENET_CLASSES:
            return tuple(f"class {index}" for index in range(count))
        path = _IMAGENET_FILE
    try:
        text = read_text(Path(path), most_bytes=_MOST_BYTES, errors="strict").rstrip()
    except InputError as error:
        raise InputError(f"{error}; give a text file with one class name a line") from error
    lines: Sequence[str] = text.split("\n") if text else []
    if text.startswith(("{", "[")):
        lines = _listed(text, str(path), lines)
    if len(lines) != count:
        raise InputError(f"'{path}' has {len(lines)} class names, the model has {count} scores; give one name a line")
    return tuple(line.strip() for line in lines)


def _listed(text: str, path: str, lines: Sequence[str]) -> Sequence[str]:
    """Return the names in a list or dict of Python or JSON; `lines` if these only begin with a bracket."""
    if len(text) > _LONGEST_LITERAL:
        raise InputError(f"'{path}' is a list or dict of {len(text):,} characters; give one name a line")
    try:
        found = parse_json(text, f"'{path}'")
    except InputError:
        try:
            found = ast.literal_eval(text)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
            if text.startswith("["):  # a vocabulary may begin with [UNK]
                return lines
            raise InputError(
                f"'{path}' begins as a dict of Python or JSON and is none: {type(error).__name__}; give one name a line"
            ) from error
    names = _names(found)
    if names is None:
        raise InputError(
            f"'{path}' is a {type(found).__name__} that does not name classes 0, 1, 2, ...; accepted are a list of "
            "names, {index: name}, {name: index}, or one name a line"
        )
    return names


def _names(found: object) -> list[str] | None:
    """Return the names in the order of their classes; None for anything else."""
    if isinstance(found, list | tuple):
        return list(found) if all(isinstance(name, str) for name in found) else None
    if not isinstance(found, dict):
        return None
    if all(isinstance(value, int) and not isinstance(value, bool) for value in found.values()):
        if len({*found.values()}) < len(found):
            return None
        found = {index: name for name, index in found.items()}
    named: dict[int, str] = {}
    for key, value in found.items():
        name = value[-1] if isinstance(value, list | tuple) and value else value  # ["n01440764", "tench"]
        if not isinstance(name, str) or not re.fullmatch("0|[1-9][0-9]{0,8}", str(key), re.ASCII):
            return None
        named[int(str(key))] = name
    return [named[index] for index in range(len(named))] if named.keys() == {*range(len(found))} else None
