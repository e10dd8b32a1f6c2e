"""The accuracy check: an engine's scores, and every step behind them, against references.

An input passes when the norm-wise error of its scores is within the tolerance of the precision and, in fp32, the best
class is the reference's: a less precise sum may take the other of two that are nearly equal. int8 has no tolerance; its
mean error over all inputs is compared with that of onnxruntime's quantised form (`Quantised`). A testbench whose
references are all alike cannot see much: some of those of the standard inputs must differ from each other by more than
the tolerance, or the whole check fails as blind (`DistinctReferences`). An engine that gives all inputs one answer then
fails, whether there are a thousand classes, two, or none.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from vgg16gpu.checks.accuracy import INT8_RATIO, SCORE_TOLERANCE, layer_error, score_error
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.errors import InputError
from vgg16gpu.io.preprocessing import Preprocess
from vgg16gpu.io.scores import top_classes
from vgg16gpu.io.synthetic import TESTBENCH_SEED, typical_inputs
from vgg16gpu.pictures.images import load_image
from vgg16gpu.pictures.inputs import NamedInput, Sample, expand_paths

Run: TypeAlias = Callable[[Sample], object]

STANDARD_INPUTS = 10
MIN_APART = 3  # references of the standard inputs that must differ from each other; 2 of one or two classes
_APART = 10 * SCORE_TOLERANCE  # by how much, at least: then a fault of a tenth of what an input changes is seen
_TOP = 5


@dataclass(frozen=True)
class InputVerdict:
    """One input judged. `error` is max|y - r| / max|r|; `top5` counts the classes that both top-5 hold.

    by_float64: r is what float64 gives, since onnxruntime's answer is beyond the tolerance. Where the numbers are not
    scores of classes, `top1` and `reference_top1` are None and `top5_of` is 0.
    """

    name: str
    error: float
    top1: int | None
    reference_top1: int | None
    top5: int
    top5_of: int
    label: int | None
    passed: bool
    by_float64: bool = False

    @property
    def correct(self) -> bool | None:
        """True if the best class is the label; None without a label."""
        return None if self.label is None else self.top1 == self.label


@dataclass(frozen=True)
class StepVerdict:
    """One value that a step stores. `names` are the ONNX values computed on the way; the error is the last one's."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    error: float  # ||y - r|| / ||r||, the worst of all inputs checked
    passed: bool
    by_float64: bool = False  # r is what float64 gives, since onnxruntime's value is beyond the tolerance


@dataclass(frozen=True)
class Decision:
    """Hold the verdict of float64 on an answer that differs from onnxruntime's by more than the tolerance.

    name: of the input, or of the value. error, onnxruntime_error: of both beside float64.
    """

    name: str
    error: float
    onnxruntime_error: float
    passed: bool


@dataclass(frozen=True)
class DistinctReferences:
    """Count the references that differ from each other by more than `margin` (`score_error`), up to `needed`."""

    found: int
    needed: int
    margin: float

    @property
    def passed(self) -> bool:
        """Enough for a wrong answer to be seen."""
        return self.found >= self.needed


@dataclass(frozen=True)
class Quantised:
    """The mean `score_error` of int8 beside that of onnxruntime's quantised form: same scales, same inputs."""

    mean_error: float
    onnxruntime_mean_error: float
    limit: float = INT8_RATIO

    @property
    def ratio(self) -> float:
        """Ours to onnxruntime's; 1 where both are exact."""
        if self.mean_error == self.onnxruntime_mean_error == 0:
            return 1.0
        return self.mean_error / self.onnxruntime_mean_error if self.onnxruntime_mean_error else math.inf

    @property
    def passed(self) -> bool:
        """Not much worse than theirs."""
        return self.ratio <= self.limit


@dataclass(frozen=True)
class Rounded:
    """The mean `score_error`, of values `layer_error`, beside what a file that rounds gives as it stands.

    tolerance: what its rounding may be answerable for; the references are the file's answers without rounding.
    """

    mean_error: float
    tolerance: float
    agreement: float | None = None  # the share of inputs with the same best class

    @property
    def passed(self) -> bool:
        """No more than rounding."""
        return _within(self.mean_error, self.tolerance)


@dataclass(frozen=True)
class AnswersReport:
    """The outcome of a testbench."""

    verdicts: tuple[InputVerdict, ...]
    steps: tuple[StepVerdict, ...] = ()
    tolerance: float = SCORE_TOLERANCE
    control: DistinctReferences | None = None  # of the standard inputs
    min_accuracy: float = 0.0
    quantised: Quantised | None = None
    hints: tuple[str, ...] = ()  # why references may not agree, and what to do
    values: tuple[StepVerdict, ...] = ()  # asked for by their first name in place of scores: there are no verdicts then
    inputs: int = 0  # that these were computed of
    rounded: Rounded | None = None  # of a file that rounds by itself, where the engine does not
    decisions: tuple[Decision, ...] = ()  # of float64
    undecided: str = ""  # why float64 was asked no further

    @property
    def worst_error(self) -> float | None:
        """The largest error of all inputs; None without inputs."""
        return max((verdict.error for verdict in self.verdicts), key=nan_last, default=None)

    @property
    def mean_error(self) -> float | None:
        """The mean error of all inputs; None without inputs."""
        return math.fsum(verdict.error for verdict in self.verdicts) / len(self.verdicts) if self.verdicts else None

    @property
    def agreement(self) -> float | None:
        """The share of inputs whose best class is the reference's; None without inputs, or without classes."""
        same = [verdict.top1 == verdict.reference_top1 for verdict in self.verdicts if verdict.top1 is not None]
        return sum(same) / len(same) if same else None

    @property
    def distinct(self) -> int:
        """Count the classes that the references answer with; 0 without classes."""
        return len({verdict.reference_top1 for verdict in self.verdicts} - {None})

    @property
    def accuracy(self) -> float | None:
        """The share of labelled inputs whose best class is the label; None without labels."""
        answers = [verdict.correct for verdict in self.verdicts if verdict.correct is not None]
        return sum(answers) / len(answers) if answers else None

    @property
    def first_bad_step(self) -> StepVerdict | None:
        """First step with an error."""
        return next((step for step in self.steps if not step.passed), None)

    @property
    def failures(self) -> tuple[str, ...]:
        """Why the check failed, in one line each; empty when it passed."""
        reasons = []
        bad = [verdict for verdict in self.verdicts if not verdict.passed]
        if bad or not (self.verdicts or self.values):
            reasons.append(
                f"{len(bad)} of {len(self.verdicts)} inputs fail, the first is '{bad[0].name if bad else ''}'"
            )
        if self.control and not self.control.passed:
            reasons.append(
                f"blind: of the references of {len(self.verdicts)} inputs only {self.control.found} differ from each "
                f"other by more than {self.control.margin:g}, and {self.control.needed} must for a wrong answer to be "
                "seen; give inputs of your own with --inputs, or compare values inside the model with --outputs"
            )
        reasons += [f"'{value.names[0]}' is off by {value.error:.3g}" for value in self.values if not value.passed]
        if self.first_bad_step:
            step = self.first_bad_step
            reasons.append(f"the error first appears in '{step.names[-1]}' ({step.error:.3g})")
        if self.quantised and not self.quantised.passed:
            reasons.append(
                f"the mean error {self.quantised.mean_error:.3g} is {self.quantised.ratio:.3g} times that of "
                f"onnxruntime's quantised form, {self.quantised.limit:g} are allowed"
            )
        if self.rounded and not self.rounded.passed:
            reasons.append(
                f"the mean error {self.rounded.mean_error:.3g} beside the file as it stands is more than the "
                f"{self.rounded.tolerance:.3g} that its rounding explains"
            )
        if self.accuracy is not None and not self.accuracy >= self.min_accuracy:
            reasons.append(f"accuracy {self.accuracy:.2%} is below {self.min_accuracy:.2%}")
        return tuple(reasons)

    @property
    def passed(self) -> bool:
        """True without failures."""
        return not self.failures


def judge(
    names: Sequence[str],
    scores: Array,
    references: Array,
    tolerance: float = SCORE_TOLERANCE,
    labels: Sequence[int] | None = None,
    *,
    same_best: bool = True,
    classes: int | None = None,
) -> tuple[InputVerdict, ...]:
    """Return one verdict per row of (N, K) scores; `same_best`: another best class than the reference's fails.

    Where two classes are the reference's best, each of them is right. classes: how many, default K; 0 where the numbers
    are not scores of classes, and nothing is ranked. Raises InputError when the shapes differ.
    """
    errors = score_error(scores, references)
    if classes == 0:
        return tuple(
            InputVerdict(name, float(error), None, None, 0, 0, None, _within(error, tolerance))
            for name, error in zip(names, errors, strict=True)
        )
    ours, theirs = top_classes(scores, _TOP), top_classes(references, _TOP)
    return tuple(
        InputVerdict(
            name=name,
            error=float(errors[i]),
            top1=int(ours[i, 0]),
            reference_top1=int(theirs[i, 0]),
            top5=len(set(ours[i].tolist()) & set(theirs[i].tolist())),
            top5_of=theirs.shape[1],
            label=None if labels is None else int(labels[i]),
            passed=_within(errors[i], tolerance)
            and bool(not same_best or references[i, ours[i, 0]] == references[i, theirs[i, 0]]),
        )
        for i, name in enumerate(names)
    )


def control(references: Array, classes: int, tolerance: float = SCORE_TOLERANCE) -> DistinctReferences:
    """Count the rows of (N, K) references that differ from each other by more than the tolerance, and enough to see.

    classes: as in `judge`; of one or two, references may all be near two answers.
    """
    margin = max(_APART, tolerance if math.isfinite(tolerance) else 0.0)
    needed = 2 if 0 < classes <= 2 else MIN_APART
    kept: list[Array] = []
    for row in references:
        if len(kept) < needed and all(score_error(row[None], other[None])[0] > margin for other in kept):
            kept.append(row)
    return DistinctReferences(len(kept), needed, margin)


def judge_steps(
    values: Iterable[tuple[tuple[str, ...], Array]], references: Mapping[str, Array], tolerance: float = SCORE_TOLERANCE
) -> tuple[StepVerdict, ...]:
    """Return a verdict for every stored value in `references`; values of more rows than the reference are cut."""
    verdicts = []
    for names, value in values:
        if names[-1] in references:
            reference = references[names[-1]]
            rows = value[: len(reference)] if reference.ndim else value
            error = layer_error(rows.reshape(reference.shape), reference)
            verdicts.append(StepVerdict(names, reference.shape, error, _within(error, tolerance)))
    return tuple(verdicts)


def judge_values(
    names: Sequence[tuple[str, ...]],
    values: Sequence[Array],
    references: Sequence[Array],
    tolerance: float = SCORE_TOLERANCE,
) -> tuple[StepVerdict, ...]:
    """Return a verdict for each named value of an input; longer references are cut. Raises InputError."""
    verdicts = []
    for aliases, value, reference in zip(names, values, references, strict=True):
        error = layer_error(value, reference[: len(value)] if value.ndim else reference)
        verdicts.append(StepVerdict(aliases, value.shape, error, _within(error, tolerance)))
    return tuple(verdicts)


def worst_steps(runs: Iterable[Sequence[StepVerdict]]) -> tuple[StepVerdict, ...]:
    """Return per step the worst of several inputs: one that fails, then the largest error; NaN is worst of all."""
    columns = zip(*runs, strict=True)
    return tuple(max(column, key=lambda step: (not step.passed, *nan_last(step.error))) for column in columns)


def nan_last(error: float) -> tuple[bool, float]:
    """Return a sorting key that takes NaN for worse than any number."""
    return math.isnan(error), error


def standard_inputs(shape: tuple[int, ...], mean: Sequence[float], std: Sequence[float]) -> list[NamedInput]:
    """Return ten structured pictures as normalised float32 of a sample's shape (C, H, W). Raises InputError."""
    if len(shape) != 3:
        raise InputError(f"the model takes {shape} numbers, no image: give inputs with --inputs")
    inputs = typical_inputs(STANDARD_INPUTS, shape, mean, std, TESTBENCH_SEED)
    return [NamedInput(f"structured {i}", x) for i, x in enumerate(inputs)]


def labelled_images(folder: Path, classes: Sequence[str]) -> list[tuple[str, int]]:
    """Return (image file, class) of a folder with one folder a label, sorted; a label is a class number or name.

    Raises InputError for a folder without label folders and for a label that is neither.
    """
    if not folder.is_dir():
        raise InputError(f"'{folder}' is not a folder; --images takes a folder with one folder of images a label")
    labels = sorted(path for path in folder.iterdir() if path.is_dir())
    if not labels:
        raise InputError(
            f"folder '{folder}' holds no folders; --images takes a folder with one folder of images a label"
        )
    return [(file, _class_of(path, classes)) for path in labels for file in expand_paths([path])]


def load_labelled(
    files: Iterable[tuple[str, int]], shape: tuple[int, ...], preprocess: Preprocess | None = None
) -> Iterator[NamedInput]:
    """Load the images of `labelled_images` as pixels for a model of one sample's `shape`."""
    for file, _ in files:
        yield NamedInput(file, load_image(Path(file), shape[0], shape[1], shape[2], preprocess))


def mean_times(run: Run, inputs: Sequence[Sample], iterations: Sequence[int]) -> dict[int, float]:
    """Return seconds per run, host to host: for each n the mean over all inputs, each run n times (as S5 does)."""
    means = {}
    for n in iterations:
        start = time.perf_counter()
        for x in inputs:
            for _ in itertools.repeat(None, n):
                run(x[None])
        means[n] = (time.perf_counter() - start) / (n * len(inputs))
    return means


def _within(error: float, tolerance: float) -> bool:
    return bool(error <= tolerance) and math.isfinite(error)


def _class_of(folder: Path, classes: Sequence[str]) -> int:
    name = folder.name
    if name.isascii() and name.isdigit() and int(name) < len(classes):
        return int(name)
    names = [label.casefold() for label in classes]
    wanted = name.replace("_", " ").casefold()
    if wanted in names:
        return names.index(wanted)
    raise InputError(
        f"folder '{folder}' is no label of this model: expected a class number below {len(classes)} or a class name "
        f"such as '{classes[0]}'; --labels FILE gives other names"
    )
