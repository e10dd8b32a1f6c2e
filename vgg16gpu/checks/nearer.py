"""Answers that differ from onnxruntime's by more than the tolerance: float64 decides whose rounding that is.

Ours passes if its error beside float64 is within the tolerance or smaller than onnxruntime's, and if both errors are at
most `ROUNDING` times the tolerance. A net whose scores are small differences of large sums takes both beyond it; more
than that is no rounding, and float64 is not asked. The best class is then float64's. Float64 is asked until an answer
fails there too, of at most `MOST` inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

import numpy as np

from vgg16gpu.checks.accuracy import Floats, layer_error, score_error
from vgg16gpu.checks.float64_oracle import Float64Oracle
from vgg16gpu.checks.quantised_file import Edit
from vgg16gpu.checks.testbench import Decision, InputVerdict, StepVerdict, judge
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.compiler.onnx.file import OnnxFile
from vgg16gpu.errors import ModelError

Values: TypeAlias = Mapping[str, Floats]  # by ONNX name

MOST: Final = 20  # inputs that are computed in float64
ROUNDING: Final = 100.0  # times the tolerance: a larger error is not one of rounding


class Float64Judge:
    """Decides by float64, which is computed when it is first asked.

    values: the ONNX values that are judged; none: the first output. `decisions`: what was decided, in order. `problem`:
    why float64 is asked no more; "" where it may be, and where an answer failed.
    """

    def __init__(self, file: OnnxFile, values: Sequence[str] = (), edit: Edit | None = None) -> None:
        self.decisions: list[Decision] = []
        self.problem = ""
        self._file, self._values, self._edit = file, tuple(values), edit
        self._oracle: Float64Oracle | None = None
        self._asked = 0

    def scores(self, verdict: InputVerdict, ours: Array, theirs: Array, x: Array, tolerance: float) -> InputVerdict:
        """Return the verdict on (1, K) scores that failed beside onnxruntime's. x: the input, (1, ...)."""
        found = self._exact(x) if _may_be_rounding(verdict.error, tolerance) else None
        if found is None:
            return verdict
        exact = found[0][:1].reshape(1, -1)
        if exact.shape != ours.shape:
            self.problem = f"float64 has {exact.shape[1]} scores where there are {ours.shape[1]}"
            return verdict
        errors = float(score_error(ours, exact)[0]), float(score_error(theirs, exact)[0])
        labels = None if verdict.label is None else [verdict.label]
        (judged,) = judge([verdict.name], ours, exact, np.inf, labels, classes=0 if verdict.top1 is None else None)
        passed = self._decide(verdict.name, *errors, tolerance, is_right=judged.passed)
        return replace(judged, passed=passed, by_float64=True) if passed else verdict

    def values(
        self, verdicts: Sequence[StepVerdict], ours: Values, theirs: Values, x: Array, tolerance: float
    ) -> tuple[StepVerdict, ...]:
        """Return the verdicts on values of an input. ours, theirs: at least those that failed beside onnxruntime's."""
        if not any(not verdict.passed and _may_be_rounding(verdict.error, tolerance) for verdict in verdicts):
            return tuple(verdicts)
        found = self._exact(x)
        if found is None:
            return tuple(verdicts)
        exact = dict(zip(self._values, found, strict=True))
        return tuple(
            verdict
            if verdict.passed
            else self._value(verdict, *(each[verdict.names[-1]] for each in (ours, theirs, exact)), tolerance=tolerance)
            for verdict in verdicts
        )

    def _value(
        self, verdict: StepVerdict, ours: Floats, theirs: Floats, exact: Floats, *, tolerance: float
    ) -> StepVerdict:
        rows = slice(min(len(ours), len(theirs))) if ours.ndim else ...
        theirs = theirs[rows]
        ours, exact = ours[rows].reshape(theirs.shape), exact[rows].reshape(theirs.shape)
        errors = layer_error(ours, exact), layer_error(theirs, exact)
        passed = self._decide(verdict.names[0], *errors, tolerance)
        return replace(verdict, error=errors[0], passed=True, by_float64=True) if passed else verdict

    def _exact(self, x: Array) -> tuple[Floats, ...] | None:
        """Return the values in float64; None where they are not asked for, or not known."""
        if self.problem or not all(decision.passed for decision in self.decisions):
            return None
        if self._asked == MOST:
            self.problem = f"float64 was asked of the first {MOST} inputs alone that differ by more than the tolerance"
            return None
        self._asked += 1
        try:
            if self._oracle is None:
                self._oracle = Float64Oracle(self._file, self._values, self._edit)
            return self._oracle.values(x)
        except ModelError as error:
            self.problem = str(error)
            return None

    def _decide(self, name: str, ours: float, theirs: float, tolerance: float, *, is_right: bool = True) -> bool:
        is_rounding = ours <= ROUNDING * tolerance and theirs <= ROUNDING * tolerance  # NaN is none
        is_nearer = ours <= tolerance or ours < theirs
        self.decisions.append(Decision(name, ours, theirs, passed=bool(is_rounding and is_nearer and is_right)))
        return self.decisions[-1].passed


def _may_be_rounding(difference: float, tolerance: float) -> bool:
    """Return whether two answers with this difference may both be within rounding of the right one."""
    return difference <= 2 * ROUNDING * tolerance
