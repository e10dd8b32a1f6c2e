"""Names of the classes that a model's scores stand for.

`imagenet_classes.txt` has the 1000 ImageNet classes in the order of the scores, as torchvision's model metadata lists
them, one a line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from vgg16gpu.errors import InputError
from vgg16gpu.io.foreign.lines import read_text

IMAGENET_CLASSES: Final = 1000

_MOST_BYTES: Final = 1 << 26  # of a file of names

_IMAGENET_FILE = Path(__file__).resolve().parent.parent / "data" / "imagenet_classes.txt"


def load(path: str | Path | None, count: int) -> tuple[str, ...]:
    """`count` class names: from a text file with one a line, or without one ImageNet's, or 'class 0', 'class 1', ...

    ImageNet's are taken for 1000 scores. Empty lines at the end do not count. Raises InputError when the file cannot be
    read or has another number of names.
    """
    if path is None:
        if count != IMAGENET_CLASSES:
            return tuple(f"class {index}" for index in range(count))
        path = _IMAGENET_FILE
    try:
        text = read_text(Path(path), most_bytes=_MOST_BYTES, errors="strict").rstrip()
    except InputError as error:
        raise InputError(f"{error}; give a text file with one class name a line") from error
    lines = text.split("\n") if text else []
    if len(lines) != count:
        raise InputError(f"'{path}' has {len(lines)} class names, the model has {count} scores; give one name a line")
    return tuple(line.strip() for line in lines)
