"""Which inputs of a testbench can be read: one that cannot is left out and told, and the others are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from vgg16gpu.checks.references import References
from vgg16gpu.cli.common.left_out import none_left
from vgg16gpu.errors import InputError

Item = TypeVar("Item")
Value = TypeVar("Value")


@dataclass(frozen=True)
class Readable(Generic[Value]):
    """values: of the inputs that can be read. references: theirs, where there are any. problems: of all others."""

    values: list[Value]
    references: References | None
    problems: tuple[str, ...]


def read_each(
    items: Sequence[Item], read: Callable[[Item], Value], references: References | None = None
) -> Readable[Value]:
    """Apply `read` to each of the items, which are those that `references` has an answer for.

    Threads read them. Raises InputError, of the first, where none of them can be read.
    """
    with ThreadPoolExecutor(thread_name_prefix="vgg16gpu-read") as threads:
        found = list(threads.map(lambda item: _tried(read, item), items))
    problems = [str(each) for each in found if isinstance(each, InputError)]
    if problems and len(problems) == len(found):
        raise none_left(problems)
    kept = np.array([not isinstance(each, InputError) for each in found], bool)
    if references is not None and problems:
        answered = references.answered.copy()
        answered[answered] = kept
        references = replace(references, scores=references.scores[kept], answered=answered)
    return Readable([each for each in found if not isinstance(each, InputError)], references, tuple(problems))


def _tried(read: Callable[[Item], Value], item: Item) -> Value | InputError:
    try:
        return read(item)
    except InputError as error:
        return error
