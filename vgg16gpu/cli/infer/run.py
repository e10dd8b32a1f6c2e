"""`infer`: images or numbers in, the best classes out."""

from __future__ import annotations

import itertools
import statistics
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from vgg16gpu.cli import EXIT_CHECK_FAILED, EXIT_USAGE
from vgg16gpu.cli.common.model_notes import ModelNotes, calibrated_otherwise, contradiction, model_notes
from vgg16gpu.cli.common.options import find_model
from vgg16gpu.cli.common.show import print_json, progress
from vgg16gpu.cli.common.tell import tell
from vgg16gpu.cli.infer.options import MANY, Options
from vgg16gpu.cli.infer.report import print_report
from vgg16gpu.compiler.graph.input_size import resolve_input_shape
from vgg16gpu.compiler.graph.ops import Array, Graph, Shape, Softmax
from vgg16gpu.compiler.model import Model
from vgg16gpu.devices.platforms import usable_cores
from vgg16gpu.devices.stages import stage
from vgg16gpu.errors import InputError
from vgg16gpu.io.files import check_writable
from vgg16gpu.io.scores import Rank, check_score_suffix, rank, score_problem, write_scores
from vgg16gpu.io.shown import printable
from vgg16gpu.pictures.decode_pool import Reader, useful_processes
from vgg16gpu.pictures.inputs import NamedInput, batched, expand_paths, spec_of
from vgg16gpu.runtime.engine import Engine, Outputs

_STEADY_RUNS = 3  # further runs of the first batch, for a steady time
_STEADY_BUDGET = 1.0  # seconds that they may take together

_NONFINITE_ADVICE = "repair the data, or give --allow-nonfinite to run on it"


@dataclass
class Results:
    """What the runs gave, in input order. Times are seconds, host to host."""

    names: list[str] = field(default_factory=list)
    batches: list[tuple[Array, ...]] = field(default_factory=list)  # all outputs of each
    first_run: float = 0.0
    repeats: list[float] = field(default_factory=list)  # the first batch again
    streaming: float = 0.0  # all other batches together
    has_pixels: bool = False  # some were bytes, which the engine normalised

    def add(self, batch: Sequence[NamedInput], outputs: tuple[Array, ...]) -> None:
        """One batch more."""
        self.names += [item.name for item in batch]
        self.batches.append(outputs)
        self.has_pixels |= batch[0].array.dtype == np.uint8

    def outputs(self) -> tuple[Array, ...]:
        """Every output of the model for all inputs."""
        return tuple(np.concatenate(arrays) for arrays in zip(*self.batches, strict=True))

    @property
    def steady(self) -> float | None:
        """Time of a batch once warm, the median of repeats or else the mean; None after a single slow run."""
        if self.repeats:
            return statistics.median(self.repeats)
        return self.streaming / (len(self.batches) - 1) if len(self.batches) > 1 else None

    @property
    def rate(self) -> float:
        """Inputs a second, host to host, one batch after the other."""
        return len(self.batches[0][0]) / (self.steady or self.first_run)


def infer(options: Options) -> int:
    """Classify and print. Returns the exit code."""
    if options.output:
        check_score_suffix(options.output)
        check_writable(options.output)
    files = expand_paths(options.images)
    path = find_model(options.model)
    with stage("model"):
        model = Model(path)
        graph = model.graph(options.precision, options.outputs)
        sizes = tuple(sorted(options.batches)) or (graph.input.shape[0] or 1,)
        batch = sizes[-1]
        shape = resolve_input_shape(graph, batch, options.size)
        notes = model_notes(model, graph, shape, options.pixels, options.labels)
    has_scales_beside = options.precision == "int8" and not graph.integers
    warnings = [contradiction(model, graph, notes, shape)]
    warnings += [calibrated_otherwise(model, notes, shape)] if has_scales_beside else []
    reader = _reader(files, graph, shape, notes, options)
    with closing(reader.inputs()) as inputs:
        batches = batched(inputs, batch)
        # The first inputs are read before the engine is built, so that a mistyped one does not cost a compilation.
        with stage("first input"):
            batches = itertools.chain([_first(batches, reader)], batches)
        with _engine(model, sizes, notes, options) as engine:
            results = _run(engine, batches, reader, quiet=options.as_json)
            with stage("report"):  # before the engine is closed: nobody waits for memory to be given back
                top = options.top if _gives_classes(model, engine.graph, options) else 0
                report = _report(engine, results, reader, notes, top)
                if report["preprocess"]:
                    report["preprocess"]["warning"] = "; ".join(filter(None, warnings)) or None
                arithmetic = {"precision": options.precision, "kernels": options.kernels}
                report = {"model": str(path), **arithmetic, "batch": batch, **report}
                return _told(results, report, options)


def _told(results: Results, report: dict[str, Any], options: Options) -> int:
    """Write and print what was found. Returns the exit code."""
    if options.output:
        _write(options.output, results, report)
    print_json(report) if options.as_json else print_report(report, every_input=options.table)
    return _exit_code(report, options)


def _gives_classes(model: Model, graph: Graph, options: Options) -> bool:
    """Whether the first output is the model's own: what --outputs names inside of it are features, not classes."""
    return not options.outputs or graph.outputs[0] in [output.name for output in model.file.model.graph.output]


def _reader(files: Sequence[str], graph: Graph, shape: Shape, notes: ModelNotes, options: Options) -> Reader:
    spec = replace(
        spec_of(graph.input, shape[1:], notes.preprocess),
        allow_nonfinite=options.allow_nonfinite,
        nonfinite_advice=_NONFINITE_ADVICE,
    )
    return Reader(files, spec, _processes(files) if options.workers is None else options.workers)


def _processes(files: Sequence[str]) -> int:
    if not (useful := useful_processes(files)):
        return 0
    return min(useful, usable_cores())


def _first(batches: Iterator[list[NamedInput]], reader: Reader) -> list[NamedInput]:
    for batch in batches:
        return batch
    first, *others = reader.unreadable  # there are files, and every one that is no image gives inputs
    raise InputError(first.problem + f" ({len(others)} other images cannot be read either)" * bool(others))


def _engine(model: Model, sizes: Sequence[int], notes: ModelNotes, options: Options) -> Engine:
    return Engine(
        model,
        device=options.device,
        precision=options.precision,
        kernels=options.kernels,
        batch=sizes,
        size=options.size,
        outputs=options.outputs,
        mean=notes.mean,
        std=notes.std,
        allow_nonfinite=options.allow_nonfinite,
    )


def _write(path: Path, results: Results, report: dict[str, Any]) -> None:
    scores, *others = results.outputs()
    write_scores(path, results.names, scores, dict(zip(report["outputs"][1:], others, strict=True)))
    report["output"] = str(path)


def _exit_code(report: dict[str, Any], options: Options) -> int:
    """Say what is wrong with inputs and with answers. Who allows NaN reckons with no answers."""
    if report["preprocess"] and (warning := report["preprocess"]["warning"]):
        tell(f"warning: {warning}")
    for image in report["unreadable"][:MANY]:
        tell(printable(image["problem"]))
    if more := report["unreadable"][MANY:]:
        tell(f"{len(more):,} other images cannot be read either; --json names them all")
    bad = [] if options.allow_nonfinite else [item for item in report["inputs"] if item["problem"]]
    if bad:
        tell(
            f"{len(bad)} of {len(report['inputs'])} inputs have no answer, the first is '{printable(bad[0]['name'])}': "
            f"{bad[0]['problem']}; the model's weights may hold NaN, or numbers that overflow"
        )
    if len(bad) == len(report["inputs"]):
        return EXIT_USAGE
    return EXIT_CHECK_FAILED if bad or report["unreadable"] else 0


def _run(engine: Engine, batches: Iterator[list[NamedInput]], reader: Reader, *, quiet: bool) -> Results:
    """The first batch alone, some times over, and the others as a stream."""
    results = Results()
    sent: deque[list[NamedInput]] = deque([next(batches)])
    x = _stacked(sent[0])
    with progress(quiet=quiet) as bar:
        task = bar.add_task("images", total=len(reader.files))

        def add(outputs: Outputs) -> None:
            results.add(sent.popleft(), _by_input(engine, outputs))
            done = len(results.names) + len(reader.unreadable)
            bar.update(task, completed=done, total=max(len(reader.files), done))

        def others() -> Iterator[Any]:
            for batch in batches:
                sent.append(batch)
                yield _stacked(batch)

        with stage("first run"):
            outputs, results.first_run = _timed_run(engine, x)
        runs = min(_STEADY_RUNS, int(_STEADY_BUDGET / max(results.first_run, 1e-6)))
        with stage("further runs"):
            results.repeats = [_timed_run(engine, x)[1] for _ in range(runs)]
        add(outputs)
        start = time.perf_counter()
        for outputs in engine.stream(others()):
            add(outputs)
        results.streaming = time.perf_counter() - start
    return results


def _by_input(engine: Engine, outputs: Outputs) -> tuple[Array, ...]:
    """All outputs with a row for each input: what has none comes whole for each."""
    arrays = outputs if isinstance(outputs, tuple) else (outputs,)
    pairs = zip(arrays, engine.program.outputs, strict=True)
    return tuple(array[np.newaxis] if engine.program.is_whole(value) else array for array, value in pairs)


def _stacked(batch: Sequence[NamedInput]) -> Any:
    return np.stack([item.array for item in batch])


def _timed_run(engine: Engine, x: Any) -> tuple[Outputs, float]:
    start = time.perf_counter()
    outputs = engine.run(x)
    return outputs, time.perf_counter() - start


def _report(engine: Engine, results: Results, reader: Reader, notes: ModelNotes, top: int) -> dict[str, Any]:
    scores = results.outputs()[0]
    ranked = _ranked(engine.graph, scores, notes, top)
    timings = engine.timings
    return {
        "device": engine.device.facts.name,
        "device_choice": engine.device_choice,
        "note": notes.note,
        "preprocess": _preprocess(engine, results, reader, notes),
        "probabilities": _probabilities(engine.graph) if top else None,
        "outputs": list(engine.graph.outputs),
        "output_shape": list(scores.shape[1:]),
        "inputs": [
            {"name": name, "top": [vars(line) for line in lines], "problem": score_problem(row)}
            for name, lines, row in zip(results.names, ranked, scores, strict=True)
        ],
        "unreadable": [vars(image) for image in reader.unreadable],
        "timings": {
            "load_s": timings.load,
            "compile_s": timings.compile,
            "upload_s": timings.upload,
            "first_run_s": results.first_run,
            "steady_run_s": results.steady,
        },
        "rates": {
            "decode_images_per_s": reader.decode_rate,
            "decode_processes": reader.processes,
            "engine_images_per_s": results.rate,
        },
    }


def _preprocess(engine: Engine, results: Results, reader: Reader, notes: ModelNotes) -> dict[str, Any] | None:
    """What was done to pictures and pixels; None where all inputs were numbers."""
    if not results.has_pixels or notes.preprocess is None:
        return None
    height, width = engine.program.input.shape[2:]
    return notes.preprocess.report(height, width, pictures=reader.decoded > 0)


def _ranked(graph: Graph, scores: Array, notes: ModelNotes, top: int) -> list[tuple[Rank, ...]]:
    if scores.ndim != 2 or not top:  # a feature map has no classes
        return [()] * len(scores)
    names = notes.names(scores.shape[1])
    return [rank(row, names, top, are_probabilities=_has_softmax(graph)) for row in scores]


def _probabilities(graph: Graph) -> str:
    return "from the model" if _has_softmax(graph) else "softmax of the scores, for display"


def _has_softmax(graph: Graph) -> bool:
    return any(isinstance(op, Softmax) and op.y == graph.outputs[0] for op in graph.ops)
