"""Recorded runs as numbers with names: what `lab run` and `ladder --output` have written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from vgg16gpu.errors import InputError
from vgg16gpu.io.foreign import documents
from vgg16gpu.io.foreign.lines import NotReadError
from vgg16gpu.io.shown import shown
from vgg16gpu_lab.claims.s5 import LADDER, ONNXRUNTIME, SEED
from vgg16gpu_lab.claims.times import Entry, Times
from vgg16gpu_lab.measure.measure import Status
from vgg16gpu_lab.published import Key

SCHEMA: Final = 1  # of all of them
SEEDS: Final = ("S1", "S2", "S3", "S4", "S5")
PLANES: Final = "NCHW"  # as the reports give images to libraries
ABSENT: Final = "not run, or not at these sizes"

_LADDER_STATUS: Final = {"measured": Status.RIGHT, "wrong": Status.WRONG, "missing": Status.MISSING}


@dataclass(frozen=True)
class Record:
    """A file: which experiment, where and when it was measured, and its numbers."""

    path: Path
    experiment: str  # S1 to S5, or "ladder"
    model: str  # of a ladder: file and input
    device: str
    kind: str
    date: str
    quick: bool
    entries: Mapping[Key, Entry]
    floor: float | None = None  # ms of an empty launch, its 95th percentile; None: the record does not have it


def newest(folders: Sequence[Path]) -> Path | None:
    """Return the first of `folders` that holds records, itself or right below it: the one written to last."""
    for folder in folders:
        below = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
        times = {each: _last_written(each) for each in (folder, *below)}
        if any(times.values()):
            return max(times, key=lambda each: times[each])
    return None


def read_records(folder: Path | None, *others: Path) -> tuple[Record, ...]:
    """Read every record in a folder, and ladders by name; other JSON files are passed over.

    Raises InputError for what cannot be read, for a folder without a record, and for two records of one experiment.
    """
    if folder and not folder.is_dir():
        raise InputError(f"--records '{folder}' is no folder; name the one that `lab run` wrote to")
    found = _found(sorted(folder.glob("*.json")) if folder else [])
    for path in others:
        record = _read(path)
        if record is None:
            raise InputError(f"'{path}' is no record of `lab run` or `ladder --output`")
        if record.experiment != LADDER:
            raise InputError(f"--ladder '{path}' is a record of {record.experiment}, not of `ladder --output`")
        found.append(record)
    if not found:
        raise InputError(f"--records '{folder}' holds no record; run `vgg16gpu lab run all --output {folder}` first")
    return _one_of_each(found)


def read_files(paths: Iterable[Path]) -> tuple[Record, ...]:
    """Read the records among these files. Raises InputError as `read_records`, but not where there is none."""
    return _one_of_each(_found(paths))


def our_times(records: Sequence[Record]) -> Times:
    """Merge all records. A ladder's times are of whole networks: they have no floor."""
    entries = {name: entry for record in records for name, entry in record.entries.items()}
    floors = {record.experiment: record.floor for record in records if record.floor is not None}
    return Times(entries, ABSENT, floors, names_rows=True)


def _found(paths: Iterable[Path]) -> list[Record]:
    return [record for path in paths if (record := _read(path))]


def _one_of_each(records: Sequence[Record]) -> tuple[Record, ...]:
    seen: dict[str, Path] = {}
    for record in records:
        if (other := seen.setdefault(record.experiment, record.path)) != record.path:
            raise InputError(f"two records of {record.experiment}: '{other}' and '{record.path}'; move one away")
    return tuple(records)


def _last_written(folder: Path) -> float:
    """Return the time of the last record in a folder, 0 without one."""
    names = [f"{name}.json" for name in SEEDS]
    return max((path.stat().st_mtime for name in names if (path := folder / name).is_file()), default=0.0)


def read_json(path: Path, remedy: str) -> Any:
    """Read a JSON file. Raises InputError, with the remedy for what is not JSON."""
    try:
        return documents.read_json(path)
    except NotReadError:
        raise
    except InputError as error:
        raise InputError(f"{error}; {remedy}") from error


def _read(path: Path) -> Record | None:
    """Read a record; None for JSON that is something else. Raises InputError."""
    content = read_json(path, "move it away or run it again")
    if not isinstance(content, dict):
        return None
    is_ladder = "rungs" in content and ONNXRUNTIME in content
    if not is_ladder and not ("rows" in content and content.get("experiment") in SEEDS):
        return None  # of a benchmark, say, which has another schema
    if content.get("schema", SCHEMA) != SCHEMA:
        raise InputError(f"'{path}' has schema {shown(content['schema'])}, this version reads {SCHEMA}; run it again")
    try:
        entries = _ladder(content) if is_ladder else dict(map(_row, content["rows"]))
        place = content["environment"]
        return Record(
            path,
            LADDER if is_ladder else content["experiment"],
            _model(content["model"]) if is_ladder else "",
            place["device"]["name"],
            place["device"]["kind"],
            place["date"],
            bool(content.get("options", {}).get("quick")),
            entries,
            _floor(content.get("empty_launch")),
        )
    except documents.OTHER_FORM as error:
        raise InputError(f"'{path}' is a record of another version ({error!r} is wrong); run it again") from error


def _floor(empty: Mapping[str, Any] | None) -> float | None:
    """Return milliseconds of an empty launch; None in older records."""
    return None if empty is None else 1e3 * float(empty["p95_s"])


def _row(recorded: Mapping[str, Any]) -> tuple[Key, Entry]:
    row = in_planes(recorded)
    setup = row["details"].get("setup_s")
    name = (row["seed"], row["table"], row["size"], row["method"], row["parameter"])
    setup_ms = None if setup is None else 1e3 * setup
    parts = [row["compute"], *([row["convert"]] if row["scope"] == "total" and row["convert"] else [])]
    has_spread = row["compute"] and "p95_s" in row["compute"]["warm"] and row["scope"] != "setup"
    spread = _spread(*(part["warm"] for part in parts)) if has_spread else None
    samples = row["compute"]["warm"].get("samples") if row["compute"] else None
    tolerance, variant = row.get("tolerance"), row.get("variant", "")
    taken = Entry(row["ours"], row["status"], row["remark"], row["error"], setup_ms, spread, tolerance)
    return name, replace(taken, variant=variant, samples=samples)


def in_planes(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row with a library's best plan for the reports' order of axes: planes, NCHW.

    The row itself where that is the order of its fastest plan, or the row has none, or tells its set-up; also where
    image and output have one channel, as both orders are one then. Without a plan for planes it counts as refused.
    """
    details, compute = row["details"], row["compute"]
    if details.get("order") in (None, PLANES) or compute is None or row["scope"] == "setup":
        return row
    problem = row["problem"]
    if problem["channels"] == problem["outputs"] == 1:
        return row
    plans = [plan for plan in details["plans"] if plan["order"] == PLANES and plan["median_s"] is not None]
    if not plans:
        remark = "no plan for planes (NCHW)"
        return {**row, "ours": None, "error": None, "compute": None, "status": Status.REFUSED.value, "remark": remark}
    best = min(plans, key=lambda plan: plan["median_s"])
    return {
        **row,
        "ours": 1e3 * best["median_s"],
        "ours_percent": row["ours_percent"] * row["ours"] / (1e3 * best["median_s"]),
        "error": best["error"],
        "compute": {"warm": {"median_s": best["median_s"], "samples": best["samples"]}},  # plans have no percentiles
        "details": {**details, "order": PLANES, "setup_s": best["setup_s"]},
        "remark": "the fastest plan for planes (NCHW)",
    }


def _spread(*summaries: Mapping[str, Any]) -> tuple[float, float]:
    """Return (least, 95th percentile) in ms of several things in sequence."""
    return 1e3 * sum(each["min_s"] for each in summaries), 1e3 * sum(each["p95_s"] for each in summaries)


def _model(model: Mapping[str, Any]) -> str:
    return f"{Path(model['path']).name}, {'x'.join(map(str, model['input_shape']))}"


def _ladder(content: Mapping[str, Any]) -> dict[Key, Entry]:
    line = content[ONNXRUNTIME]
    entries = {(SEED, LADDER, "", ONNXRUNTIME, ""): Entry(1e3 * line["median_s"], spread=_spread(line))}
    for rung in content["rungs"]:
        times, status = rung["times"], _LADDER_STATUS[rung["status"]].value
        milliseconds, spread = (1e3 * times["median_s"], _spread(times)) if times else (None, None)
        judged = rung.get("tolerance"), rung.get("precision", "fp32")
        entry = Entry(milliseconds, status, rung["why"], rung["error"], None, spread, *judged)
        entries[SEED, LADDER, "", rung["letter"], ""] = entry
    return entries
