"""`testbench` of a file that rounds values by itself, in a precision that does not, beside the file as it stands.

How much may differ is measured: onnxruntime runs the file with noise of half a step on every rounded value, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import numpy as np

from vgg16gpu.checks.accuracy import SCORE_TOLERANCES, layer_error, score_error
from vgg16gpu.checks.onnxruntime_oracle import Oracle
from vgg16gpu.checks.quantised_file import Edit, add_noise, rounds_values
from vgg16gpu.checks.testbench import Rounded
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.compiler.model import Model
from vgg16gpu.pictures.inputs import NamedInput

Tracked: TypeAlias = Callable[[Sequence[NamedInput], str], Iterable[NamedInput]]  # a progress bar with that name
Answer: TypeAlias = tuple[Array, ...]  # of one input: its scores, or the values that --outputs names

_NOISY_INPUTS: Final = 10  # inputs that noise is measured on, at most
_FACTOR: Final = 2.0  # of the noise: VGGs come to 0.3 to 0.6 in the mean of ten pictures, and to 1.4 on one of them


class RoundingCase(Protocol):
    """A model, its inputs, and the values that are compared in place of scores."""

    @property
    def model(self) -> Model:
        """The model, which has a file."""

    @property
    def inputs(self) -> Sequence[NamedInput]:
        """The inputs."""

    @property
    def classes(self) -> int:
        """Return how many classes the scores are of; 0 where they are of none."""

    @property
    def values(self) -> tuple[str, ...]:
        """The names of values; none where scores are compared."""

    def numbers(self, item: NamedInput) -> Array:
        """Return one input as onnxruntime takes it."""


@dataclass(frozen=True, eq=False)
class AsItStands:
    """What onnxruntime makes of a file that rounds.

    noise: the mean error that noise of the size of rounding makes. has_classes: the answers are scores of classes.
    """

    answers: Sequence[Answer]
    noise: float
    has_classes: bool = True

    def judge(self, found: Sequence[Answer], precision: str) -> Rounded:
        """Return how answers without rounding compare; `precision` has its own tolerance beside that of rounding."""
        errors = [_error(*pair) for pair in zip(found, self.answers, strict=True)]
        pairs = zip(found, self.answers, strict=True)
        same = [_has_best(*pair) for pair in pairs] if self.has_classes and _is_scores(self.answers[0]) else []
        tolerance = _FACTOR * self.noise + SCORE_TOLERANCES[precision]
        return Rounded(float(np.mean(errors)), tolerance, sum(same) / len(same) if same else None)


def as_it_stands(bench: RoundingCase, precision: str, tracked: Tracked) -> AsItStands | None:
    """Return what onnxruntime makes of the file; None of one that does not round, and in int8, which rounds, too."""
    if precision == "int8" or not rounds_values(bench.model.file.model):
        return None
    answers = _answers(bench, tracked(bench.inputs, "onnxruntime, as it stands"), None)
    few = bench.inputs[:_NOISY_INPUTS]
    noisy = _answers(bench, tracked(few, "onnxruntime, with noise"), add_noise)
    noise = float(np.mean([_error(*pair) for pair in zip(noisy, answers, strict=False)]))
    return AsItStands(answers, noise if math.isfinite(noise) else 0.0, bool(bench.values or bench.classes))


def _answers(bench: RoundingCase, inputs: Iterable[NamedInput], edit: Edit | None) -> list[Answer]:
    oracle = Oracle(bench.model.path, bench.values, edit, bench.model.file)
    if bench.values:
        return [tuple(oracle.values(bench.numbers(item), bench.values).values()) for item in inputs]
    rows = (oracle.scores(bench.numbers(item)) for item in inputs)
    return [(row.reshape(len(row), -1),) for row in rows]


def _error(found: Answer, stands: Answer) -> float:
    """Return the error of scores, or the mean error of several values."""
    if _is_scores(stands):
        return float(score_error(found[0], stands[0][: len(found[0])]).max())
    pairs = zip(found, stands, strict=True)
    return float(np.mean([layer_error(y, r[: len(y)] if y.ndim else r) for y, r in pairs]))


def _is_scores(answer: Answer) -> bool:
    return len(answer) == 1 and answer[0].ndim == 2


def _has_best(found: Answer, stands: Answer) -> bool:
    """Return whether the best class of the found scores is one of the best there."""
    row = stands[0][0]
    return bool(row[found[0][0].argmax()] == row.max())
