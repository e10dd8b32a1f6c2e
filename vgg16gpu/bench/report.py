"""A benchmark as plain data: what goes into the JSON file, and what tables, plots and comparisons are made from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vgg16gpu.accuracy import SCORE_TOLERANCE
from vgg16gpu.bench import layers
from vgg16gpu.bench.cold_start import DESCRIPTION as COLD_START
from vgg16gpu.bench.cold_start import ColdStart
from vgg16gpu.bench.session import PEER_TOLERANCE, BatchResult, Entry, Findings
from vgg16gpu.bench.timing import DESCRIPTIONS, Method
from vgg16gpu.errors import InputError

SCHEMA = 1  # of the JSON file; changed when a reader of older files would go wrong

Content = dict[str, Any]


def content(findings: Findings, model: Content, cold_start: ColdStart | None) -> Content:
    """Everything, ready for `json.dumps`. Times are seconds; throughputs per second."""
    return {
        "schema": SCHEMA,
        "model": model,
        "device": {"kind": findings.kind, "name": findings.environment["device"]["name"]},
        "device_choice": findings.device_choice,
        "environment": findings.environment,
        "methods": methods(findings),
        "verification": {
            "reference": "onnxruntime, CPU",
            "tolerance": SCORE_TOLERANCE,
            "worst_error": max(
                (b.entries[0].error for b in findings.batches if b.entries[0].error is not None), default=None
            ),
        },
        "ceilings": asdict(findings.ceilings),
        "batches": [_batch(result) for result in findings.batches],
        "iterations": [
            {"iterations": count, "mean_s": mean, **asdict(summary)}
            for count, (mean, summary) in findings.iterations.items()
        ],
        "cold_start": None if cold_start is None else asdict(cold_start),
        "gpu_before": findings.readings_before,
        "notes": findings.notes,
    }


def model_identity(path: Path, input_shape: tuple[int, ...], precision: str) -> Content:
    """What tells one model from another: two results are comparable when all but `path` is equal."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"path": str(path), "sha256": digest, "input_shape": list(input_shape), "precision": precision}


def methods(findings: Findings) -> Mapping[str, str]:
    """How each kind of number was taken."""
    return {
        **{method.value: text for method, text in DESCRIPTIONS.items()},
        "order": "ours and the peers in turns, an untimed run before each turn; short bursts, not sustained load",
        "peers": f"same process, same inputs, strict float32, scores within {PEER_TOLERANCE:g} of ours; "
        "the fastest variant is the one compared",
        "layers": layers.description(findings.kind),
        "ceilings": findings.ceilings.description,
        "iterations": "host to host, one input a call (padded to the smallest batch size of this run): the mean over "
        "10 inputs x iterations, beside the median",
        "cold_start": COLD_START,
    }


def read(path: Path) -> Content:
    """A result that was written before. Raises InputError for anything else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"'{path}' cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"'{path}' is not JSON: {error}; give a file that `bench --output` wrote") from error
    if not isinstance(found, dict) or found.get("schema") != SCHEMA or not _is_complete(found):
        raise InputError(f"'{path}' is no result of this benchmark (schema {SCHEMA}); write a new one with --output")
    return found


def best_entry(batch: Content, name: str, method: Method) -> Content | None:
    """The fastest variant of a contender by a method; None where it was not measured so."""
    entries = [e for e in batch["entries"] if e["name"] == name and method.value in e["times"]]
    return min(entries, key=lambda entry: entry["times"][method.value]["median_s"], default=None)


def names(batch: Content) -> list[str]:
    """The contenders of a batch size, ours first."""
    return list(dict.fromkeys(entry["name"] for entry in batch["entries"]))


def _is_complete(found: Content) -> bool:
    try:
        summaries = [
            summary
            for batch in found["batches"]
            for entry in batch["entries"]
            for summary in entry["times"].values()
            if isinstance(batch["batch"], int) and isinstance(entry["name"], str)
        ]
        medians = [item["median_s"] for item in (*summaries, *found["iterations"])]
        named = all(isinstance(text, str) for text in (found["model"]["sha256"], found["device"]["name"]))
        return named and all(median > 0 for median in medians)
    except (KeyError, TypeError, ValueError, AttributeError):
        return False


def _batch(result: BatchResult) -> Content:
    return {
        "batch": result.batch,
        "flop": result.flop,
        "entries": [_entry(entry, result.batch) for entry in result.entries],
        "layers": [
            {
                **asdict(layer),
                "flop_per_s": layer.flop / layer.median_s,
                "bytes_per_s": layer.nbytes / layer.median_s,
                "percent_of_ceiling": layer.percent,
            }
            for layer in result.layers
        ],
        "gpu": result.readings,
    }


def _entry(entry: Entry, batch: int) -> Content:
    times = {
        method.value: {**asdict(summary), "images_per_s": batch / summary.median_s}
        for method, summary in entry.times.items()
    }
    return {"name": entry.name, "variant": entry.variant, "error": entry.error, "times": times}
