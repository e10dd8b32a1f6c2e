"""What was done to pictures when `infer` made the references: the record beside the file says it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vgg16gpu.errors import InputError
from vgg16gpu.io.foreign.documents import OTHER_FORM
from vgg16gpu.io.preprocessing import Origin, Preprocess
from vgg16gpu.io.results import read_options


@dataclass(frozen=True)
class Recorded:
    """What changes an answer and is recorded of references. preprocess: None of a model that takes rows of numbers."""

    name: str  # of the record
    preprocess: Preprocess | None
    size: tuple[int, int] | None


def recorded(references: Path | None) -> Recorded | None:
    """Return what is recorded of a file of references; None without a record, and without a file.

    Raises InputError for a record that is broken.
    """
    found = read_options(references) if references else None
    if found is None:
        return None
    name, options = found
    try:
        fields = options["preprocess"]
        preprocess = None
        if fields is not None:
            preprocess = Preprocess.from_fields(fields).with_origin(Origin("user", options=(f"the record {name}",)))
        return Recorded(name, preprocess, _size(options["size"]))
    except (InputError, *OTHER_FORM) as error:
        reason = error if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        raise InputError(
            f"'{name}' has options of a run that cannot be read ({reason}); remove it, and say with --preprocess and "
            "--size what was done when the references were made"
        ) from error


def contradicted(record: Recorded, preprocess: Preprocess, size: tuple[int, ...], given: Sequence[str]) -> str:
    """Return a line where pictures are prepared otherwise than the record says; else "".

    size: in pixels, which pictures get now. given: the options that say so.
    """
    before = record.size or size
    if record.preprocess is None or (record.preprocess, before) == (preprocess, size):
        return ""
    steps, _, _ = record.preprocess.line(*before).partition(";")
    without = f"without {', '.join(given)} that is done"
    return f"the references were made of other {steps}; by the record {record.name}; {without}"


def _size(value: Any) -> tuple[int, int] | None:
    if not value:
        return None
    height, width = map(int, value)
    return height, width
