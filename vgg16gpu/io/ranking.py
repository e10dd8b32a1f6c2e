"""The best classes of many rows of scores at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vgg16gpu.io.scores import Scores, softmax, top_classes


class Ranked(NamedTuple):
    """For N rows of scores: the best classes, best first, and their probabilities, (N, count) each.

    Where a row has a problem ("scores are NaN"), its classes are -1 and its probabilities NaN.
    """

    best: npt.NDArray[np.intp]
    probabilities: npt.NDArray[np.float64]
    problems: Sequence[str]


def ranked(scores: Scores, count: int, *, are_probabilities: bool) -> Ranked:
    """The `count` best classes of each row of (N, K) scores; the lower class first among equals."""
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
    """`top_classes`, without sorting the rest of each row."""
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
