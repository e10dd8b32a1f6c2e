"""Scores that somebody else has computed, or `infer` somewhere else, in the order of the inputs that they are for.

A file with names (.csv, .jsonl, .parquet, .npz, .json) may have its rows in any order, and rows for other inputs. One
without (.npy, .txt) has a row for each input, in their order. A row that is NaN throughout is how `infer` says that an
input has no answer: there is nothing to compare with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from vgg16gpu.errors import InputError
from vgg16gpu.io.foreign.lines import read_bytes
from vgg16gpu.io.results import read_scores
from vgg16gpu.io.results.arrow_form import storable
from vgg16gpu.io.scores import Scores
from vgg16gpu.io.shown import printable
from vgg16gpu.io.text import parse_numbers

_TEXT: Final = ".txt"


@dataclass(frozen=True, eq=False)
class References:
    """What a file has for some inputs."""

    file: str
    scores: Scores  # (n, K): a row for each input that has an answer, in their order
    answered: npt.NDArray[np.bool_]  # for each input whether it has one
    unanswered: tuple[str, ...]  # the names of the others
    has_names: bool  # so that rows were found by them
    unused: int  # rows of the file that are for other inputs


def read_references(path: Path, names: Sequence[str], classes: int) -> References:
    """The rows for inputs of these names; K is `classes`. Raises InputError where there is not one for each of them."""
    if not path.is_file():
        raise InputError(f"references '{path}' do not exist")
    if path.suffix.lower() == _TEXT:  # numbers need not be a line an input
        found, rows = None, parse_numbers(read_bytes(path, f"references '{path}'"), str(path))[:, None]
    else:
        found, rows = read_scores(path)
    if found is None:
        scores = _in_order(path, rows, len(names), classes)
    else:
        scores = _named(path, found, rows, names)
        _check_classes(path, scores, len(names), classes)
    answered = np.asarray(~np.isnan(scores).all(axis=1))
    if not answered.any():
        raise InputError(f"references '{path}' have an answer for none of the {len(names)} inputs: all are NaN")
    return References(
        file=str(path),
        scores=scores[answered],
        answered=answered,
        unanswered=tuple(name for name, has_one in zip(names, answered, strict=True) if not has_one),
        has_names=found is not None,
        unused=0 if found is None else len(set(found)) - len(set(names)),
    )


def _in_order(path: Path, rows: Scores, count: int, classes: int) -> Scores:
    """(count, classes) of rows without names; where each has one number they are numbers in sequence."""
    if rows.shape[1] == 1 and rows.size == count * classes:
        return rows.reshape(count, classes)
    if rows.shape[1] == 1 and rows.size and rows.size % classes == 0:
        rows = rows.reshape(-1, classes)
    elif rows.shape[1] == 1 and rows.size and rows.size % count == 0:
        rows = rows.reshape(count, -1)
    elif rows.shape[1] == 1:
        raise InputError(
            f"references '{path}' have {rows.size} numbers; {count} inputs with {classes} scores each need "
            f"{count * classes}"
        )
    _check_classes(path, rows, count, classes)
    if len(rows) != count:
        raise InputError(
            f"references '{path}' have {len(rows)} rows, there are {count} inputs; without names each row belongs to "
            "the input in its place: give a row for each, or a file with names (.csv, .jsonl, .parquet, .npz, .json)"
        )
    return rows


def _check_classes(path: Path, rows: Scores, count: int, classes: int) -> None:
    if rows.shape[1] != classes:
        raise InputError(
            f"references '{path}' have {rows.shape[1]} scores for each of {count} inputs, the model {classes}"
        )


def _named(path: Path, found: Sequence[str], rows: Scores, names: Sequence[str]) -> Scores:
    """The rows of these names, in this order."""
    places = {name: place for place, name in enumerate(found)}
    keys = [name if name in places else storable(name) for name in names]  # .parquet has no bytes that are no UTF-8
    missing = [name for name, key in zip(names, keys, strict=True) if key not in places]
    if missing:
        theirs = f"; their first row is of '{printable(found[0])}'" if found else ""
        raise InputError(
            f"references '{path}' have no row for {len(missing)} of {len(names)} inputs, the first is "
            f"'{printable(missing[0])}'{theirs}; name the inputs as they were named when the references were made"
        )
    counts = Counter(found)
    if doubled := next((key for key in keys if counts[key] > 1), None):
        raise InputError(
            f"references '{path}' have {counts[doubled]} rows for '{printable(doubled)}'; leave one for each input"
        )
    return rows[[places[key] for key in keys]]
