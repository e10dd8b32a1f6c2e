"""What a row of results has, and whether answers have it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from vgg16gpu.errors import InputError
from vgg16gpu.io.scores import PredictionBatch, Scores

RANK_COLUMNS: Final = ("class", "label", "score", "probability")


@dataclass(frozen=True)
class Columns:
    """The columns of a run: `input` and `error`, four for each rank, and all scores if asked for.

    `top`: ranks, 0 where the output gives no classes. `labels`: a name for each class. `scores`: all scores of the
    first output, too; without ranks they are always there. `shape`: of one row of the first output. `outputs`: the
    names of all outputs; those after the first have a place in .npz alone. Raises InputError where ranks and shape do
    not go together.
    """

    top: int
    labels: Sequence[str] | None
    scores: bool
    shape: tuple[int, ...]
    outputs: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.top and (max(self.shape, default=0) != self.width or self.top > self.width):
            raise InputError(
                f"{self.top} ranks of scores of shape {self.shape}; there is a rank for each class at most"
            )
        if self.top and self.labels is not None and len(self.labels) != self.width:
            raise InputError(f"{len(self.labels)} labels for {self.width} classes; give one for each class")

    @property
    def width(self) -> int:
        """Scores of one row."""
        return math.prod(self.shape)

    @property
    def all_scores(self) -> bool:
        """Return whether a row has all its scores."""
        return self.scores or not self.top

    @property
    def rank_names(self) -> list[str]:
        """class_1, label_1, score_1, probability_1, class_2, ..."""
        return [f"{column}_{rank}" for rank in range(1, self.top + 1) for column in RANK_COLUMNS]

    def fields(self) -> dict[str, Any]:
        """Return JSON values, of the labels a digest: two runs' rows have the same form when these are equal."""
        labels = None if self.labels is None else json.dumps(list(self.labels)).encode()
        return {
            "top": self.top,
            "scores": self.all_scores,
            "shape": list(self.shape),
            "outputs": list(self.outputs),
            "labels": labels and hashlib.sha256(labels).hexdigest(),
        }


def checked(answers: PredictionBatch, columns: Columns) -> PredictionBatch:
    """Return the answers; those with an error get NaN and no classes. Raises InputError for other shapes."""
    count = len(answers.names)
    shapes = {
        "errors": ((len(answers.errors),), (count,)),
        "scores": (answers.scores.shape, (count, *columns.shape)),
        "best": (answers.best.shape, (count, columns.top)),
        "probabilities": (answers.probabilities.shape, (count, columns.top)),
        "others": (tuple(len(array) for array in answers.others), (count,) * (len(columns.outputs) - 1)),
    }
    for name, (found, wanted) in shapes.items():
        if found != wanted:
            raise InputError(f"{name} of {count} answers have shape {found}; these columns take {wanted}")
    if not any(answers.errors):
        return answers
    failed = np.array([bool(error) for error in answers.errors])
    scores, best, probabilities = answers.scores.copy(), answers.best.copy(), answers.probabilities.copy()
    scores[failed], best[failed], probabilities[failed] = np.nan, -1, np.nan
    return replace(answers, scores=scores, best=best, probabilities=probabilities)


def best_scores(answers: PredictionBatch) -> Scores:
    """Return (n, k) scores of the best classes, NaN where there is none."""
    if not answers.best.size:
        return np.empty(answers.best.shape, np.float32)
    scores = answers.scores.reshape(len(answers.scores), -1)
    found: Scores = np.take_along_axis(scores, np.maximum(answers.best, 0), axis=1)
    return np.where(answers.best < 0, np.float32(np.nan), found)
