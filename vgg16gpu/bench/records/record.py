"""A benchmark as plain data, as JSON files keep it: reading it back, and asking it questions.

Every number is a record of its own, by precision, batch, contender, variant, method and regime; `batches` has what
belongs to a precision and batch as a whole, its layers above all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vgg16gpu.bench.measure.ours import NAME
from vgg16gpu.bench.measure.timing import Method, Regime
from vgg16gpu.errors import InputError
from vgg16gpu.io.files import atomic_writer
from vgg16gpu.io.foreign.documents import OTHER_FORM, read_json
from vgg16gpu.io.foreign.lines import NotReadError
from vgg16gpu.io.scores import finite_or_none

SCHEMA = 3  # of the JSON file; changed when a reader of older files would go wrong
_NO_TF32 = 2  # every peer in fp32 was strict, and who was missing stood in the notes
_OLDEST = 1  # one precision, entries with their times inside each batch, no regimes: all were cool

Content = dict[str, Any]


def read(path: Path) -> Content:
    """A result that was written before, older schemas brought up to this one. Raises InputError for anything else."""
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
    """A record as a JSON file, whole or not at all; NaN and infinities become null. Raises ModelError."""
    with atomic_writer(path) as file:
        file.write(json.dumps(finite_or_none(content), indent=2).encode() + b"\n")


def combinations(content: Content) -> list[tuple[str, int]]:
    """(precision, batch) of everything measured, in order."""
    return [(batch["precision"], batch["batch"]) for batch in content["batches"]]


def precisions(content: Content) -> list[str]:
    """The precisions, in order."""
    return list(dict.fromkeys(precision for precision, _ in combinations(content)))


def batches(content: Content) -> list[int]:
    """The batch sizes, smallest first."""
    return sorted({batch for _, batch in combinations(content)})


def select(content: Content, **keys: object) -> list[Content]:
    """The records with these values, as in precision="fp16", batch=8."""
    return [record for record in content["records"] if all(record[key] == value for key, value in keys.items())]


def names(records: Iterable[Content]) -> list[str]:
    """The contenders of some records, in their order: ours first."""
    return list(dict.fromkeys(record["name"] for record in records))


def kinds(records: Iterable[Content]) -> list[tuple[str, bool]]:
    """The contenders of some records and whether in TF32, in their order: ours first."""
    return list(dict.fromkeys((record["name"], record["tf32"]) for record in records))


def label(name: str, tf32: bool) -> str:
    """What a contender is called where its TF32 stands beside it."""
    return f"{name} TF32" if tf32 else name


def fastest(records: Iterable[Content]) -> Content | None:
    """The record with the smallest median; None of none."""
    return min(records, key=lambda record: float(record["median_s"]), default=None)


def peers(records: Iterable[Content], *, tf32: bool = False) -> list[Content]:
    """Those that are not ours and compute in the precision itself or, with `tf32`, in TF32."""
    return [record for record in records if record["name"] != NAME and record["tf32"] is tf32]


def absent(content: Content, precision: str, batch: int) -> list[Content]:
    """The peers without any number there, with the reason: those that failed, and those that were never there."""
    missing = [
        each
        for each in content["absent"]
        if not each["variant"] and each["precision"] in (None, precision) and each["batch"] in (None, batch)
    ]
    return list({each["name"]: each for each in missing}.values())


def version(content: Content, name: str) -> str:
    """Of a peer, as the record has it; "" where it has none."""
    versions = content["environment"]["versions"]
    return str(versions.get(f"{name}-gpu") or versions.get(name) or "")  # beside the other one it is what is imported


def headline(content: Content, precision: str, batch: int, method: Method) -> list[Content]:
    """The records to quote: sustained ones where our own was taken so, else the cool ones."""
    keys = {"precision": precision, "batch": batch, "method": method}
    loaded = select(content, **keys, regime=Regime.SUSTAINED)
    return loaded if names(loaded)[:1] == [NAME] else select(content, **keys, regime=Regime.COOL)


def ceilings_text(ceilings: Content, precision: str) -> str:
    """The rates that a precision's floors were taken from, on one line."""
    rates = [f"{ceilings['bytes_per_s'] / 1e9:.4g} GB/s copy"]
    if precision == "fp32":
        rates.insert(0, f"{ceilings['flop_per_s'] / 1e12:.3g} TFLOP/s FFMA")
    if tensor := ceilings.get("tensor_flop_per_s", {}).get(precision):
        rates.insert(0, f"{tensor / 1e12:.3g} TFLOP/s {precision} on tensor cores")
    return ", ".join(rates)


def _checked(found: Content) -> Content:
    """The content, if it has what readers take for granted. Raises KeyError, TypeError or ValueError."""
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
    """A result of schema 2 as one of schema 3."""
    records = [{**record, "tf32": False} for record in old["records"]]
    return {**old, "schema": SCHEMA, "records": records, "absent": []}


def _with_regimes(old: Content) -> Content:
    """A result of schema 1 as one of schema 2."""
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
