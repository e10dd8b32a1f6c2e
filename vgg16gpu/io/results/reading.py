"""Scores read back from a file of results."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from vgg16gpu.errors import InputError
from vgg16gpu.io.foreign.arrays import read_npy, read_npz, reading
from vgg16gpu.io.foreign.documents import parse_json, read_json
from vgg16gpu.io.foreign.lines import NotReadError, as_utf8, opened, opened_text, read_bytes
from vgg16gpu.io.results.parquet_results import need_pyarrow, run_of
from vgg16gpu.io.results.record import record_path
from vgg16gpu.io.scores import Scores
from vgg16gpu.io.shown import ending
from vgg16gpu.io.text import parse_numbers

Read: TypeAlias = tuple[list[str] | None, Scores]


def read_scores(path: str | os.PathLike[str]) -> Read:
    """Return the names of the inputs (None for .npy and .txt, which have none) and (N, K) scores of the first output.

    Further axes of a row are flat. A row without an answer is NaN. Raises InputError for a file that is none of
    results, or has the ranks alone.
    """
    path = Path(path)
    read = _READERS.get(path.suffix.lower())
    if read is None:
        raise InputError(f"'{path}' has {ending(path.suffix)}; scores are in {', '.join(_READERS)}")
    if read is _read_parquet:
        need_pyarrow(path)
    with opened(path, f"'{path}'"), reading(f"'{path}'", "is no file of results:"):
        names, rows = read(path)
        scores = np.asarray(rows, np.float32).reshape(len(rows), -1)
    if names is not None and len(names) != len(scores):
        raise InputError(f"'{path}' has {len(names)} names of {len(scores)} rows of scores; is it complete?")
    return names, scores


_Rows: TypeAlias = tuple[list[str] | None, Sequence[Any] | Scores]


def _read_csv(path: Path) -> _Rows:
    with opened_text(path, f"'{path}'") as stream:
        rows = csv.reader(stream, strict=True)
        header = next(rows, [])
        if "scores_0" not in header:
            raise _no_scores(path)
        first = header.index("scores_0")
        names, scores = [], []
        for row in rows:
            names.append(row[0])
            texts = row[first:] if "" not in row[first:] else [text or "nan" for text in row[first:]]
            scores.append(np.array(list(map(float, texts)), np.float32))
    return names, scores


def _read_jsonl(path: Path) -> _Rows:
    names, scores = [], []
    with opened_text(path, f"'{path}'") as stream:
        for line in stream:
            with _of_results(path):
                row = parse_json(line, "a row")
            if "scores" not in row:
                raise _no_scores(path)
            names.append(row["input"])
            scores.append(None if row["scores"] is None else np.array(row["scores"], np.float32))
    return names, _filled(scores)


def _read_json(path: Path) -> _Rows:
    with _of_results(path):
        rows = read_json(path, "it")
    return [row["input"] for row in rows], [np.array(row["scores"], np.float32) for row in rows]


def _read_parquet(path: Path) -> _Rows:
    import pyarrow.parquet as pq  # noqa: PLC0415 - optional

    with pq.ParquetFile(path) as file:
        if "scores" not in file.schema_arrow.names:
            raise _no_scores(path)
        names, scores = [], []
        for batch in file.iter_batches(columns=["input", "scores"]):
            names += batch.column("input").to_pylist()
            lists = batch.column("scores")
            scores += [row.values.to_numpy(zero_copy_only=False) if row.is_valid else None for row in lists]
    return names, _filled(scores)


def _read_npz(path: Path) -> _Rows:
    with _of_results(path):
        arrays = read_npz(path)
    return [str(name) for name in arrays["names"].reshape(-1)] if "names" in arrays else None, arrays["scores"]


def _read_npy(path: Path) -> _Rows:
    with _of_results(path):
        return None, read_npy(path)


def _read_txt(path: Path) -> _Rows:
    text = as_utf8(read_bytes(path, f"'{path}'"), f"'{path}'")
    return None, parse_numbers(text, str(path)).reshape(text.count(b"\n"), -1)


@contextmanager
def _of_results(path: Path) -> Iterator[None]:
    """Turn a reader's refusal of a file into one that says that the file is none of results."""
    try:
        yield
    except NotReadError:
        raise
    except InputError as error:
        raise InputError(f"'{path}' is no file of results: {error}") from error


def _no_scores(path: Path) -> InputError:
    return InputError(f"'{path}' has no column of all scores; write it with --scores")


def _filled(rows: Sequence[Scores | None]) -> list[Scores]:
    """Return the rows, with NaN for a missing one."""
    width = next((row.size for row in rows if row is not None), 0)
    return [np.full(width, np.nan, np.float32) if row is None else row for row in rows]


_READERS: Final[dict[str, Callable[[Path], _Rows]]] = {
    ".csv": _read_csv,
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
    ".npz": _read_npz,
    ".npy": _read_npy,
    ".txt": _read_txt,
    ".json": _read_json,
}


def read_options(path: Path) -> tuple[str, dict[str, Any]] | None:
    """Return the options of the run that has written a file of results, behind the name of what says them.

    That is the record beside the file, else the metadata of a .parquet file. None where neither is there. Raises
    InputError for a record that cannot be read or says nothing of options.
    """
    record = record_path(path)
    if record.is_file():
        name, run = record.name, read_json(record)
        run = run.get("run") if isinstance(run, dict) else None
    elif path.suffix.lower() == ".parquet" and path.is_file():
        name, run = path.name, _run_of_parquet(path)
        if run is None:
            return None
    else:
        return None
    options = run.get("options") if isinstance(run, dict) else None
    if not isinstance(options, dict):
        raise InputError(f"'{record}' is no record of a run: it says nothing of options; remove it")
    return name, options


def _run_of_parquet(path: Path) -> Any:
    need_pyarrow(path)
    import pyarrow.parquet as pq  # noqa: PLC0415 - optional

    with opened(path, f"'{path}'"), reading(f"'{path}'", "is no file of results:"):
        return run_of(pq.read_schema(path))
