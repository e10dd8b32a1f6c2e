"""The end of a job: every input has exactly one row, or none is called a success."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from vgg16gpu.cluster.job import JobFolder, ShardJob
from vgg16gpu.cluster.manifest import Manifest
from vgg16gpu.errors import InputError, ModelError
from vgg16gpu.io.files import atomic_writer
from vgg16gpu.io.foreign.documents import read_json
from vgg16gpu.io.results.parquet_results import storable
from vgg16gpu.io.shown import printable, shown
from vgg16gpu.pictures.listing import Listing
from vgg16gpu.runtime.answers.rows import first_open

SUCCESS: Final = "_SUCCESS"
SUMMARY: Final = "_summary.json"
SIZES: Final = "part_bytes"  # in it


def finish(job: ShardJob, folder: JobFolder) -> dict[str, Any]:
    """Check all parts, which must be there, against the list; write the summary and _SUCCESS. The summary.

    Several processes may end a job at a time. Raises ModelError, naming the part, where a row is missing, of something
    else, or there twice.
    """
    rows = errors = 0
    sizes = []
    for shard in range(job.cut.count):
        part = folder.part(shard)
        sizes.append(_size(part))
        found = _check_part(part, job.inputs, *job.cut.bounds(shard))
        rows, errors = rows + found[0], errors + found[1]
    summary = {**_summary(job, folder, rows, errors), SIZES: sizes}
    _write(folder.path / SUMMARY, json.dumps(summary, indent=1) + "\n")
    _write(folder.path / SUCCESS, "")
    folder.tidy()
    return summary


def check_sizes(job: ShardJob, folder: JobFolder, summary: Mapping[str, Any]) -> bool:
    """Return whether the summary of a job that has ended tells of all its parts; older ones do not.

    Raises ModelError, naming the part, where one has another size by now: it was cut, or replaced.
    """
    sizes = summary.get(SIZES)
    if not isinstance(sizes, list) or len(sizes) != job.cut.count:
        return False
    for shard, size in enumerate(sizes):
        part = folder.part(shard)
        if (found := _size(part)) != size:
            raise _wrong(part, f"has {found:,} bytes, and had {shown(size)} when the job ended")
    return True


def reopen(folder: JobFolder) -> None:
    """Reopen a job that has ended: remove _SUCCESS, as some of its shards are missing."""
    (folder.path / SUCCESS).unlink(missing_ok=True)


def read_summary(folder: JobFolder) -> dict[str, Any] | None:
    """Return the summary of a job that has ended; None of one that has not."""
    if not (folder.path / SUCCESS).is_file():
        return None
    try:
        summary = read_json(folder.path / SUMMARY)
    except InputError:
        return None
    return summary if isinstance(summary, dict) else None


def _size(part: Path) -> int:
    try:
        return part.stat().st_size
    except OSError as error:
        raise _wrong(part, f"cannot be read ({error.strerror or error})") from error


def _check_part(path: Path, inputs: Manifest, first: int, last: int) -> tuple[int, int]:
    """Return how many rows a part has, and how many of them have an error. Raises for wrong rows."""
    import pyarrow as pa  # noqa: PLC0415 - optional
    import pyarrow.parquet as pq  # noqa: PLC0415 - optional

    try:
        table = pq.read_table(path, columns=["input", "error"])
    except (pa.ArrowException, OSError) as error:
        raise _wrong(path, f"cannot be read ({error})") from error
    names, wanted = table.column("input").combine_chunks(), inputs.names(first, last)
    if wanted is None or not names.equals(wanted):
        _check_names(path, names.to_pylist(), inputs.listing(first, last))
    return len(table), len(table) - table.column("error").null_count


def _check_names(path: Path, done: list[str], listing: Listing) -> None:
    """Raise ModelError unless these are the rows of the listing: one a picture, and one a sample of a file."""
    wanted = [storable(name) for name in listing.files]
    if not listing.numbers:
        if done != wanted:
            raise _wrong(path, _difference(done, wanted))
        return
    (file, _), expected = first_open(done, listing)
    is_last_open = file == len(listing.files) - 1 and listing.files[file] in listing.numbers
    if [storable(name) for name in expected] != done or not (is_last_open or file == len(listing.files)):
        raise _wrong(path, _difference(done, wanted))


def _difference(found: list[Any], wanted: list[str]) -> str:
    for row, (was, name) in enumerate(zip(found, wanted, strict=False)):
        if was != name:
            return f"row {row:,} is of '{printable(str(was))}', and '{printable(name)}' is the input"
    return f"has {len(found):,} rows of {len(wanted):,} inputs"


def _wrong(path: Path, what: str) -> ModelError:
    return ModelError(f"{printable(str(path))}: {what}; remove that file, and give the same command again")


def _summary(job: ShardJob, folder: JobFolder, rows: int, errors: int) -> dict[str, Any]:
    lines = folder.logged()
    last = {line["shard"]: line for line in lines}
    seconds: Counter[str] = Counter()
    inputs: Counter[str] = Counter()
    for line in last.values():
        who = f"{line['host']}: {', '.join(line['devices'])}"
        seconds[who] += line["seconds"]
        inputs[who] += line["inputs"]
    return {
        "inputs": job.run.inputs,
        "rows": rows,
        "answered": rows - errors,
        "errors": errors,
        "shards": job.cut.count,
        "shard_size": job.size,
        "computed": len(lines),  # shards; more than there are where some were computed again
        "shares": {who: {"inputs": inputs[who], "seconds": round(seconds[who], 3)} for who in sorted(inputs)},
        "run": job.run.identity(job.columns),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _write(path: Path, text: str) -> None:
    with atomic_writer(path) as stream:
        stream.write(text.encode())
