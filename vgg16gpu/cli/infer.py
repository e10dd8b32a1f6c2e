"""`infer`: images or numbers in, the best classes out."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np

from vgg16gpu.cli import EXIT_CHECK_FAILED
from vgg16gpu.cli.options import (
    ModelNotes,
    device_option,
    find_model,
    json_option,
    model_notes,
    pixel_options,
    size_option,
)
from vgg16gpu.cli.show import add_row, console, heading, print_json, progress, seconds, table
from vgg16gpu.engine import Engine
from vgg16gpu.files import check_writable
from vgg16gpu.fit import resolve_input_shape
from vgg16gpu.graph import Array, Graph, Shape, Softmax
from vgg16gpu.inputs import InputSpec, NamedInput, batched, expand_paths, read_inputs
from vgg16gpu.prepare import PRECISIONS, Request, load_graph
from vgg16gpu.scores import Rank, check_score_suffix, holds_all_outputs, rank, score_problem, write_scores

_STEADY_RUNS = 3  # further runs of the first batch, for a steady time
_STEADY_BUDGET = 1.0  # seconds that they may take together

_MODEL_HELP = (
    "ONNX file, or 'digits' for the small trained net in the package. Default: the VGG16 that `model fetch` or else "
    "`model make` wrote."
)
_OUTPUT_HELP = (
    "Write all scores to FILE: .npy, .npz, .csv, .txt or .json; all outputs of a model that has several: .npz."
)
_NONFINITE_ADVICE = "repair the data, or give --allow-nonfinite to run on it"


@dataclass(frozen=True)
class Options:
    """The command line, as it is."""

    images: tuple[str, ...]
    model: str | None
    device: str
    precision: str
    batch: int | None
    size: tuple[int, int] | None
    top: int
    output: Path | None
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    labels: Path | None
    allow_nonfinite: bool
    as_json: bool


@dataclass
class Results:
    """What the runs gave, in input order. Times are seconds, host to host."""

    names: list[str] = field(default_factory=list)
    batches: list[tuple[Array, ...]] = field(default_factory=list)  # all outputs of each
    run_times: list[float] = field(default_factory=list)  # one per batch
    repeat_times: list[float] = field(default_factory=list)  # the first batch again

    def outputs(self) -> tuple[Array, ...]:
        """Every output of the model for all inputs."""
        return tuple(np.concatenate(arrays) for arrays in zip(*self.batches, strict=True))

    @property
    def steady(self) -> float | None:
        """Median time of a batch once warm; None after a single slow run."""
        times = self.repeat_times or self.run_times[1:]
        return statistics.median(times) if times else None


@click.command("infer")
@click.argument("images", nargs=-1, required=True, metavar="IMAGE...")
@click.option("--model", metavar="FILE", help=_MODEL_HELP)
@device_option
@click.option("--precision", type=click.Choice(PRECISIONS), default="fp32", show_default=True, help="Arithmetic.")
@click.option("--batch", type=click.IntRange(1, 65535), help="Images per run. Default: the model's, else 1.")
@size_option
@click.option("--top", type=click.IntRange(1), default=5, show_default=True, help="Classes to show per input.")
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help=_OUTPUT_HELP)
@pixel_options
@click.option("--allow-nonfinite", is_flag=True, help="Run on inputs with NaN or Inf instead of refusing them.")
@json_option
@click.pass_context
def infer_command(ctx: click.Context, /, **values: Any) -> None:
    """Classify images (.png .jpg .bmp .webp, or a folder of them) or numbers (.txt .npy .npz, or - for text on stdin).

    Images are resized (shorter side to size * 256 / 224), cropped at the centre, and normalised with mean and standard
    deviation; for models of one channel they become grey and are resized to the size. Numbers are taken as they are,
    channels first; .npy and .npz of uint8 are pixels, channels last. Exit code 1 when scores are NaN or infinite though
    the inputs are not.
    """
    options = Options(**values)
    if options.output:
        check_score_suffix(options.output)
        check_writable(options.output)
    files = expand_paths(options.images)
    path = find_model(options.model)
    graph = load_graph(Request(path, precision=options.precision))
    batch = options.batch or graph.input.shape[0] or 1
    shape = resolve_input_shape(graph, batch, options.size)
    notes = model_notes(path, shape[1], options.mean, options.std, options.labels)
    batches = batched(read_inputs(files, _input_spec(graph, shape, options)), batch)
    # The first inputs are read before the engine is built, so that a mistyped one does not cost a compilation.
    batches = itertools.chain([next(batches)], batches)
    with _engine(path, batch, notes, options) as engine:
        results = _run(engine, batches, len(files), quiet=options.as_json)
        report = _report(engine, results, notes, options.top)
    report = {"model": str(path), "precision": options.precision, "batch": batch, **report}
    if options.output:
        _write(options.output, results, report)
    print_json(report) if options.as_json else _print(report)
    ctx.exit(_exit_code(report, options))


def _input_spec(graph: Graph, shape: Shape, options: Options) -> InputSpec:
    open_size = graph.input.shape[2:] == (None, None)
    return InputSpec(shape[1:], options.allow_nonfinite, open_size, _NONFINITE_ADVICE)


def _engine(path: Path, batch: int, notes: ModelNotes, options: Options) -> Engine:
    return Engine(
        path,
        device=options.device,
        precision=options.precision,
        batch=batch,
        size=options.size,
        mean=notes.mean,
        std=notes.std,
        allow_nonfinite=options.allow_nonfinite,
    )


def _write(path: Path, results: Results, report: dict[str, Any]) -> None:
    scores, *others = results.outputs()
    write_scores(path, results.names, scores, dict(zip(report["outputs"][1:], others, strict=True)))
    report["output"] = str(path)


def _exit_code(report: dict[str, Any], options: Options) -> int:
    """That of a failed check when a model gives no numbers, unless the user reckons with that."""
    bad = [item for item in report["inputs"] if item["problem"]]
    if not bad or options.allow_nonfinite:
        return 0
    first = bad[0]
    click.echo(
        f"vgg16gpu: {len(bad)} of {len(report['inputs'])} inputs have no answer, the first is '{first['name']}': "
        f"{first['problem']}; the model's weights may hold NaN, or numbers that overflow",
        err=True,
    )
    return EXIT_CHECK_FAILED


def _run(engine: Engine, batches: Iterator[Sequence[NamedInput]], files: int, *, quiet: bool) -> Results:
    results = Results()
    with progress(quiet=quiet) as bar:
        task = bar.add_task("images", total=files)
        for batch in batches:
            x = np.stack([item.array for item in batch])
            outputs, elapsed = _timed_run(engine, x)
            if not results.batches:
                results.repeat_times = _repeats(engine, x, elapsed)
            results.run_times.append(elapsed)
            results.names += [item.name for item in batch]
            results.batches.append(outputs)
            bar.update(task, completed=len(results.names), total=max(files, len(results.names)))
    return results


def _timed_run(engine: Engine, x: Any) -> tuple[tuple[Array, ...], float]:
    start = time.perf_counter()
    outputs = engine.run(x)
    elapsed = time.perf_counter() - start
    return (outputs if isinstance(outputs, tuple) else (outputs,)), elapsed


def _repeats(engine: Engine, x: Any, first: float) -> list[float]:
    runs = min(_STEADY_RUNS, int(_STEADY_BUDGET / max(first, 1e-6)))
    return [_timed_run(engine, x)[1] for _ in range(runs)]


def _report(engine: Engine, results: Results, notes: ModelNotes, top: int) -> dict[str, Any]:
    scores = results.outputs()[0]
    ranked = _ranked(engine.graph, scores, notes, top)
    timings = engine.timings
    return {
        "device": engine.device.facts.name,
        "device_choice": engine.device_choice,
        "note": notes.note,
        "probabilities": "from the model" if _has_softmax(engine.graph) else "softmax of the scores, for display",
        "outputs": list(engine.graph.outputs),
        "output_shape": list(scores.shape[1:]),
        "inputs": [
            {"name": name, "top": [vars(line) for line in lines], "problem": score_problem(row)}
            for name, lines, row in zip(results.names, ranked, scores, strict=True)
        ],
        "timings": {
            "load_s": timings.load,
            "compile_s": timings.compile,
            "upload_s": timings.upload,
            "first_run_s": results.run_times[0],
            "steady_run_s": results.steady,
        },
    }


def _ranked(graph: Graph, scores: Array, notes: ModelNotes, top: int) -> list[tuple[Rank, ...]]:
    if scores.ndim != 2:  # a feature map has no classes
        return [()] * len(scores)
    names = notes.names(scores.shape[1])
    return [rank(row, names, top, are_probabilities=_has_softmax(graph)) for row in scores]


def _has_softmax(graph: Graph) -> bool:
    return any(isinstance(op, Softmax) and op.y == graph.outputs[0] for op in graph.ops)


def _print(report: dict[str, Any]) -> None:
    screen = console()
    if len(report["output_shape"]) == 1:
        heading(screen, f"{report['model']} (probability: {report['probabilities']})")
        screen.print(_table(report))
    else:
        screen.print(f"Output of shape {report['output_shape']} per input: no classes to rank; see --output")
    if len(report["outputs"]) > 1:
        screen.print(_outputs_line(report), style="bold yellow", markup=False)
    if report["note"]:
        screen.print(f"Note: {report['note']}", style="bold yellow", markup=False)
    times = report["timings"]
    build = times["compile_s"] + times["upload_s"]
    screen.print(f"Device: {report['device_choice']}", markup=False)
    screen.print(
        f"Times: load {seconds(times['load_s'])}, build {seconds(build)} "
        f"(kernels {seconds(times['compile_s'])}, weights {seconds(times['upload_s'])}), "
        f"first run {seconds(times['first_run_s'])}, steady run {seconds(times['steady_run_s'])}, "
        f"batch {report['batch']}"
    )
    if "output" in report:
        screen.print(f"Scores of {len(report['inputs'])} inputs: {report['output']}", markup=False)


def _outputs_line(report: dict[str, Any]) -> str:
    first, *others = report["outputs"]
    line = f"Outputs: shown is '{first}', the first of {len(others) + 1}; the model also gives {', '.join(others)}"
    if "output" in report and holds_all_outputs(Path(report["output"])):
        return f"{line}: all are in {report['output']}"
    return f"{line}: --output FILE.npz takes all" + (", this file the first alone" if "output" in report else "")


def _table(report: dict[str, Any]) -> Any:
    result = table(
        ["input", "rank", "class", "name", "score", "probability"],
        right=["rank", "class", "score", "probability"],
    )
    for item in report["inputs"]:
        if item["problem"]:
            add_row(result, item["name"], "", "", item["problem"], "", "", style="red")
        for place, line in enumerate(item["top"], start=1):
            add_row(
                result,
                item["name"] if place == 1 else "",
                place,
                line["index"],
                line["label"],
                f"{line['score']:.4f}",
                f"{line['probability']:.2%}",
                end_section=place == len(item["top"]) > 1,
            )
    return result
