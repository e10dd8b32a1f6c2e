"""`testbench`: the answers of an engine against onnxruntime's, or against given references."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.progress import Progress

from vgg16gpu.bench.measure.environment import environment
from vgg16gpu.checks.accuracy import SCORE_TOLERANCES
from vgg16gpu.checks.nearer import Float64Judge
from vgg16gpu.checks.onnxruntime_oracle import Oracle
from vgg16gpu.checks.testbench import StepVerdict, judge_steps, mean_times, worst_steps
from vgg16gpu.cli import EXIT_CHECK_FAILED
from vgg16gpu.cli.common.left_out import tell_left_out
from vgg16gpu.cli.common.options import (
    batch_option,
    device_option,
    json_option,
    kernels_option,
    labels_option,
    model_argument,
    outputs_option,
    precision_option,
    size_option,
)
from vgg16gpu.cli.common.parsing import Real, parse_counts
from vgg16gpu.cli.common.preprocess_options import preprocess_options
from vgg16gpu.cli.common.show import print_json, progress
from vgg16gpu.cli.common.tell import tell
from vgg16gpu.cli.common.written import WritingCommand
from vgg16gpu.cli.testbench.case import Bench, Outcome, TestbenchOptions, first_output, judged, prepare
from vgg16gpu.cli.testbench.report import content_of, print_report
from vgg16gpu.cli.testbench.rounding import Tracked, as_it_stands
from vgg16gpu.cli.testbench.values import ValueOutcome, engine_values, exact_values, judged_values, quantised_values
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.errors import InputError
from vgg16gpu.io.files import atomic_writer, check_writable
from vgg16gpu.io.scores import finite_or_none, write_text
from vgg16gpu.pictures.inputs import NamedInput, batched
from vgg16gpu.runtime.engine import Engine

_PROMISED = ", ".join(
    f"{bound:g} in {precision}" for precision, bound in SCORE_TOLERANCES.items() if math.isfinite(bound)
)
_TOLERANCE_HELP = f"Largest error to pass, in place of what is promised: {_PROMISED}."
_INPUTS_HELP = "Your inputs: .txt, .npy, .npz, a picture or a folder of pictures."
_REFERENCES_HELP = (
    "Their scores, as `infer --output` writes them (.csv, .jsonl and .parquet with --scores, .npy, .npz, .txt, .json). "
    "Rows are found by name where they have names, else by place. The word onnxruntime: have it compute them, also "
    "where the package has them stored."
)
_LAYER_INPUTS = 10  # inputs that --layers checks, at most


@click.command("testbench", cls=WritingCommand)
@model_argument()
@device_option
@precision_option
@kernels_option
@batch_option()
@size_option
@outputs_option
@click.option("--inputs", type=click.Path(path_type=Path), metavar="PATH", help=_INPUTS_HELP)
@click.option("--references", type=click.Path(path_type=Path), metavar="FILE|onnxruntime", help=_REFERENCES_HELP)
@click.option("--images", type=click.Path(path_type=Path), metavar="DIR", help="One folder of images a label.")
@click.option("--save", type=click.Path(path_type=Path), metavar="DIR", help="Write input.txt and output.txt there.")
@click.option("--layers", is_flag=True, help="Also compare what every step stores, on up to ten inputs.")
@click.option("--iterations", callback=parse_counts, metavar="COUNTS", help="Also mean times, as 1,5,500.")
@click.option("--tolerance", type=Real(0), help=_TOLERANCE_HELP)
@click.option("--min-accuracy", type=Real(0, 1), help="Share of labelled images that must be right, 0 to 1.")
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the report as JSON.")
@preprocess_options
@labels_option
@json_option
@click.pass_context
def testbench_command(ctx: click.Context, /, **options: Any) -> None:
    """Check scores against onnxruntime: ten structured pictures, or your inputs, or labelled images.

    An input passes when max|y - r| / max|r| of its scores is within the tolerance and, in fp32, the best class is the
    reference's; in int8 the mean error must not exceed 1.1 times that of onnxruntime's quantised form with the same
    scales. With --outputs the values that it names are compared, each by ||y - r|| / ||r||.

    In fp32 without --tolerance and --references float64 decides on an answer that is beyond the tolerance by rounding:
    it passes if it is nearer than onnxruntime's to what ONNX's evaluator computes in float64. That takes some 5 s for
    each such input of VGG16, and is done until one fails, for 20 of them at most.

    Without --references onnxruntime computes the references. It need not be installed for digits, and for VGG16 as
    `model make` writes it (224 and 244 pixels): the package has its scores stored. Inputs of your own, int8, --layers
    and --outputs need it in any case. Pictures get the size and the preprocessing that the record of --references
    (FILE.run.json) has, where no option says otherwise. An input whose row in --references is NaN is told and not
    compared; where rows look rounded, softmaxed or shuffled, a hint says so.

    Without MODEL, an ONNX file, it takes a VGG16 of 244 pixels, else the one that infer takes. `testbench digits`
    checks the shipped net on the handwritten digits that it was not trained on.
    An input that cannot be read is told and left out. Exit code 1 when anything fails, or is left out.

    A file that rounds values by itself (QuantizeLinear) is compared twice in the precisions that do not round: with
    what onnxruntime gives without the rounding, and, within what noise of its size does, with the file as it stands.
    """
    request = TestbenchOptions(**options)
    _check_options(request)
    bench = prepare(request)
    tell_left_out(bench.left_out)
    if bench.contradiction and bench.preprocess:
        tell(f"warning: {bench.contradiction}")
    outcome = _run(bench, request)
    with progress(quiet=request.as_json) as bar:
        by_float64 = partial(_tracked, bar) if request.asks_float64 else None
        if isinstance(outcome, ValueOutcome):
            report = judged_values(bench, outcome, request.bound, by_float64)
        else:
            report = judged(bench, outcome, request.bound, by_float64)
    content = content_of(bench, outcome, report)
    if request.output:
        with atomic_writer(request.output) as file:
            file.write(json.dumps(finite_or_none(content), indent=2).encode() + b"\n")
    print_json(content) if request.as_json else print_report(bench, outcome, report)
    ctx.exit(0 if report.passed and not bench.left_out else EXIT_CHECK_FAILED)


def _check_options(options: TestbenchOptions) -> None:
    if options.inputs and options.images:
        raise click.UsageError("--inputs and --images exclude each other")
    if options.reference_file and not (options.inputs or options.images):
        raise click.UsageError("--references are for --inputs or --images: give both")
    if options.tolerance is not None and math.isnan(options.tolerance):
        raise click.UsageError("--tolerance is nan, which nothing is within; give a number such as 1e-4")
    if options.outputs:
        for name in ("images", "references", "save", "min_accuracy", "labels"):
            if getattr(options, name) is not None:
                raise click.UsageError(f"--{name.replace('_', '-')} is about scores: it goes without --outputs")
    if options.save and options.images:
        raise click.UsageError("--save writes inputs as numbers: it goes with the standard inputs or --inputs")
    if options.output:
        check_writable(options.output)


def _run(bench: Bench, options: TestbenchOptions) -> Outcome | ValueOutcome:
    run = _run_values if bench.values else _run_scores
    with progress(quiet=options.as_json) as bar:
        return run(bench, options, partial(_tracked, bar))


def _tracked(bar: Progress, inputs: Sequence[NamedInput], what: str) -> Iterable[NamedInput]:
    return bar.track(inputs, description=what)


def _run_scores(bench: Bench, options: TestbenchOptions, tracked: Tracked) -> Outcome:
    # References first, and their session gone before the engine's weights come: half the memory.
    known = bench.known_scores
    references = bench.exact(tracked(bench.inputs, "onnxruntime")) if known is None else known
    quantised = None
    if options.precision == "int8":
        quantised = bench.quantised(tracked(bench.inputs, "onnxruntime, int8"))
    stands = as_it_stands(bench, options.precision, tracked)
    if options.save:
        _save(options.save, bench, references)
    with _engine(bench, options) as engine:
        each = batched(tracked(bench.inputs, engine.device.facts.kind), bench.batch)
        scores = np.concatenate([first_output(engine.run(_stacked(items))) for items in each])
        beside = {"stands": stands, **_beside(engine, bench, options)}
        return Outcome(options.precision, options.kernels, scores, references, quantised, **beside)


def _run_values(bench: Bench, options: TestbenchOptions, tracked: Tracked) -> ValueOutcome:
    """Run the same for values inside of the model."""
    references = exact_values(bench, tracked(bench.inputs, "onnxruntime"))
    quantised = None
    if options.precision == "int8":
        quantised = quantised_values(bench, tracked(bench.inputs, "onnxruntime, int8"))
    stands = as_it_stands(bench, options.precision, tracked)
    with _engine(bench, options) as engine:
        each = batched(tracked(bench.inputs, engine.device.facts.kind), bench.batch)
        values = [found for items in each for found in engine_values(engine, items)]
        beside = {"stands": stands, **_beside(engine, bench, options)}
        return ValueOutcome(options.precision, options.kernels, values, references, quantised, **beside)


def _beside(engine: Engine, bench: Bench, options: TestbenchOptions) -> dict[str, Any]:
    """Return the fields of an `Outcome` beside the answers."""
    runs = [_stacked(items) for items in batched(bench.inputs, bench.batch)] if options.iterations else []
    return {
        "steps": _steps(engine, bench, options) if options.layers else (),
        "times": mean_times(lambda batch: engine.run(batch[0]), runs, options.iterations),
        "facts": {"device_choice": engine.device_choice, **environment(engine.device)},
    }


def _stacked(items: Sequence[NamedInput]) -> Array:
    return np.stack([item.array for item in items])


def _engine(bench: Bench, options: TestbenchOptions) -> Engine:
    return Engine(
        bench.model,
        device=options.device,
        precision=options.precision,
        kernels=options.kernels,
        batch=bench.batch,
        size=bench.size,
        outputs=options.outputs,
        mean=bench.notes.mean,
        std=bench.notes.std,
        keep_values=options.layers,
    )


def _steps(engine: Engine, bench: Bench, options: TestbenchOptions) -> tuple[StepVerdict, ...]:
    known = {name for node in bench.model.file.model.graph.node for name in node.output}
    names = [op.y for op in engine.graph.ops if op.y in known]  # the ONNX values that steps store
    oracle = Oracle(bench.model.path, names, bench.unrounded, bench.model.file)
    by_float64 = Float64Judge(bench.model.file, names, bench.unrounded)
    runs = []
    for item in itertools.islice(iter(bench.inputs), _LAYER_INPUTS):
        engine.run(item.array[None])
        x = bench.numbers(item)
        references = oracle.values(x, names)
        steps = judge_steps(engine.read_values(), references, options.bound)
        failing = {step.names[-1] for step in steps if not step.passed}
        if failing and options.asks_float64:
            ours = {names[-1]: value for names, value in engine.read_values() if names[-1] in failing}
            steps = by_float64.values(steps, ours, references, x, options.bound)
        runs.append(steps)
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
