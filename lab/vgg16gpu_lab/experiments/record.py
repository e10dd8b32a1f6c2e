"""The results of an experiment as files: CSV for a table, JSON with all there is, environment and commit included."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from vgg16gpu.bench.measure.environment import environment
from vgg16gpu.errors import InputError
from vgg16gpu.io.files import atomic_writer, check_writable
from vgg16gpu.io.foreign.outputs import Named, refuse_read_files
from vgg16gpu.io.scores import finite_or_none
from vgg16gpu_lab.experiment import Choice, Experiment, Row
from vgg16gpu_lab.measure.bench_rig import BenchRig
from vgg16gpu_lab.measure.measure import Times

SCHEMA: Final = 1

_SUFFIXES: Final = (".csv", ".json", ".png", ".svg")  # of tables and figures
_TIMES: Final = ("warm", "cold")


def content(experiment: Experiment, rows: Sequence[Row], rig: BenchRig, choice: Choice) -> dict[str, Any]:
    """Return everything that a reader of a number may ask for."""
    options = {
        name: str(value) if isinstance(value, Path) else value for name, value in vars(choice).items() if name != "own"
    }
    return {
        "schema": SCHEMA,
        "experiment": experiment.name,
        "title": experiment.title,
        "teaches": experiment.teaches,
        "method": experiment.method(rig),
        "options": {**options, "own": [variant.name for variant in choice.own]},
        "environment": environment(rig.device),
        "ceilings": asdict(rig.ceilings),
        "empty_launch": None if rig.broken else asdict(rig.empty_launch),
        "rows": [_row(row) for row in rows],
    }


def check_folder(folder: Path, names: Sequence[str], reads: Iterable[Named] = ()) -> None:
    """Create the folder, and raise InputError now rather than after a long run if the files cannot go there.

    Or where they would replace some of `reads`, as `refuse_read_files` takes them.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--output '{folder}' cannot be made: {error.strerror or error}") from error
    for name in names:
        for suffix in (".csv", ".json"):
            check_writable(folder / f"{name}{suffix}")
    written = [path for path in folder.iterdir() if path.suffix in _SUFFIXES and path.name.startswith(tuple(names))]
    refuse_read_files((("--output", path) for path in written), reads)


def write(folder: Path, name: str, found: Mapping[str, Any]) -> tuple[Path, Path]:
    """Write NAME.csv and NAME.json, each whole or not at all; return the paths. Raises ModelError."""
    return write_pair(folder, name, [_flat(row) for row in found["rows"]], found)


def write_pair(
    folder: Path, name: str, rows: Sequence[Mapping[str, Any]], found: Mapping[str, Any]
) -> tuple[Path, Path]:
    """Write the same for rows of a table and everything there is to say of them."""
    paths = folder / f"{name}.csv", folder / f"{name}.json"
    texts = _csv(rows), json.dumps(finite_or_none(found), indent=1, allow_nan=False)
    for path, text in zip(paths, texts, strict=True):
        with atomic_writer(path) as stream:
            stream.write(text.encode() if text.endswith("\n") else f"{text}\n".encode())
    return paths


def _row(row: Row) -> dict[str, Any]:
    found = row.measurement
    return {
        "seed": row.seed,
        "table": row.table,
        "size": row.size,
        "method": row.method,
        "parameter": row.parameter,
        "unit": row.unit,
        "theirs": row.theirs,
        "theirs_percent": row.theirs_percent,
        "ours": row.ours,
        "ours_percent": row.ours_percent,
        "status": row.status.value,
        "remark": row.remark,
        "variant": row.variant,
        "parameters": dict(row.parameters),
        "problem": asdict(row.problem) if row.problem else None,
        "flop": row.problem.flop if row.problem else None,
        "nbytes": row.problem.nbytes if row.problem else None,
        "scope": row.scope,
        "error": found.error if found else None,
        "tolerance": found.tolerance if found else None,
        "checked": found.checked if found else "",
        "compute": _times(found.compute) if found else None,
        "convert": _times(found.convert) if found else None,
        "details": dict(found.details) if found else {},
        "output": found.output if found else "",
    }


def _times(times: Times | None) -> dict[str, Any] | None:
    return asdict(times) if times else None


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of the CSV file: milliseconds, and the numbers behind them."""
    names = [
        "seed",
        "table",
        "size",
        "method",
        "parameter",
        "unit",
        "theirs",
        "theirs_percent",
        "ours",
        "ours_percent",
        "status",
        "variant",
        "scope",
    ]
    flat = {name: row[name] for name in names}
    for phase in ("compute", "convert"):
        for cache in _TIMES:
            summary = (row[phase] or {}).get(cache) or {}
            median = summary.get("median_s")
            flat[f"{phase}_{cache}_ms"] = None if median is None else 1e3 * median
            flat[f"{phase}_{cache}_samples"] = summary.get("samples")
    return {**flat, "error": row["error"], "remark": row["remark"]}


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()
