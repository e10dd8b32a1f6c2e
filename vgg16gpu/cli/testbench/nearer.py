"""Inputs on which we and onnxruntime differ by float32's rounding: who is nearer to float64 decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Protocol

import numpy as np

from vgg16gpu.checks.accuracy import score_error
from vgg16gpu.checks.exact_scores import exact_scores
from vgg16gpu.checks.testbench import Verdict, judge
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.compiler.model import Model
from vgg16gpu.errors import ModelError
from vgg16gpu.pictures.inputs import NamedInput

_ROUNDING: Final = 1e-3  # a larger error is no rounding of float32
_MOST: Final = 20  # inputs that are computed in float64


class Asked(Protocol):
    """A model and its inputs."""

    @property
    def model(self) -> Model:
        """The model, which has a file."""

    @property
    def inputs(self) -> Sequence[NamedInput]:
        """The inputs."""

    def numbers(self, item: NamedInput) -> Array:
        """One input as onnxruntime takes it."""


def decided(
    bench: Asked, verdicts: Sequence[Verdict], scores: Array, references: Array, tolerance: float
) -> tuple[Verdict, ...]:
    """Return the verdicts of fp32; an input that fails by a rounding passes where we are nearer to float64.

    references: onnxruntime's. The error of such an input is that to float64. Where float64 cannot be had it fails as
    before.
    """
    found = list(verdicts)
    unsure = [i for i, each in enumerate(verdicts) if not each.passed and each.error <= _ROUNDING]
    if len(unsure) > _MOST:
        return tuple(found)
    for i in unsure:
        try:
            exact = exact_scores(bench.model.file, bench.numbers(bench.inputs[i])).reshape(1, -1)
        except ModelError:
            break
        if exact.shape != references[i : i + 1].shape:
            break
        theirs = float(score_error(references[i : i + 1].astype(np.float64), exact)[0])
        (judged,) = judge([found[i].name], scores[i : i + 1], exact, max(tolerance, theirs))
        if judged.passed:
            found[i] = replace(judged, label=found[i].label, by_float64=True)
    return tuple(found)
