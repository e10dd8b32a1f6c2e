"""Results as Parquet."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from vgg16gpu.errors import InputError
from vgg16gpu.io.files import atomic_writer, target_of
from vgg16gpu.io.foreign.documents import parse_json
from vgg16gpu.io.foreign.outputs import OutputLock
from vgg16gpu.io.results.columns import Columns, best_scores
from vgg16gpu.io.results.growing import GrowingFile, open_to_resume
from vgg16gpu.io.results.record import RecordFile, RunRecord, refuse_other_run
from vgg16gpu.io.results.results import ResultWriter
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
    r"""Return a name as an Arrow text, which is UTF-8: other bytes are written as \xff, say."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return name.encode(errors="surrogateescape").decode(errors="backslashreplace")
    return name


class ArrowForm:
    """How answers become batches."""

    def __init__(self, columns: Columns, identity: Mapping[str, Any]) -> None:
        """Build the schema, with the `identity` of the run in its metadata."""
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
        """Return a message of an Arrow stream with a row for each answer; missing values are null."""
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
        """Return all scores of each answer as a list; null for an error."""
        import pyarrow as pa  # noqa: PLC0415 - optional

        failed = np.array([bool(error) for error in answers.errors])
        offsets = np.concatenate([[0], np.cumsum(np.where(failed, 0, self._width))]).astype(np.int32)
        values = answers.scores[~failed].reshape(-1)
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, pa.float32()), mask=pa.array(failed))


def run_of(schema: Any) -> Any:
    """Return the identity of the run in a schema; None if it has none."""
    try:
        return parse_json(schema.metadata[_RUN], "the run of a schema")
    except (TypeError, KeyError, InputError):
        return None


def schema_of_stream(path: Path) -> Any:
    """Return the schema of an Arrow stream; None if not even that is whole."""
    import pyarrow as pa  # noqa: PLC0415 - optional

    try:
        with path.open("rb") as stream, pa.ipc.open_stream(stream) as reader:
            return reader.schema
    except (pa.ArrowException, OSError, EOFError):
        return None


def batches_of_stream(path: Path) -> Iterator[tuple[Any, int]]:
    """Yield the whole batches of an Arrow stream, each with the offset in the file where it ends."""
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
    """Return the inputs of a batch's rows."""
    names: Sequence[str] = batch.column("input").to_pylist()
    return names


def errors_of(batch: Any) -> int:
    """Return how many rows of a batch have an error."""
    return len(batch) - int(batch.column("error").null_count)


def _texts(texts: Sequence[str | None]) -> Any:
    import pyarrow as pa  # noqa: PLC0415 - optional

    try:
        return pa.array(texts, pa.string())
    except UnicodeEncodeError:
        return pa.array([None if text is None else storable(text) for text in texts], pa.string())


_GROUP_SIZE: Final = 32 << 20  # bytes of a row group, about; memory holds one at a time
_MOST_ROWS: Final = 1 << 16  # of a group
_TEXT_SIZE: Final = 256  # bytes of a row's texts, about


def partial_path(path: Path) -> Path:
    """Return the path of a .parquet file's rows until the file is made."""
    return path.with_name(f"{path.name}.partial")


class ParquetFile(ResultWriter):
    """A .parquet file. Each block of answers is in FILE.partial when `write` returns."""

    def __init__(self, path: Path, columns: Columns, run: RunRecord, lock: OutputLock, *, resume: bool) -> None:
        """Open the results; `lock`: of FILE.

        Raises InputError where `resume` finds a file that is not this run's, or one without its FILE.partial.
        """
        super().__init__(str(path), columns, lock)
        self._target = target_of(path)
        self._partial = target_of(partial_path(self._target))
        self._record = RecordFile(self._target, run.identity(columns))
        self._form = ArrowForm(columns, self._record.identity)
        self._file = GrowingFile(self._partial, self._form.header, self._record, str(partial_path(path)))
        self._is_whole = False  # FILE is there without FILE.partial: nothing can be added
        if resume and self._partial.is_file():
            self._go_on()
        elif resume and self._target.is_file():
            self._read_whole(run.inputs)

    def _finish(self) -> None:
        """See ResultWriter."""
        if self._file.rows:
            self._convert()
            self._file.finish()
            self._partial.unlink(missing_ok=True)

    def _close(self) -> None:
        """See ResultWriter."""
        try:
            self._file.settle()
            if self._file.rows and self._file.is_changed and not self._has_failed:
                self._convert()
        finally:
            self._file.close()

    def _write(self, answers: PredictionBatch) -> None:
        if self._is_whole:
            raise InputError(_no_partial(self._path, len(self.done), self._partial))
        self._file.append([self._form.batch(answers)], len(answers.names))

    def _stored(self, name: str) -> str:
        return storable(name)

    def _go_on(self) -> None:
        descriptor = open_to_resume(self._partial)
        names: list[str] = []
        size = 0
        try:
            schema = schema_of_stream(self._partial)
            if self._record.has_replaced(self._partial):
                os.close(descriptor)  # a kill came before this run's file had its name
                return
            if schema is None:
                self._refuse_unless_torn()
            else:
                refuse_other_run(self._partial, run_of(schema), self._record.identity)
                self._take_up_record()
                size = len(self._form.header)
                for batch, end in batches_of_stream(self._partial):
                    names += names_of(batch)
                    self.unanswered += errors_of(batch)
                    size = end
        except BaseException:
            os.close(descriptor)
            raise
        self.done = names
        self._file.go_on(descriptor, size, 0, len(names))

    def _refuse_unless_torn(self) -> None:
        """Raise InputError unless the stream is the beginning of this run's schema, torn by a kill."""
        with self._partial.open("rb") as stream:
            if not self._form.header.startswith(stream.read(len(self._form.header) + 1)):
                raise InputError(
                    f"'{self._partial}' is no stream of Arrow; move it away, or repeat the run without --resume"
                )

    def _read_whole(self, inputs: int | None) -> None:
        import pyarrow as pa  # noqa: PLC0415 - optional
        import pyarrow.parquet as pq  # noqa: PLC0415 - optional

        names: list[str] = []
        try:
            with pq.ParquetFile(self._target) as file:
                refuse_other_run(self._target, run_of(file.schema_arrow), self._record.identity)
                for batch in file.iter_batches(columns=["input", "error"]):
                    names += names_of(batch)
                    self.unanswered += errors_of(batch)
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"'{self._path}' cannot be read as a .parquet file: {error}") from error
        self._take_up_record()
        if inputs is not None and len(names) < inputs:
            raise InputError(_no_partial(self._path, len(names), self._partial))
        self.done, self._is_whole = names, True

    def _take_up_record(self) -> None:
        if self._record.path.exists():  # else it is written again: the schema has said that the run is the same
            self._record.read()

    def _convert(self) -> None:
        """Write FILE from all whole batches of FILE.partial, in groups of rows that do not depend on those batches."""
        import pyarrow as pa  # noqa: PLC0415 - optional
        import pyarrow.parquet as pq  # noqa: PLC0415 - optional

        width = self._columns.width if self._columns.all_scores else 0
        group = max(1, min(_MOST_ROWS, _GROUP_SIZE // (_TEXT_SIZE + 4 * width)))
        schema = self._form.schema
        waiting: list[Any] = []
        count = 0
        with atomic_writer(Path(self._path)) as stream, pq.ParquetWriter(stream, schema) as writer:
            for batch, _ in batches_of_stream(self._partial):
                waiting.append(batch)
                count += len(batch)
                while count >= group:
                    table = pa.Table.from_batches(waiting, schema)
                    writer.write_table(table.slice(0, group), row_group_size=group)
                    waiting, count = table.slice(group).to_batches(), count - group
            if count:
                writer.write_table(pa.Table.from_batches(waiting, schema), row_group_size=group)
            writer.close()  # the footer
            stream.flush()
            os.fsync(stream.fileno())


def _no_partial(path: str, rows: int, partial: Path) -> str:
    return (
        f"'{path}' has {rows:,} rows, and '{partial.name}', where --resume would go on, is not beside it; "
        "repeat the run without --resume"
    )
