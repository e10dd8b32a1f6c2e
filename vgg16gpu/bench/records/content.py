"""A benchmark's findings as plain data: what goes into the JSON file, and what tables and plots are made from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from vgg16gpu.bench.measure import layers, sustained
from vgg16gpu.bench.measure.cold_start import DESCRIPTION as COLD_START
from vgg16gpu.bench.measure.cold_start import ColdStart
from vgg16gpu.bench.measure.timing import CPU_EFFORT, DESCRIPTIONS, GPU_EFFORT, Regime
from vgg16gpu.bench.records.findings import BatchResult, Findings
from vgg16gpu.bench.records.record import SCHEMA, Content
from vgg16gpu.checks.accuracy import ADMITTED_ERRORS, PEER_TOLERANCES, TF32_TOLERANCE


def content(findings: Findings, model: Content, cold_start: ColdStart | None) -> Content:
    """Everything, ready for `json.dumps`. Times are seconds; throughputs per second."""
    return {
        "schema": SCHEMA,
        "model": model,
        "device": {"kind": findings.kind, "name": findings.environment["device"]["name"]},
        "device_choice": findings.device_choice,
        "kernels": findings.kernels,
        "environment": findings.environment,
        "methods": methods(findings),
        "verification": _verification(findings),
        "ceilings": asdict(findings.ceilings),
        "records": [record for result in findings.batches for record in _records(result)],
        "batches": [_batch(result) for result in findings.batches],
        "iterations": [
            {"precision": precision, "iterations": count, "mean_s": mean, **asdict(summary)}
            for precision, count, mean, summary in findings.iterations
        ],
        "cold_start": None if cold_start is None else asdict(cold_start),
        "gpu_before": findings.readings_before,
        "notes": findings.remarks.notes,
        "absent": [asdict(absent) for absent in findings.remarks.absent],
        "failures": findings.failures,
    }


def model_identity(path: Path, input_shape: tuple[int, ...], outputs: Sequence[str] | None = None) -> Content:
    """What tells one model from another: two results are comparable when all but `path` is equal.

    outputs: what is computed of it, where that is not its own outputs.
    """
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    identity: Content = {"path": str(path), "sha256": digest, "input_shape": list(input_shape)}
    return identity if outputs is None else {**identity, "outputs": list(outputs)}


def methods(findings: Findings) -> Mapping[str, str]:
    """How each kind of number was taken."""
    effort = GPU_EFFORT if findings.kind == "cuda" else CPU_EFFORT
    pause = f", each followed by a pause as long, at least {1e3 * effort.pause:g} ms" if effort.pause else ""
    return {
        **{method.value: text for method, text in DESCRIPTIONS.items()},
        Regime.COOL.value: f"bursts of load of about {effort.burst:g} s at most, one run at least{pause}",
        Regime.SUSTAINED.value: sustained.description(findings.sustained_s),
        "order": "ours and the peers in turns, an untimed run before each burst",
        "peers": "each measured in a process of its own, which sleeps while another's turn lasts; same inputs, same "
        "precision (fp32: strict; TF32, which torch and JAX use unless told otherwise, apart), scores within a "
        "bound of ours: "
        + ", ".join(f"{precision} {bound:g}" for precision, bound in PEER_TOLERANCES.items())
        + f", TF32 {TF32_TOLERANCE:g}; the fastest variant is the one compared; who fails is tried again once in a "
        "fresh process",
        "layers": layers.description(findings.kind),
        "ceilings": findings.ceilings.description,
        "iterations": "host to host, one input a call (padded to the smallest batch size of this run): the mean over "
        "10 inputs x iterations, beside the median",
        "cold_start": COLD_START,
    }


def _verification(findings: Findings) -> Content:
    """The largest error of ours in each precision, None where nothing could be checked."""
    errors: dict[str, list[float]] = {}
    for result in findings.batches:
        ours = result.entries[0].error
        errors.setdefault(result.precision, []).extend([] if ours is None else [ours])
    return {
        "reference": "onnxruntime, CPU, fp32",
        "tolerances": {precision: ADMITTED_ERRORS[precision] for precision in errors},
        "worst_errors": {precision: max(found, default=None) for precision, found in errors.items()},
    }


def _records(result: BatchResult) -> Iterator[Content]:
    for entry in result.entries:
        for measured in entry.times:
            yield {
                "precision": result.precision,
                "batch": result.batch,
                "name": entry.name,
                "variant": entry.variant,
                "error": entry.error,
                "unchecked": entry.unchecked,
                "tf32": entry.tf32,
                "regime": measured.regime.value,
                "method": measured.method.value,
                **asdict(measured.summary),
                "images_per_s": result.batch / measured.summary.median_s,
                "gpu": None if measured.gpu is None else asdict(measured.gpu),
            }


def _batch(result: BatchResult) -> Content:
    return {
        "precision": result.precision,
        "batch": result.batch,
        "flop": result.flop,
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
