"""A model on labelled images in every precision: how often it is right, and how far its scores are from float32's.

    python -m testbench.measure.accuracy MODEL.onnx --images DIR [--limit N] [--output FILE]

DIR holds one folder of images a label. For each precision: top-1 accuracy, how often the best class is the one that
onnxruntime finds in float32, the worst and the mean of max|y - r| / max|r|, and for int8 (whose scales `calibrate`
wrote) the same of onnxruntime's quantised form. Exit code 1 when a precision breaks a promise of accuracy.py.
`models/train_vgg16.py` makes a model and images for it; its record goes in with --training.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vgg16gpu.bench.measure.environment import environment
from vgg16gpu.checks.accuracy import SCORE_TOLERANCES, score_error
from vgg16gpu.cli.common.show import add_row, console, table
from vgg16gpu.cli.testbench.case import Bench, Outcome, TestbenchOptions, first_output, judged, prepare
from vgg16gpu.cli.testbench.report import summary
from vgg16gpu.compiler.choices import KERNELS, PRECISIONS
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.io.files import atomic_writer
from vgg16gpu.io.scores import finite_or_none, top_classes
from vgg16gpu.runtime.engine import Engine


def every(bench: Bench, limit: int) -> Bench:
    """The same with at most `limit` of its labelled images, spread evenly: they are sorted by label."""
    step = -(-len(bench.inputs) // limit)
    return replace(bench, inputs=bench.inputs[::step], labels=(bench.labels or [])[::step])


def run_engine(bench: Bench, pixels: Any, precision: str, options: argparse.Namespace) -> tuple[Array, dict[str, Any]]:
    """Scores of all images, run in batches, and where that was."""
    with Engine(
        bench.model,
        device=options.device,
        precision=precision,
        kernels=options.kernels,
        batch=min(options.batch, len(pixels)),
        mean=bench.notes.mean,
        std=bench.notes.std,
    ) as engine:
        scores = first_output(engine.run(pixels))
        kernels = sorted({step.kernel.source for step in engine.program.steps})
        return scores, {"kernels": kernels, "environment": environment(engine.device)}


def measure(bench: Bench, options: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """One record for each precision, after one for onnxruntime's float32; and the environment."""
    pixels = np.stack([item.array for item in bench.inputs])
    references = bench.exact(bench.inputs)
    quantised = bench.quantised(bench.inputs) if "int8" in options.precisions else None
    records = [onnxruntime_record(bench, references, references, "fp32")]
    facts: dict[str, Any] = {}
    for precision in options.precisions:
        scores, facts = run_engine(bench, pixels, precision, options)
        theirs = quantised if precision == "int8" else None
        outcome = Outcome(precision, options.kernels, scores, references, theirs)
        report = judged(bench, outcome, SCORE_TOLERANCES[precision])
        record = {"library": "vgg16gpu", "precision": precision, **summary(report), "failures": list(report.failures)}
        records.append({**record, "tolerance": report.tolerance, "kernels": facts["kernels"]})
    if quantised is not None:
        records.append(onnxruntime_record(bench, quantised, references, "int8"))
    return records, facts["environment"]


def onnxruntime_record(bench: Bench, scores: Array, references: Array, precision: str) -> dict[str, Any]:
    """The same figures of onnxruntime itself, on the CPU."""
    errors = score_error(scores, references)
    best, expected = top_classes(scores, 1)[:, 0], top_classes(references, 1)[:, 0]
    return {
        "library": "onnxruntime, CPU",
        "precision": precision,
        "worst_error": float(errors.max()),
        "mean_error": float(errors.mean()),
        "agreement": float((best == expected).mean()),
        "accuracy": float((best == np.asarray(bench.labels)).mean()),
    }


def show(records: Sequence[dict[str, Any]]) -> None:
    """A table on stdout."""
    numbers = ["top-1", "as fp32", "worst error", "mean error", "to onnxruntime's int8"]
    result = table(["library", "precision", *numbers, "verdict"], right=numbers)
    for record in records:
        quantised, failures = record.get("quantised"), record.get("failures")
        add_row(
            result,
            record["library"],
            record["precision"],
            f"{record['accuracy']:.2%}",
            f"{record['agreement']:.2%}",
            f"{record['worst_error']:.2e}",
            f"{record['mean_error']:.2e}",
            f"{quantised['ratio']:.3f}" if quantised else "",
            "" if failures is None else "FAIL" if failures else "PASS",
        )
    console().print(result)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, write the record."""
    parser = argparse.ArgumentParser(
        prog="python -m testbench.measure.accuracy", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=450, help="At most so many images.")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--kernels", choices=KERNELS, default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--training", type=Path, help="JSON that says how the model was made.")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(arguments)
    bench = every(prepare(TestbenchOptions(model=str(options.model), images=options.images)), options.limit)
    records, facts = measure(bench, options)
    content = {
        "model": options.model.name,
        "note": bench.notes.note,
        "images": len(bench.inputs),
        "batch": options.batch,
        "kernels": options.kernels,
        "results": records,
        "training": json.loads(options.training.read_bytes()) if options.training else None,
        "environment": facts,
    }
    if options.output:
        with atomic_writer(options.output) as file:
            file.write(json.dumps(finite_or_none(content), indent=2).encode() + b"\n")
    show(records)
    failures = [f"{r['precision']}: {reason}" for r in records for reason in r.get("failures", [])]
    for failure in failures:
        print(f"FAIL: {failure}")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
