"""`testbench`: the answers of an engine against onnxruntime's, or against given references."""

from __future__ import annotations

import itertools
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import numpy as np

from vgg16gpu import __version__
from vgg16gpu.accuracy import SCORE_TOLERANCE
from vgg16gpu.cli.options import (
    DIGITS,
    ModelNotes,
    device_option,
    find_model,
    json_option,
    model_notes,
    parse_counts,
    pixel_options,
    size_option,
)
from vgg16gpu.cli.show import add_row, console, heading, print_json, progress, seconds, table
from vgg16gpu.engine import Engine
from vgg16gpu.errors import InputError
from vgg16gpu.fit import resolve_input_shape
from vgg16gpu.graph import Array, Graph, infer_shapes
from vgg16gpu.inputs import InputSpec, NamedInput, read_inputs
from vgg16gpu.normalise import normalise
from vgg16gpu.prepare import Request, load_graph
from vgg16gpu.reference import Oracle
from vgg16gpu.scores import check_writable, finite_or_none, write_text
from vgg16gpu.testbench import (
    MIN_DISTINCT,
    Report,
    StepVerdict,
    judge,
    judge_steps,
    labelled_images,
    load_labelled,
    mean_times,
    nan_last,
    read_references,
    standard_inputs,
    worst_steps,
)
from vgg16gpu.zoo.digits import heldout
from vgg16gpu.zoo.files import atomic_writer

DEFAULT_MODELS = ("models/vgg16-244.onnx", "vgg16-244.onnx")
DIGITS_ACCURACY = 0.98  # what the shipped net must reach on the images that it never saw
_LAYER_INPUTS = 10  # inputs that --layers checks, at most
_SHOWN = 20  # rows of the table of inputs; failing ones are always shown


@dataclass(frozen=True)
class Options:
    """The command line, as it is."""

    model: str | None
    device: str
    size: tuple[int, int] | None
    inputs: Path | None
    references: Path | None
    images: Path | None
    save: Path | None
    layers: bool
    iterations: tuple[int, ...]
    tolerance: float
    min_accuracy: float | None
    output: Path | None
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    labels: Path | None
    as_json: bool


@dataclass(frozen=True, eq=False)
class Bench:
    """A model and what it is asked."""

    path: Path
    graph: Graph
    shape: tuple[int, ...]  # of one sample
    notes: ModelNotes
    inputs: Sequence[NamedInput]
    labels: Sequence[int] | None = None
    references: Array | None = None
    min_distinct: int = 0
    min_accuracy: float = 0.0

    @property
    def batch(self) -> int:
        """The model's batch where it is fixed, else 1."""
        return self.graph.input.shape[0] or 1

    def numbers(self, item: NamedInput) -> Array:
        """One input as (1, ...) float32, normalised on the host when it is pixels."""
        if item.array.dtype == np.uint8:
            return normalise(item.array.astype(np.uint8), self.notes.mean, self.notes.std)[None]
        return item.array.astype(np.float32)[None]


@dataclass
class Outcome:
    """What was measured."""

    scores: Array
    references: Array
    steps: tuple[StepVerdict, ...] = ()
    times: dict[int, float] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


@click.command("testbench")
@click.option("--model", metavar="FILE", help="ONNX file, or 'digits'. Default: models/vgg16-244.onnx.")
@device_option
@size_option
@click.option("--inputs", type=click.Path(path_type=Path), metavar="FILE", help="Your inputs: .txt, .npy or .npz.")
@click.option("--references", type=click.Path(path_type=Path), metavar="FILE", help="Their scores: .txt or .npy.")
@click.option("--images", type=click.Path(path_type=Path), metavar="DIR", help="One folder of images a label.")
@click.option("--save", type=click.Path(path_type=Path), metavar="DIR", help="Write input.txt and output.txt there.")
@click.option("--layers", is_flag=True, help="Also compare what every step stores, on up to ten inputs.")
@click.option("--iterations", callback=parse_counts, metavar="COUNTS", help="Also mean times, as 1,5,500.")
@click.option(
    "--tolerance", type=click.FloatRange(0), default=SCORE_TOLERANCE, show_default=True, help="Largest error to pass."
)
@click.option("--min-accuracy", type=click.FloatRange(0, 1), help="Share of labelled images that must be right.")
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the report as JSON.")
@pixel_options
@json_option
@click.pass_context
def testbench_command(ctx: click.Context, /, **options: Any) -> None:
    """Check scores against onnxruntime: ten structured pictures, or your inputs, or labelled images.

    An input passes when max|y - r| / max|r| of its scores is within the tolerance and the best class is the
    reference's. Without --references onnxruntime computes them. `--model digits` checks the shipped net on the
    handwritten digits that it was not trained on. Exit code 1 when anything fails.
    """
    request = Options(**options)
    _check_options(request)
    bench = _prepare(request)
    outcome = _run(bench, request)
    report = Report(
        judge(
            [item.name for item in bench.inputs], outcome.scores, outcome.references, request.tolerance, bench.labels
        ),
        outcome.steps,
        request.tolerance,
        bench.min_distinct,
        bench.min_accuracy,
    )
    content = _content(bench, outcome, report)
    if request.output:
        with atomic_writer(request.output) as file:
            file.write(json.dumps(finite_or_none(content), indent=2).encode() + b"\n")
    print_json(content) if request.as_json else _print(bench, outcome, report)
    ctx.exit(0 if report.passed else 1)


def _check_options(options: Options) -> None:
    if options.inputs and options.images:
        raise click.UsageError("--inputs and --images exclude each other")
    if options.references and not options.inputs:
        raise click.UsageError("--references are for --inputs: give both")
    if options.save and options.images:
        raise click.UsageError("--save writes inputs as numbers: it goes with the standard inputs or --inputs")
    if options.output:
        check_writable(options.output)


def _prepare(options: Options) -> Bench:
    path = find_model(options.model, DEFAULT_MODELS, " --size 244")
    graph = load_graph(Request(path))
    shape = resolve_input_shape(graph, graph.input.shape[0] or 1, options.size)
    notes = model_notes(path, shape[1], options.mean, options.std, options.labels)
    classes = _classes(graph, shape)
    sample = shape[1:]
    if options.images:
        files = labelled_images(options.images, notes.names(classes))
        inputs: Sequence[NamedInput] = _Lazy(files, sample)
        labels = [label for _, label in files]
        return Bench(path, graph, sample, notes, inputs, labels, min_accuracy=options.min_accuracy or 0.0)
    if options.inputs:
        inputs = list(read_inputs([options.inputs], InputSpec(sample)))
        references = _references(options.references, len(inputs), classes)
        return Bench(path, graph, sample, notes, inputs, references=references)
    if options.model == DIGITS and not Path(DIGITS).exists():
        pixels, _, targets = heldout()
        inputs = [NamedInput(f"digit {i}", x) for i, x in enumerate(pixels)]
        accuracy = DIGITS_ACCURACY if options.min_accuracy is None else options.min_accuracy
        return Bench(path, graph, sample, notes, inputs, targets.tolist(), None, MIN_DISTINCT, accuracy)
    inputs = standard_inputs(sample, notes.mean, notes.std)
    return Bench(path, graph, sample, notes, inputs, min_distinct=min(MIN_DISTINCT, classes))


class _Lazy(Sequence[NamedInput]):
    """Labelled images, decoded when they are asked for."""

    def __init__(self, files: Sequence[tuple[str, int]], shape: tuple[int, ...]) -> None:
        self._files, self._shape = files, shape

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return _Lazy(self._files[index], self._shape)
        return next(load_labelled([self._files[index]], self._shape))


def _classes(graph: Graph, shape: tuple[int, ...]) -> int:
    output = infer_shapes(graph, shape)[graph.outputs[0]]
    if len(output) != 2:
        raise InputError(f"output '{graph.outputs[0]}' has shape {output}; a testbench needs (N, classes)")
    return output[1]


def _references(path: Path | None, count: int, classes: int) -> Array | None:
    if path is None:
        return None
    references = read_references(path, count)
    if references.shape[1] != classes:
        raise InputError(
            f"references '{path}' have {references.shape[1]} scores for each of {count} inputs, the model {classes}"
        )
    return references


def _run(bench: Bench, options: Options) -> Outcome:
    with progress(quiet=options.as_json) as bar:
        # References first, and their session gone before the engine's weights come: half the memory.
        references = bench.references
        if references is None:
            oracle = Oracle(bench.path)
            each = bar.track(bench.inputs, description="onnxruntime")
            references = np.concatenate([oracle.scores(bench.numbers(item)) for item in each])
            del oracle
        if options.save:
            _save(options.save, bench, references)
        expected = _expected_values(bench) if options.layers else []
        with _engine(bench, options) as engine:
            each = bar.track(bench.inputs, description=engine.device.facts.kind)
            scores = np.concatenate([_first(engine.run(item.array[None])) for item in each])
            outcome = Outcome(scores, references)
            if options.layers:
                outcome.steps = _steps(engine, bench, options.tolerance, expected)
            outcome.times = mean_times(engine.run, [item.array for item in bench.inputs], options.iterations)
            outcome.facts = _facts(engine)
    return outcome


def _engine(bench: Bench, options: Options) -> Engine:
    return Engine(
        bench.path,
        device=options.device,
        batch=bench.batch,
        size=options.size,
        mean=bench.notes.mean if len(bench.shape) == 3 else None,
        std=bench.notes.std if len(bench.shape) == 3 else None,
        keep_values=options.layers,
    )


def _first(outputs: Array | tuple[Array, ...]) -> Array:
    return outputs[0] if isinstance(outputs, tuple) else outputs


def _expected_values(bench: Bench) -> list[str]:
    """The ONNX values that steps store: all but the input."""
    return [op.y for op in bench.graph.ops]


def _steps(engine: Engine, bench: Bench, tolerance: float, names: list[str]) -> tuple[StepVerdict, ...]:
    oracle = Oracle(bench.path, names)
    runs = []
    for item in itertools.islice(iter(bench.inputs), _LAYER_INPUTS):
        engine.run(item.array[None])
        runs.append(judge_steps(engine.read_values(), oracle.values(bench.numbers(item), names), tolerance))
    return worst_steps(runs)


def _save(folder: Path, bench: Bench, references: Array) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"'{folder}' cannot be made: {error.strerror or error}") from error
    with atomic_writer(folder / "input.txt") as file:
        for item in bench.inputs:
            write_text(file, bench.numbers(item))
    with atomic_writer(folder / "output.txt") as file:
        write_text(file, references)


def _facts(engine: Engine) -> dict[str, Any]:
    versions = {"vgg16gpu": __version__, "python": platform.python_version(), "numpy": np.__version__}
    for package in ("onnx", "onnxruntime", "pycuda"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "versions": versions,
        "device": vars(engine.device.facts),
        "device_choice": engine.device_choice,
    }


def _content(bench: Bench, outcome: Outcome, report: Report) -> dict[str, Any]:
    return {
        "passed": report.passed,
        "failures": list(report.failures),
        "model": str(bench.path),
        "note": bench.notes.note,
        "tolerance": report.tolerance,
        "worst_error": max((verdict.error for verdict in report.verdicts), key=nan_last, default=None),
        "inputs_passed": sum(verdict.passed for verdict in report.verdicts),
        "distinct_answers": report.distinct,
        "accuracy": report.accuracy,
        "inputs": [vars(verdict) for verdict in report.verdicts],
        "steps": [vars(step) for step in report.steps],
        "mean_run_s": outcome.times,
        "environment": outcome.facts,
    }


def _print(bench: Bench, outcome: Outcome, report: Report) -> None:
    screen = console()
    heading(screen, f"{bench.path}: errors are max|y - r| / max|r|, tolerance {report.tolerance:g}")
    screen.print(_input_table(report))
    if report.steps:
        heading(screen, "Steps: ||y - r|| / ||r|| of what each stores, the worst input")
        screen.print(_step_table(report))
    for iterations, mean in outcome.times.items():
        screen.print(f"Mean of {len(bench.inputs)} inputs x {iterations}: {seconds(mean)} a run, host to host")
    if report.accuracy is not None:
        screen.print(f"Accuracy: {report.accuracy:.2%} of {len(report.verdicts)} labelled inputs")
    screen.print(f"Device: {outcome.facts['device_choice']}", markup=False)
    if bench.notes.note:
        screen.print(f"Note: {bench.notes.note}", markup=False)
    passed = sum(verdict.passed for verdict in report.verdicts)
    for reason in report.failures:
        screen.print(f"FAIL: {reason}", style="bold red", markup=False)
    if report.passed:
        text = f"PASS: {passed} of {len(report.verdicts)} inputs, {report.distinct} different answers"
        screen.print(text, style="bold green", markup=False)


def _input_table(report: Report) -> Any:
    result = table(
        ["input", "error", "top-1", "reference", "top-5 shared", "label", "verdict"],
        right=["error", "top-1", "reference", "top-5 shared", "label"],
    )
    shown = [v for i, v in enumerate(report.verdicts) if i < _SHOWN or not v.passed]
    for verdict in shown:
        add_row(
            result,
            verdict.name,
            f"{verdict.error:.2e}",
            verdict.top1,
            verdict.reference_top1,
            f"{verdict.top5} of {verdict.top5_of}",
            "" if verdict.label is None else verdict.label,
            "PASS" if verdict.passed else "FAIL",
            style=None if verdict.passed else "red",
        )
    if len(shown) < len(report.verdicts):
        result.caption_justify = "left"
        result.caption = f"{len(report.verdicts) - len(shown)} more inputs pass"
    return result


def _step_table(report: Report) -> Any:
    result = table(
        ["ONNX value", "computes", "shape", "error", "verdict"],
        right=["computes", "error"],
    )
    for step in report.steps:
        first = step is report.first_bad_step
        verdict = "PASS" if step.passed else "FAIL, first" if first else "FAIL"
        style = None if step.passed else "red"
        count = f"{len(step.names)} values"
        add_row(result, step.names[-1], count, _times(step.shape), f"{step.error:.2e}", verdict, style=style)
    return result


def _times(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
