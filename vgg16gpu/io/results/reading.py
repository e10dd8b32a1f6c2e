"""Scores read back from a file of results."""

from __future__ import annotations

import csv
import json
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from vgg16gpu.errors import InputError
from vgg16gpu.io.results.arrow_form import need_pyarrow
from vgg16gpu.io.scores import Scores
from vgg16gpu.io.text import parse_numbers

Read: TypeAlias = tuple[list[str] | None, Scores]


def read_scores(path: Path) -> Read:
    """The names of the inputs, None in .npy and .txt, which have none, and (N, K) all scores of the first output.

    Further axes of a row are flat. A row without an answer is NaN. Raises InputError for a file that is none of
    results, or has the ranks alone.
    """
    read = _READERS.get(path.suffix.lower())
    if read is None:
        raise InputError(f"'{path}' has the ending '{path.suffix}'; scores are in {', '.join(_READERS)}")
    try:
        names, rows = read(path)
        scores = np.asarray(rows, np.float32).reshape(len(rows), -1)
    except OSError as error:
        raise InputError(f"'{path}' cannot be read: {error.strerror or error}") from error
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, IndexError, EOFError, zipfile.BadZipFile, csv.Error) as error:
        raise InputError(f"'{path}' is no file of results: {error}") from error
    if names is not None and len(names) != len(scores):
        raise InputError(f"'{path}' has {len(names)} names of {len(scores)} rows of scores; is it complete?")
    return names, scores


_Rows: TypeAlias = tuple[list[str] | None, Sequence[Any] | Scores]


def _read_csv(path: Path) -> _Rows:
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as stream:
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
    with path.open("rb") as stream:
        for line in stream:
            row = json.loads(line)
            if "scores" not in row:
                raise _no_scores(path)
            names.append(row["input"])
            scores.append(None if row["scores"] is None else np.array(row["scores"], np.float32))
    return names, _filled(scores)


def _read_json(path: Path) -> _Rows:
    rows = json.loads(path.read_bytes())
    return [row["input"] for row in rows], [np.array(row["scores"], np.float32) for row in rows]


def _read_parquet(path: Path) -> _Rows:
    need_pyarrow(path)
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
    with np.load(path, allow_pickle=False) as archive:
        return archive["names"].tolist() if "names" in archive else None, archive["scores"]


def _read_npy(path: Path) -> _Rows:
    return None, np.load(path, allow_pickle=False)


def _read_txt(path: Path) -> _Rows:
    text = path.read_bytes()
    return None, parse_numbers(text, str(path)).reshape(text.count(b"\n"), -1)


def _no_scores(path: Path) -> InputError:
    return InputError(f"'{path}' has no column of all scores; write it with --scores")


def _filled(rows: Sequence[Scores | None]) -> list[Scores]:
    """Rows of NaN where there is none."""
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
