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
from vgg16gpu.fit import resolve_input_shape
from vgg16gpu.graph import Array, Graph, Softmax
from vgg16gpu.inputs import InputSpec, NamedInput, batched, expand_paths, read_inputs
from vgg16gpu.prepare import PRECISIONS, Request, load_graph
from vgg16gpu.scores import Rank, check_score_suffix, check_writable, rank, write_scores

_STEADY_RUNS = 3  # further runs of the first batch, for a steady time
_STEADY_BUDGET = 1.0  # seconds that they may take together

_MODEL_HELP = (
    "ONNX file, or 'digits' for the small trained net in the package. Default: models/vgg16.onnx or ./vgg16.onnx."
)
_OUTPUT_HELP = "Write all scores to FILE: .npy, .npz, .csv, .txt or .json."


@dataclass
class Results:
    """What the runs gave, in input order. Times are seconds, host to host."""

    names: list[str] = field(default_factory=list)
    scores: list[Array] = field(default_factory=list)
    run_times: list[float] = field(default_factory=list)  # one per batch
    repeat_times: list[float] = field(default_factory=list)  # the first batch again

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
def infer_command(
    *,
    images: tuple[str, ...],
    model: str | None,
    device: str,
    precision: str,
    batch: int | None,
    size: tuple[int, int] | None,
    top: int,
    output: Path | None,
    labels: Path | None,
    std: tuple[float, ...] | None,
    mean: tuple[float, ...] | None,
    allow_nonfinite: bool,
    as_json: bool,
) -> None:
    """Classify images (.png .jpg .bmp .webp, or a folder of them) or numbers (.txt .npy .npz, or - for text on stdin).

    Images are resized (shorter side to size * 256 / 224), cropped at the centre, and normalised with mean and standard
    deviation; for models of one channel they become grey and are resized to the size. Numbers are taken as they are,
    channels first; .npy and .npz of uint8 are pixels, channels last.
    """
    if output:
        check_score_suffix(output)
        check_writable(output)
    files = expand_paths(images)
    path = find_model(model)
    graph = load_graph(Request(path, precision=precision))
    batch = batch or graph.input.shape[0] or 1
    shape = resolve_input_shape(graph, batch, size)
    notes = model_notes(path, shape[1], mean, std, labels)
    batches = batched(read_inputs(files, InputSpec(shape[1:], allow_nonfinite)), batch)
    # The first inputs are read before the engine is built, so that a mistyped one does not cost a compilation.
    batches = itertools.chain([next(batches)], batches)
    with Engine(
        path,
        device=device,
        precision=precision,
        batch=batch,
        size=size,
        mean=notes.mean,
        std=notes.std,
        allow_nonfinite=allow_nonfinite,
    ) as engine:
        results = _run(engine, batches, len(files), quiet=as_json)
        report = _report(engine, results, notes, top)
    report = {"model": str(path), "precision": precision, "batch": batch, **report}
    if output:
        write_scores(output, results.names, np.stack(results.scores))
        report["output"] = str(output)
    print_json(report) if as_json else _print(report)


def _run(engine: Engine, batches: Iterator[Sequence[NamedInput]], files: int, *, quiet: bool) -> Results:
    results = Results()
    with progress(quiet=quiet) as bar:
        task = bar.add_task("images", total=files)
        for batch in batches:
            x = np.stack([item.array for item in batch])
            scores, elapsed = _timed_run(engine, x)
            if not results.scores:
                results.repeat_times = _repeats(engine, x, elapsed)
            results.run_times.append(elapsed)
            results.names += [item.name for item in batch]
            results.scores += list(scores)
            bar.update(task, completed=len(results.names), total=max(files, len(results.names)))
    return results


def _timed_run(engine: Engine, x: Any) -> tuple[Array, float]:
    start = time.perf_counter()
    scores = engine.run(x)
    elapsed = time.perf_counter() - start
    return (scores[0] if isinstance(scores, tuple) else scores), elapsed


def _repeats(engine: Engine, x: Any, first: float) -> list[float]:
    runs = min(_STEADY_RUNS, int(_STEADY_BUDGET / max(first, 1e-6)))
    return [_timed_run(engine, x)[1] for _ in range(runs)]


def _report(engine: Engine, results: Results, notes: ModelNotes, top: int) -> dict[str, Any]:
    ranked = _ranked(engine.graph, results.scores, notes, top)
    timings = engine.timings
    return {
        "device": engine.device.facts.name,
        "device_choice": engine.device_choice,
        "note": notes.note,
        "probabilities": "from the model" if _has_softmax(engine.graph) else "softmax of the scores, for display",
        "output_shape": list(results.scores[0].shape),
        "inputs": [
            {"name": name, "top": [vars(line) for line in lines]}
            for name, lines in zip(results.names, ranked, strict=True)
        ],
        "timings": {
            "load_s": timings.load,
            "compile_s": timings.compile,
            "upload_s": timings.upload,
            "first_run_s": results.run_times[0],
            "steady_run_s": results.steady,
        },
    }


def _ranked(graph: Graph, scores: Sequence[Array], notes: ModelNotes, top: int) -> list[tuple[Rank, ...]]:
    if scores[0].ndim != 1:  # a feature map has no classes
        return [()] * len(scores)
    names = notes.names(scores[0].size)
    return [rank(row, names, top, are_probabilities=_has_softmax(graph)) for row in scores]


def _has_softmax(graph: Graph) -> bool:
    return any(isinstance(op, Softmax) and op.y == graph.outputs[0] for op in graph.ops)


def _print(report: dict[str, Any]) -> None:
    screen = console()
    if report["inputs"][0]["top"]:
        heading(screen, f"{report['model']} (probability: {report['probabilities']})")
        screen.print(_table(report))
    else:
        screen.print(f"Output of shape {report['output_shape']} per input: no classes to rank; see --output")
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


def _table(report: dict[str, Any]) -> Any:
    result = table(
        ["input", "rank", "class", "name", "score", "probability"],
        right=["rank", "class", "score", "probability"],
    )
    for item in report["inputs"]:
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
