"""Rows as batches of Arrow, which is what a .parquet file is made of. Needs pyarrow, extra [parquet]."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from vgg16gpu.errors import InputError
from vgg16gpu.io.foreign.documents import parse_json
from vgg16gpu.io.results.columns import Columns, best_scores
from vgg16gpu.io.scores import PredictionBatch

_RUN: Final = b"vgg16gpu.run"  # in the metadata of the schema


def need_pyarrow(path: object) -> None:
    """Raise InputError, which says what to install, when a .parquet file cannot be written or read."""
    try:
        import pyarrow.parquet  # noqa: F401, PLC0415 - optional
    except ImportError as error:
        raise InputError(
            f"'{path}': .parquet needs pyarrow ({error}); install it with pip install 'vgg16gpu[parquet]', or name a "
            ".csv or .jsonl file"
        ) from error


def storable(name: str) -> str:
    r"""A name as an Arrow text, which is UTF-8: bytes that are none are written as \xff, say."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return name.encode(errors="surrogateescape").decode(errors="backslashreplace")
    return name


class ArrowForm:
    """How answers become batches."""

    def __init__(self, columns: Columns, identity: Mapping[str, Any]) -> None:
        """`identity` of the run goes into the schema's metadata."""
        import pyarrow as pa  # noqa: PLC0415 - optional

        types = {"class": pa.int32(), "label": pa.string(), "score": pa.float32(), "probability": pa.float64()}
        fields = [("input", pa.string()), ("error", pa.string())]
        fields += [(name, types[name.split("_")[0]]) for name in columns.rank_names]
        fields += [("scores", pa.list_(pa.float32()))] if columns.all_scores else []
        self.schema = pa.schema(fields, metadata={_RUN: json.dumps(identity)})
        self.header: bytes = self.schema.serialize().to_pybytes()
        labels = [None] * columns.width if columns.labels is None else list(map(storable, columns.labels))
        self._labels = pa.array(labels if columns.top else [], pa.string())
        self._width = columns.width if columns.all_scores else 0

    def batch(self, answers: PredictionBatch) -> bytes:
        """A message of a stream of Arrow with a row for each answer; what there is not is null."""
        import pyarrow as pa  # noqa: PLC0415 - optional

        columns = [_texts(answers.names), _texts([error or None for error in answers.errors])]
        scores = best_scores(answers)
        for rank in range(answers.best.shape[1]):
            best, score, probability = answers.best[:, rank], scores[:, rank], answers.probabilities[:, rank]
            classes = pa.array(best.astype(np.int32), mask=best < 0)
            columns += [classes, self._labels.take(classes)]
            columns += [pa.array(score, mask=np.isnan(score)), pa.array(probability, mask=np.isnan(probability))]
        if self._width:
            columns.append(self._lists(answers))
        message: bytes = pa.RecordBatch.from_arrays(columns, schema=self.schema).serialize().to_pybytes()
        return message

    def _lists(self, answers: PredictionBatch) -> Any:
        """All scores of each answer as a list; null where there is an error."""
        import pyarrow as pa  # noqa: PLC0415 - optional

        failed = np.array([bool(error) for error in answers.errors])
        offsets = np.concatenate([[0], np.cumsum(np.where(failed, 0, self._width))]).astype(np.int32)
        values = answers.scores[~failed].reshape(-1)
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, pa.float32()), mask=pa.array(failed))


def run_of(schema: Any) -> Any:
    """The identity of the run that a schema says; None if it says none."""
    try:
        return parse_json(schema.metadata[_RUN], "the run of a schema")
    except (TypeError, KeyError, InputError):
        return None


def schema_of_stream(path: Path) -> Any:
    """The schema of a stream of Arrow; None where not even that is whole."""
    import pyarrow as pa  # noqa: PLC0415 - optional

    try:
        with path.open("rb") as stream, pa.ipc.open_stream(stream) as reader:
            return reader.schema
    except (pa.ArrowException, OSError, EOFError):
        return None


def batches_of_stream(path: Path) -> Iterator[tuple[Any, int]]:
    """The batches of a stream of Arrow, each with the place in the file where it ends, as far as they are whole."""
    import pyarrow as pa  # noqa: PLC0415 - optional

    with pa.memory_map(str(path)) as source:  # so that only columns that are asked for are read
        schema = pa.ipc.read_schema(source)
        while True:
            try:
                batch = pa.ipc.read_record_batch(pa.ipc.read_message(source), schema)
            except (pa.ArrowException, OSError, EOFError):  # the end, or a batch torn by a kill
                return
            yield batch, source.tell()


def names_of(batch: Any) -> Sequence[str]:
    """The inputs of a batch's rows."""
    names: Sequence[str] = batch.column("input").to_pylist()
    return names


def errors_of(batch: Any) -> int:
    """How many rows of a batch have an error."""
    return len(batch) - int(batch.column("error").null_count)


def _texts(texts: Sequence[str | None]) -> Any:
    import pyarrow as pa  # noqa: PLC0415 - optional

    try:
        return pa.array(texts, pa.string())
    except UnicodeEncodeError:
        return pa.array([None if text is None else storable(text) for text in texts], pa.string())
