"""Write and read records of benchmarks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vgg16gpu.bench.measure import layers, timing
from vgg16gpu.bench.measure.cold_start import DESCRIPTION as COLD_START
from vgg16gpu.bench.measure.cold_start import ColdStart
from vgg16gpu.bench.measure.layers import NAME
from vgg16gpu.bench.measure.timing import CPU_EFFORT, DESCRIPTIONS, GPU_EFFORT, Method, Regime
from vgg16gpu.bench.records.findings import BatchResult, Findings
from vgg16gpu.checks.accuracy import ADMITTED_ERRORS, PEER_TOLERANCES, TF32_TOLERANCE
from vgg16gpu.errors import InputError
from vgg16gpu.io.files import atomic_writer
from vgg16gpu.io.foreign.documents import OTHER_FORM, read_json
from vgg16gpu.io.foreign.lines import NotReadError
from vgg16gpu.io.scores import finite_or_none


def content(findings: Findings, model: Content, cold_start: ColdStart | None) -> Content:
    """Return everything, ready for `json.dumps`. Times are seconds; throughputs per second."""
    return {
        "schema": SCHEMA,
        "model": model,
        "device": {"kind": findings.kind, "name": findings.environment["device"]["name"]},
        "device_choice": findings.device_choice,
        "kernels": findings.kernels,
        "arithmetic": findings.arithmetic,
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
    """Return what identifies a model: two results are comparable when all but `path` is equal.

    outputs: what is computed of it, where that is not its own outputs.
    """
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    identity: Content = {"path": str(path), "sha256": digest, "input_shape": list(input_shape)}
    return identity if outputs is None else {**identity, "outputs": list(outputs)}


def methods(findings: Findings) -> Mapping[str, str]:
    """Describe how each kind of number was taken."""
    effort = GPU_EFFORT if findings.kind == "cuda" else CPU_EFFORT
    pause = f", each followed by a pause as long, at least {1e3 * effort.pause:g} ms" if effort.pause else ""
    return {
        **{method.value: text for method, text in DESCRIPTIONS.items()},
        Regime.COOL.value: f"bursts of load of about {effort.burst:g} s at most, one run at least{pause}",
        Regime.SUSTAINED.value: timing.description(findings.sustained_s),
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
    """Return our largest error in each precision, None where nothing could be checked."""
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


SCHEMA = 3  # of the JSON file; changed when a reader of older files would go wrong
_NO_TF32 = 2  # every peer in fp32 was strict, and who was missing stood in the notes
_OLDEST = 1  # one precision, entries with their times inside each batch, no regimes: all were cool

Content = dict[str, Any]


def read(path: Path) -> Content:
    """Read an earlier result, older schemas brought up to this one. Raises InputError for anything else."""
    try:
        found = read_json(path)
    except NotReadError:
        raise
    except InputError as error:
        raise InputError(f"{error}; give a file that `bench --output` wrote") from error
    try:
        if found["schema"] == _OLDEST:
            found = _with_regimes(found)
        return _checked(_with_tf32(found) if found["schema"] == _NO_TF32 else found)
    except OTHER_FORM as error:
        raise InputError(
            f"'{path}' is no result of this benchmark (schema {SCHEMA}); write a new one with --output"
        ) from error


def write(path: Path, content: Content) -> None:
    """Write a record as a JSON file, whole or not at all; NaN and infinities become null. Raises ModelError."""
    with atomic_writer(path) as file:
        file.write(json.dumps(finite_or_none(content), indent=2).encode() + b"\n")


def combinations(content: Content) -> list[tuple[str, int]]:
    """Return (precision, batch) of everything measured, in order."""
    return [(batch["precision"], batch["batch"]) for batch in content["batches"]]


def precisions(content: Content) -> list[str]:
    """Return the precisions, in order."""
    return list(dict.fromkeys(precision for precision, _ in combinations(content)))


def batches(content: Content) -> list[int]:
    """Return the batch sizes, smallest first."""
    return sorted({batch for _, batch in combinations(content)})


def select(content: Content, **keys: object) -> list[Content]:
    """Return the records with these values, as in precision="fp16", batch=8."""
    return [record for record in content["records"] if all(record[key] == value for key, value in keys.items())]


def names(records: Iterable[Content]) -> list[str]:
    """Return the contenders of some records, in their order: ours first."""
    return list(dict.fromkeys(record["name"] for record in records))


def kinds(records: Iterable[Content]) -> list[tuple[str, bool]]:
    """Return the contenders of some records and whether in TF32, in their order: ours first."""
    return list(dict.fromkeys((record["name"], record["tf32"]) for record in records))


def label(name: str, tf32: bool) -> str:
    """Return a contender's name, marked if it is its TF32."""
    return f"{name} TF32" if tf32 else name


def fastest(records: Iterable[Content]) -> Content | None:
    """Return the record with the smallest median; None of none."""
    return min(records, key=lambda record: float(record["median_s"]), default=None)


def peers(records: Iterable[Content], *, tf32: bool = False) -> list[Content]:
    """Return the peers' records that compute in the precision itself or, with `tf32`, in TF32."""
    return [record for record in records if record["name"] != NAME and record["tf32"] is tf32]


def absent(content: Content, precision: str, batch: int) -> list[Content]:
    """Return the peers without any number there, with the reason: those that failed, and those never there."""
    missing = [
        each
        for each in content["absent"]
        if not each["variant"] and each["precision"] in (None, precision) and each["batch"] in (None, batch)
    ]
    return list({each["name"]: each for each in missing}.values())


def version(content: Content, name: str) -> str:
    """Return a peer's version in the record; "" without one."""
    versions = content["environment"]["versions"]
    return str(versions.get(f"{name}-gpu") or versions.get(name) or "")  # beside the other one it is what is imported


def headline(content: Content, precision: str, batch: int, method: Method) -> list[Content]:
    """Return the records to quote: sustained ones where our own was taken so, else the cool ones."""
    keys = {"precision": precision, "batch": batch, "method": method}
    loaded = select(content, **keys, regime=Regime.SUSTAINED)
    return loaded if names(loaded)[:1] == [NAME] else select(content, **keys, regime=Regime.COOL)


def ceilings_text(ceilings: Content, precision: str) -> str:
    """Return the rates that a precision's floors were taken from, on one line."""
    rates = [f"{ceilings['bytes_per_s'] / 1e9:.4g} GB/s copy"]
    if precision == "fp32":
        rates.insert(0, f"{ceilings['flop_per_s'] / 1e12:.3g} TFLOP/s FFMA")
    if tensor := ceilings.get("tensor_flop_per_s", {}).get(precision):
        rates.insert(0, f"{tensor / 1e12:.3g} TFLOP/s {precision} on tensor cores")
    return ", ".join(rates)


def _checked(found: Content) -> Content:
    """Return the content if it is complete. Raises KeyError, TypeError or ValueError."""
    if found["schema"] != SCHEMA:
        raise ValueError(f"schema {found['schema']}")
    positive = [record["median_s"] for record in (*found["records"], *found["iterations"])]
    known = [(Method(record["method"]), Regime(record["regime"])) for record in found["records"]]
    words = [record[key] for record in found["records"] for key in ("precision", "name", "variant")]
    words += [found["model"]["sha256"], found["device"]["name"]]
    words += [absent[key] for absent in found["absent"] for key in ("name", "reason", "variant")]
    flags = [record["tf32"] for record in found["records"]]
    numbers = [batch for _, batch in combinations(found)] + [record["batch"] for record in found["records"]]
    complete = len(known) == len(flags) and all(isinstance(word, str) for word in words)
    complete = complete and all(isinstance(flag, bool) for flag in flags)
    if not (complete and all(isinstance(number, int) for number in numbers) and all(value > 0 for value in positive)):
        raise ValueError("something is missing")
    return found


def _with_tf32(old: Content) -> Content:
    """Convert a result of schema 2 to schema 3."""
    records = [{**record, "tf32": False} for record in old["records"]]
    return {**old, "schema": SCHEMA, "records": records, "absent": []}


def _with_regimes(old: Content) -> Content:
    """Convert a result of schema 1 to schema 2."""
    model, verified = dict(old["model"]), old["verification"]
    precision = model.pop("precision")
    return {
        **old,
        "schema": _NO_TF32,
        "model": model,
        "verification": {
            "reference": verified["reference"],
            "tolerances": {precision: verified["tolerance"]},
            "worst_errors": {precision: verified["worst_error"]},
        },
        "records": [
            {
                "precision": precision,
                "batch": batch["batch"],
                **{key: entry[key] for key in ("name", "variant", "error")},
                "unchecked": "",
                "regime": Regime.COOL.value,
                "method": method,
                **times,
                "gpu": None,
            }
            for batch in old["batches"]
            for entry in batch["entries"]
            for method, times in entry["times"].items()
        ],
        "batches": [
            {"precision": precision, **{key: batch.get(key, []) for key in ("batch", "flop", "layers", "gpu")}}
            for batch in old["batches"]
        ],
        "iterations": [{"precision": precision, **item} for item in old["iterations"]],
        "failures": [],
    }
