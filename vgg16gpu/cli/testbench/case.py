"""What a testbench asks of a model: its inputs, their labels, the references, and what an answer has to be like."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np

from vgg16gpu.checks.accuracy import ADMITTED_ERRORS, SCORE_TOLERANCE, SCORE_TOLERANCES, score_error
from vgg16gpu.checks.hints import reference_hints
from vgg16gpu.checks.nearer import MOST, Float64Judge
from vgg16gpu.checks.onnxruntime_oracle import Oracle
from vgg16gpu.checks.qdq_oracle import QuantisedOracle
from vgg16gpu.checks.quantised_file import Edit, rounds_values, without_rounding
from vgg16gpu.checks.references import References, StoredReferences, find_stored, read_references
from vgg16gpu.checks.testbench import (
    AnswersReport,
    InputVerdict,
    Quantised,
    StepVerdict,
    control,
    judge,
    labelled_images,
    load_labelled,
    standard_inputs,
)
from vgg16gpu.cli.common.model_notes import ModelNotes, model_notes
from vgg16gpu.cli.common.options import DEFAULT_MODELS, TESTBENCH_MODELS, find_model
from vgg16gpu.cli.common.preprocess_options import PixelOptions
from vgg16gpu.cli.testbench.readable import read_each
from vgg16gpu.cli.testbench.recorded import contradicted, recorded
from vgg16gpu.cli.testbench.rounding import AsItStands, Tracked
from vgg16gpu.cli.testbench.sources import LazyInput, sources
from vgg16gpu.compiler.class_scores import class_count
from vgg16gpu.compiler.graph.graph import Graph, infer_shapes
from vgg16gpu.compiler.graph.input_size import open_shape, resolve_input_shape
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.compiler.model import Model
from vgg16gpu.compiler.quantization.scale_file import read_scales
from vgg16gpu.errors import InputError
from vgg16gpu.io.normalize import normalise
from vgg16gpu.io.preprocessing import Preprocess
from vgg16gpu.io.scores import Scores
from vgg16gpu.io.shipped import is_digits
from vgg16gpu.pictures.inputs import NamedInput, spec_of
from vgg16gpu.runtime.outputs import Outputs
from vgg16gpu.zoo.digits import heldout

_MAKE_OPTIONS = " --size 244"
ONNXRUNTIME = Path("onnxruntime")  # --references: compute them, also where the package has them stored
_Input = TypeVar("_Input")

DIGITS_ACCURACY = 0.98  # what the shipped net must reach on the images that it never saw


@dataclass(frozen=True)
class TestbenchOptions:
    """The command line, as it is."""

    model: str | None = None
    device: str = "auto"
    precision: str = "fp32"
    kernels: str = "auto"
    batch: int | None = None
    size: tuple[int, int] | None = None
    outputs: tuple[str, ...] | None = None
    inputs: Path | None = None
    references: Path | None = None
    images: Path | None = None
    save: Path | None = None
    layers: bool = False
    iterations: tuple[int, ...] = ()
    tolerance: float | None = None
    min_accuracy: float | None = None
    output: Path | None = None
    pixels: PixelOptions = field(default_factory=PixelOptions)
    labels: Path | None = None
    as_json: bool = False

    @property
    def bound(self) -> float:
        """The largest error that passes: --tolerance in place of what the precision promises."""
        return SCORE_TOLERANCES[self.precision] if self.tolerance is None else self.tolerance

    @property
    def asks_float64(self) -> bool:
        """Return whether float64 decides what fails: in fp32, beside onnxruntime's answers, without --tolerance."""
        return self.precision == "fp32" and self.tolerance is None and self.reference_file is None

    @property
    def asks_onnxruntime(self) -> bool:
        """Return whether --references says that onnxruntime computes them: no file of that name exists."""
        return self.references == ONNXRUNTIME and not ONNXRUNTIME.exists()

    @property
    def reference_file(self) -> Path | None:
        """The file of --references."""
        return None if self.asks_onnxruntime else self.references


@dataclass(frozen=True, eq=False)
class Bench:
    """A model and what it is asked."""

    model: Model
    graph: Graph
    shape: tuple[int, ...]  # of one sample
    batch: int  # inputs of a run
    notes: ModelNotes
    inputs: Sequence[NamedInput]
    labels: Sequence[int] | None = None
    references: References | None = None  # those of --references
    classes: int = 0  # that the first output has scores of
    has_control: bool = False  # the inputs are the standard ones: `Control` says whether they see anything
    min_accuracy: float = 0.0
    outputs: tuple[str, ...] | None = None  # what --outputs names, in place of scores
    stored: StoredReferences | None = None  # those of the package
    left_out: tuple[str, ...] = ()  # why inputs cannot be read
    size: tuple[int, int] | None = None  # --size, else that of the record of --references
    contradiction: str = ""  # what the user says and the record of --references denies

    @property
    def values(self) -> tuple[str, ...]:
        """The ONNX values that are compared in place of scores; none without --outputs."""
        return self.graph.outputs if self.outputs else ()

    @property
    def names(self) -> list[str]:
        """Names of the inputs; no image is decoded for them."""
        return self.inputs.names if isinstance(self.inputs, LabelledImages) else [item.name for item in self.inputs]

    @property
    def known_scores(self) -> Scores | None:
        """The references that need not be computed: those of --references, or of the package."""
        known = self.references or self.stored
        return known.scores if known else None

    @property
    def preprocess(self) -> dict[str, Any] | None:
        """Preprocessing of pictures and pixels; None where all inputs are numbers."""
        pictures = isinstance(self.inputs, LabelledImages)
        has_pixels = pictures or any(item.array.dtype == np.uint8 for item in self.inputs)
        if not has_pixels or self.notes.preprocess is None:
            return None
        return self.notes.preprocess.report(*self.shape[1:], pictures=pictures)

    @cached_property
    def unrounded(self) -> Edit | None:
        """Edit that removes a file's own rounding to integers; None without any."""
        return without_rounding if rounds_values(self.model.file.model) else None

    @property
    def has_scales(self) -> bool:
        """Return whether the file itself rounds what is computed: then int8 takes its scales."""
        return bool(self.model.graph("int8", self.outputs).integers)

    def numbers(self, item: NamedInput) -> Array:
        """Return one input as (1, ...) float32 in the order of the file, normalised on the host when it is pixels."""
        if item.array.dtype == np.uint8 and self.notes.preprocess:
            mean, std = self.notes.preprocess.unit_mean, self.notes.preprocess.unit_std
            pixels = normalise(item.array.astype(np.uint8), mean, std)[None]
            return np.ascontiguousarray(self.graph.input.to_file(pixels))
        return item.array.astype(np.float32)[None]

    def exact(self, inputs: Iterable[NamedInput]) -> Array:
        """Return the float32 scores of onnxruntime. Raises Error without onnxruntime."""
        oracle = Oracle(self.model.path, edit=self.unrounded, file=self.model.file)
        return _rows(oracle.scores(self.numbers(item)) for item in inputs)

    def quantised(self, inputs: Iterable[NamedInput]) -> Array:
        """Return the scores of onnxruntime's quantised form with the model's scales. Raises ModelError without scales.

        A file with scales of its own is that form.
        """
        if self.has_scales:
            oracle = Oracle(self.model.path, file=self.model.file)
            return _rows(oracle.scores(self.numbers(item)) for item in inputs)
        form = QuantisedOracle(self.graph, read_scales(self.model.path, self.graph))
        return _rows(form.scores(self.graph.input.from_file(self.numbers(item))) for item in inputs)


@dataclass
class TestbenchCase:
    """What any run of a testbench comes to; what its answers are, subclasses have."""

    precision: str
    kernels: str
    stands: AsItStands | None = field(default=None, kw_only=True)
    steps: tuple[StepVerdict, ...] = field(default=(), kw_only=True)
    times: dict[int, float] = field(default_factory=dict, kw_only=True)
    facts: dict[str, Any] = field(default_factory=dict, kw_only=True)


@dataclass
class Outcome(TestbenchCase):
    """The scores of a model."""

    scores: Array
    references: Array
    quantised: Array | None = None  # the scores of onnxruntime's quantised form, for int8


def prepare(options: TestbenchOptions) -> Bench:
    """Find the model, the inputs and stored references, and check that they fit. Raises ModelError and InputError."""
    model = Model(_find(options.model))
    graph = model.graph(outputs=options.outputs)
    batch = options.batch or graph.input.shape[0] or 1
    record = recorded(options.reference_file)
    size = options.size
    if record and record.size and size is None and None in open_shape(graph)[2:]:
        size = record.size
    shape = resolve_input_shape(graph, batch, size)
    notes = model_notes(model, graph, shape, options.pixels, options.labels)
    denied = ""
    if record and record.preprocess and notes.preprocess and record.preprocess.channels == notes.preprocess.channels:
        if not options.pixels.given:
            notes = replace(notes, preprocess=record.preprocess)
        given = (*options.pixels.given, *(["--size"] if options.size else []))
        denied = contradicted(record, notes.preprocess or record.preprocess, shape[2:], given)
    bench = _prepared(options, model, graph, batch, shape, notes)
    return replace(bench, size=size, contradiction=denied)


def _prepared(
    options: TestbenchOptions, model: Model, graph: Graph, batch: int, shape: tuple[int, ...], notes: ModelNotes
) -> Bench:
    sample = shape[1:]
    if options.outputs:
        inputs, left_out = _unlabelled(options, graph, sample, notes)
        return Bench(model, graph, sample, batch, notes, inputs, outputs=options.outputs, left_out=left_out)
    classes, numbers = _classes(graph, shape)
    # Complains of --labels even where no name is shown.
    names = notes.names(classes) if classes or options.labels else ()
    if options.images:
        if not classes:
            raise InputError(
                f"output '{graph.outputs[0]}' of {numbers} numbers an input has no scores of classes, which --images "
                "are of; give the images with --inputs"
            )
        files = labelled_images(options.images, names)
        given = _references(options.reference_file, [file for file, _ in files], numbers)
        readable = read_each(_answered(files, given), partial(_checked, sample, notes.preprocess), given)
        images = LabelledImages(readable.values, sample, notes.preprocess)
        labels, accuracy = [label for _, label in readable.values], options.min_accuracy or 0.0
        return Bench(
            *(model, graph, sample, batch, notes, images, labels, readable.references, classes),
            min_accuracy=accuracy,
            left_out=readable.problems,
        )
    if options.inputs:
        found = _sources(options.inputs, graph, sample, notes)
        given = _references(options.reference_file, [source.name for source in found], numbers)
        read = read_each(_answered(found, given), LazyInput.read, given)
        return Bench(
            *(model, graph, sample, batch, notes, read.values, None, read.references, classes), left_out=read.problems
        )
    inputs, _ = _unlabelled(options, graph, sample, notes)
    bench = Bench(model, graph, sample, batch, notes, inputs, None, None, classes, has_control=True)
    if is_digits(options.model):
        _, _, targets = heldout()
        accuracy = DIGITS_ACCURACY if options.min_accuracy is None else options.min_accuracy
        bench = replace(bench, labels=targets.tolist(), min_accuracy=accuracy)
    if options.asks_onnxruntime or options.layers or options.precision == "int8":
        return bench
    return replace(bench, stored=_stored(bench, numbers))


def _stored(bench: Bench, numbers: int) -> StoredReferences | None:
    """Return the package's references for this model, if they are for the very numbers that it is asked."""
    stored = find_stored(bench.model.file, bench.shape, numbers)
    if stored is None or len(stored.scores) != len(bench.inputs):
        return None
    asked = np.concatenate([bench.numbers(item) for item in bench.inputs])
    return stored if np.array_equal(asked, stored.normalised()) else None


def _unlabelled(
    options: TestbenchOptions, graph: Graph, sample: tuple[int, ...], notes: ModelNotes
) -> tuple[list[NamedInput], tuple[str, ...]]:
    """Return the user's inputs, and why some cannot be read; else the shipped net's digits or standard inputs."""
    if options.inputs:
        read = read_each(_sources(options.inputs, graph, sample, notes), LazyInput.read)
        return read.values, read.problems
    if is_digits(options.model):
        return [NamedInput(f"digit {i}", x) for i, x in enumerate(heldout()[0])], ()
    return [
        replace(item, array=graph.input.to_file(item.array.astype(np.float32)[None])[0])
        for item in standard_inputs(sample, notes.mean or (), notes.std or ())
    ], ()


def _checked(sample: tuple[int, ...], preprocess: Preprocess | None, labelled: tuple[str, int]) -> tuple[str, int]:
    """Return a labelled image that can be read; it is decoded again when it is its turn. Raises InputError."""
    next(load_labelled([labelled], sample, preprocess))
    return labelled


def _sources(path: Path, graph: Graph, sample: tuple[int, ...], notes: ModelNotes) -> list[LazyInput]:
    return sources(path, spec_of(graph.input, sample, notes.preprocess))


def first_output(outputs: Outputs) -> Array:
    """Return the scores of a run, (N, K): the first of the model's outputs."""
    return _rows(outputs[:1] if isinstance(outputs, tuple) else [outputs])


def _rows(outputs: Iterable[Array]) -> Array:
    """Concatenate outputs as (N, K): what has no more than a row of scores, (N, K, 1, 1), is a row."""
    return np.concatenate([output.reshape(len(output), -1) for output in outputs])


def judged(bench: Bench, outcome: Outcome, tolerance: float, tracked: Tracked | None = None) -> AnswersReport:
    """Return the verdict on the scores; with `tracked` float64 decides on what fails."""
    verdicts = judge(
        bench.names,
        outcome.scores,
        outcome.references,
        tolerance,
        bench.labels,
        same_best=outcome.precision == "fp32",
        classes=bench.classes,
    )
    by_float64 = Float64Judge(bench.model.file, edit=bench.unrounded)
    if tracked:
        verdicts = _decided(bench, verdicts, outcome, by_float64, tracked)
    quantised = None
    if outcome.quantised is not None:
        means = (score_error(y, outcome.references).mean() for y in (outcome.scores, outcome.quantised))
        quantised = Quantised(*map(float, means))
    hints = _hints(bench, outcome, tolerance)
    stands = outcome.stands
    rounded = stands.judge([(row[None],) for row in outcome.scores], outcome.precision) if stands else None
    promised = SCORE_TOLERANCES[outcome.precision]
    seen = control(outcome.references, bench.classes, promised) if bench.has_control else None
    return AnswersReport(
        *(verdicts, outcome.steps, tolerance, seen, bench.min_accuracy, quantised, hints),
        rounded=rounded,
        decisions=tuple(by_float64.decisions),
        undecided=by_float64.problem,
    )


def _decided(
    bench: Bench, verdicts: Sequence[InputVerdict], outcome: Outcome, by_float64: Float64Judge, tracked: Tracked
) -> tuple[InputVerdict, ...]:
    """Return the verdicts after float64 has decided on those that fail."""
    found = list(verdicts)
    failing = [i for i, verdict in enumerate(verdicts) if not verdict.passed][: MOST + 1]
    for i, item in zip(failing, tracked([bench.inputs[i] for i in failing], "float64"), strict=True):
        ours, theirs = (rows[i : i + 1] for rows in (outcome.scores, outcome.references))
        found[i] = by_float64.scores(found[i], ours, theirs, bench.numbers(item), SCORE_TOLERANCE)
    return tuple(found)


def _hints(bench: Bench, outcome: Outcome, tolerance: float) -> tuple[str, ...]:
    """Return what may be wrong with --references; int8, without a tolerance, is compared by the benchmark's bound."""
    if not bench.references:
        return ()
    promised = SCORE_TOLERANCES[outcome.precision]
    bound = promised if math.isfinite(promised) else ADMITTED_ERRORS[outcome.precision]
    replaced = tolerance if math.isfinite(tolerance) else 0.0
    found = reference_hints(bench.names, outcome.scores, outcome.references, max(bound, replaced))
    return (bench.contradiction, *found) if bench.contradiction and bench.preprocess else found


def _find(name: str | None) -> Path:
    """Return --model, else a VGG16 of 244 pixels, else the model that other commands take, which is printed."""
    path = find_model(name, (*TESTBENCH_MODELS, *DEFAULT_MODELS), _MAKE_OPTIONS)
    if name is None and str(path) not in TESTBENCH_MODELS:
        click.echo(
            f"testbench: takes {path}, as {', '.join(TESTBENCH_MODELS[:-1])} and {TESTBENCH_MODELS[-1]} do not exist; "
            f"`python -m vgg16gpu model make{_MAKE_OPTIONS}` makes one",
            err=True,
        )
    return path


class LabelledImages(Sequence[NamedInput]):
    """Images of known class, decoded when they are asked for."""

    def __init__(self, files: Sequence[tuple[str, int]], shape: tuple[int, ...], preprocess: Preprocess | None) -> None:
        self._files, self._shape, self._preprocess = files, shape, preprocess

    @property
    def names(self) -> list[str]:
        """The files."""
        return [file for file, _ in self._files]

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return LabelledImages(self._files[index], self._shape, self._preprocess)
        return next(load_labelled([self._files[index]], self._shape, self._preprocess))


def _classes(graph: Graph, shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the classes of the first output, 0 without any, and the numbers of one input. Raises InputError."""
    output = infer_shapes(graph, shape)[graph.outputs[0]]
    if output[:1] != shape[:1]:
        raise InputError(
            f"output '{graph.outputs[0]}' has shape {output}; a testbench needs a row for each of {shape[0]} inputs"
        )
    return class_count(output), math.prod(output[1:])


def _references(path: Path | None, names: Sequence[str], numbers: int) -> References | None:
    return None if path is None else read_references(path, names, numbers)


def _answered(inputs: Sequence[_Input], references: References | None) -> list[_Input]:
    """Return the inputs that have a reference: of the others nothing is read."""
    if references is None:
        return list(inputs)
    return [item for item, has_one in zip(inputs, references.answered, strict=True) if has_one]
