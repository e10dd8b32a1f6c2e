"""`testbench --outputs`: values inside a model, in place of its scores, against onnxruntime's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from vgg16gpu.checks.nearer import MOST, Float64Judge
from vgg16gpu.checks.onnxruntime_oracle import Oracle
from vgg16gpu.checks.qdq_oracle import QuantisedOracle
from vgg16gpu.checks.testbench import AnswersReport, Quantised, StepVerdict, judge_values, worst_steps
from vgg16gpu.cli.testbench.case import Bench, TestbenchCase
from vgg16gpu.cli.testbench.rounding import Tracked
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.compiler.quantization.scale_file import read_scales
from vgg16gpu.pictures.inputs import NamedInput
from vgg16gpu.runtime.engine import Engine

Values: TypeAlias = tuple[Array, ...]  # what `Bench.values` names, of one input


@dataclass
class ValueOutcome(TestbenchCase):
    """The values of each input. `quantised`: those of onnxruntime's quantised form, for int8."""

    values: Sequence[Values]
    references: Sequence[Values]
    quantised: Sequence[Values] | None = None


def exact_values(bench: Bench, inputs: Iterable[NamedInput]) -> list[Values]:
    """Return the float32 values of onnxruntime. Raises Error without onnxruntime."""
    return _asked(Oracle(bench.model.path, bench.values, bench.unrounded, bench.model.file), bench, inputs)


def quantised_values(bench: Bench, inputs: Iterable[NamedInput]) -> list[Values]:
    """Return the values of onnxruntime's quantised form with the model's scales. Raises ModelError without scales."""
    if bench.has_scales:
        return _asked(Oracle(bench.model.path, bench.values, file=bench.model.file), bench, inputs)
    form = QuantisedOracle(bench.graph, read_scales(bench.model.path, bench.graph))
    return [form.values(bench.graph.input.from_file(bench.numbers(item))) for item in inputs]


def engine_values(engine: Engine, items: Sequence[NamedInput]) -> list[Values]:
    """Return the values of an engine, from one run."""
    outputs = engine.run(np.stack([item.array for item in items]))
    arrays = outputs if isinstance(outputs, tuple) else (outputs,)
    whole = [engine.program.is_whole(value) for value in engine.program.outputs]
    return [
        tuple(y if is_whole else y[i : i + 1] for y, is_whole in zip(arrays, whole, strict=True))
        for i in range(len(items))
    ]


def judged_values(
    bench: Bench, outcome: ValueOutcome, tolerance: float, tracked: Tracked | None = None
) -> AnswersReport:
    """Return the verdict on each value, the worst of all inputs; with `tracked` float64 decides on what fails."""
    runs = _judged(bench, outcome.values, outcome.references, tolerance)
    by_float64 = Float64Judge(bench.model.file, bench.values, bench.unrounded)
    if tracked:
        failing = [i for i, run in enumerate(runs) if not all(value.passed for value in run)][: MOST + 1]
        for i, item in zip(failing, tracked([bench.inputs[i] for i in failing], "float64"), strict=True):
            ours = dict(zip(bench.values, outcome.values[i], strict=True))
            references = dict(zip(bench.values, outcome.references[i], strict=True))
            runs[i] = by_float64.values(runs[i], ours, references, bench.numbers(item), tolerance)
    quantised = None
    if outcome.quantised is not None:
        theirs = _judged(bench, outcome.quantised, outcome.references, math.inf)
        quantised = Quantised(_mean_error(runs), _mean_error(theirs))
    rounded = outcome.stands.judge(outcome.values, outcome.precision) if outcome.stands else None
    return AnswersReport(
        *((), outcome.steps, tolerance),
        quantised=quantised,
        values=worst_steps(runs),
        inputs=len(runs),
        rounded=rounded,
        decisions=tuple(by_float64.decisions),
        undecided=by_float64.problem,
    )


def _asked(oracle: Oracle, bench: Bench, inputs: Iterable[NamedInput]) -> list[Values]:
    return [tuple(oracle.values(bench.numbers(item), bench.values).values()) for item in inputs]


def _judged(
    bench: Bench, found: Sequence[Values], references: Sequence[Values], tolerance: float
) -> list[tuple[StepVerdict, ...]]:
    names = [tuple(dict.fromkeys(pair)) for pair in zip(bench.outputs or (), bench.values, strict=True)]
    return [judge_values(names, *pair, tolerance) for pair in zip(found, references, strict=True)]


def _mean_error(runs: Sequence[Sequence[StepVerdict]]) -> float:
    return float(np.mean([verdict.error for verdicts in runs for verdict in verdicts]))
