"""Scores of inputs: ranks and probabilities, batches of answers, files of scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt


class Ranked(NamedTuple):
    """For N rows of scores: the best classes, best first, and their probabilities, (N, count) each.

    Where a row has a problem ("scores are NaN"), its classes are -1 and its probabilities NaN.
    """

    best: npt.NDArray[np.intp]
    probabilities: npt.NDArray[np.float64]
    problems: Sequence[str]


def ranked(scores: Scores, count: int, *, are_probabilities: bool) -> Ranked:
    """Rank the `count` best classes of each row of (N, K) scores; the lower class first among equals."""
    best = _largest(scores, min(count, scores.shape[1]))
    chosen = np.take_along_axis(scores, best, axis=1)
    if are_probabilities:
        probabilities = chosen.astype(np.float64)
    else:
        probabilities = np.take_along_axis(softmax(scores), best, axis=1)
    is_nan = np.isnan(scores).any(axis=1)
    largest = scores.max(axis=1) if scores.shape[1] else np.zeros(len(scores), np.float32)
    is_infinite = np.isinf(largest) & ~is_nan
    bad = is_nan | is_infinite
    if bad.any():
        best[bad], probabilities[bad] = -1, np.nan
    problems = np.select([is_nan, is_infinite], ["scores are NaN", "scores are infinite"], "")
    return Ranked(best, probabilities, problems.tolist())


def _largest(scores: npt.NDArray[np.floating[Any]], count: int) -> npt.NDArray[np.intp]:
    """Return the same as `top_classes`, without sorting the rest of each row."""
    if count == 0 or count >= scores.shape[1] // 4:
        return top_classes(scores, count)
    found = np.sort(np.argpartition(-scores, count, axis=1)[:, :count], axis=1)
    values = np.take_along_axis(scores, found, axis=1)
    found = np.take_along_axis(found, np.argsort(-values, axis=1, kind="stable"), axis=1)
    # Of classes that are as good as the last one any may have been taken: those rows are sorted whole. So are NaNs.
    least = np.take_along_axis(scores, found[:, -1:], axis=1)
    unsure = (scores >= least).sum(axis=1) != count
    if unsure.any():
        found[unsure] = top_classes(scores[unsure], count)
    return found


Array: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class PredictionBatch:
    """What became of consecutive inputs, in their order."""

    names: Sequence[str]  # as given; bytes that are no UTF-8 as surrogateescape
    errors: Sequence[str]  # why an input has no answer; "" where it has one
    scores: Scores  # (n, *shape) float32 of the first output; NaN rows where there is an error
    best: npt.NDArray[
        np.intp
    ]  # (n, k) classes, best first, -1 without an answer; k = 0 where the output gives no classes
    probabilities: npt.NDArray[np.float64]  # (n, k); NaN without an answer
    others: tuple[Array, ...] = ()  # further outputs, (n, ...) each
    unread: frozenset[int] = frozenset()  # which of them could not be read, so that nothing was computed


Scores: TypeAlias = npt.NDArray[np.float32]


def softmax(scores: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float64]:
    """Return the softmax over the last axis in float64. A row with NaN or +Inf becomes NaN."""
    with np.errstate(invalid="ignore"):
        powers = np.exp(scores - np.max(scores, axis=-1, keepdims=True).astype(np.float64))
        return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def top_classes(scores: npt.NDArray[np.floating[Any]], count: int) -> npt.NDArray[np.intp]:
    """Return indices of the `count` largest of each row of (N, K) scores, best first; the lower first among equals."""
    return np.argsort(-scores, axis=-1, kind="stable")[..., :count]


def write_text(file: BinaryIO, rows: npt.NDArray[Any]) -> None:
    """Write one line of white-space separated numbers per row, nine digits each."""
    for row in rows.reshape(len(rows), -1):
        file.write(" ".join([f"{value:.9g}" for value in row.tolist()]).encode() + b"\n")


def finite_or_none(value: Any) -> Any:
    """Copy nested lists, dicts and numbers with None for NaN and infinities, which JSON lacks."""
    if isinstance(value, dict):
        return {key: finite_or_none(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite_or_none(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
