"""parquet_results.py, arrow_form.py: the file, the stream beside it, and a process without pyarrow."""

import os
import resource
import sys

import numpy as np
import pytest

from tests.io.results.runs import LABELS, answers_of, columns_of, error_of, names_of, record_of, run, scores_of, write
from vgg16gpu.errors import InputError, ModelError
from vgg16gpu.io.results import check_output, open_results, parquet_results, read_scores, record_path
from vgg16gpu.io.results.parquet_results import storable

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ROWS = 24


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.parquet"


@pytest.fixture
def partial(tmp_path):
    return tmp_path / "a.parquet.partial"


def kill(results):
    """What SIGKILL does: the descriptor goes, and nothing else is done."""
    os.close(results._file._file.descriptor)
    results._file._file = None
    results._file._is_published = True


def killed_at(path, stop):
    with open_results(path, columns_of(), record_of(ROWS)) as results:
        write(results, 0, stop, block=5)
        kill(results)


@pytest.mark.parametrize("labels", [LABELS, None])
@pytest.mark.parametrize("scores", [True, False])
def test_a_table(path, scores, labels):
    run(path, ROWS, columns_of(scores=scores, labels=labels))
    table = pq.read_table(path)
    types = {"class": "int32", "label": "string", "score": "float", "probability": "double"}
    kinds = {f"{name}_{rank}": types[name] for rank in (1, 2) for name in types}
    assert {field.name: str(field.type).replace("element", "item") for field in table.schema} == {
        "input": "string",
        "error": "string",
        **kinds,
        **({"scores": "list<item: float>"} if scores else {}),
    }
    whole = answers_of(0, ROWS)
    rows = table.to_pylist()
    assert [row["input"] for row in rows] == [storable(name) for name in names_of(ROWS)]
    assert [row["error"] for row in rows] == [error_of(i) or None for i in range(ROWS)]
    for i, row in enumerate(rows):
        best = whole.best[i].tolist()
        if error_of(i):
            assert not any(row[name] for name in row if name not in ("input", "error"))
            continue
        assert [row["class_1"], row["class_2"]] == best
        assert [row["label_1"], row["label_2"]] == ([LABELS[k] for k in best] if labels else [None, None])
        np.testing.assert_array_equal(np.float32([row["score_1"], row["score_2"]]), whole.scores[i, best])
        assert [row["probability_1"], row["probability_2"]] == whole.probabilities[i].tolist()
        if scores:
            np.testing.assert_array_equal(np.float32(row["scores"]), whole.scores[i])


def test_groups_of_rows_do_not_depend_on_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_results, "_MOST_ROWS", 10)
    for block in (1, 3, 7, 10, 24):
        run(tmp_path / f"{block}.parquet", ROWS, block=block)
    contents = {file.read_bytes() for file in tmp_path.glob("*.parquet")}
    assert len(contents) == 1
    with pq.ParquetFile(tmp_path / "7.parquet") as file:
        assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [10, 10, 4]


def test_torn_at_every_byte_of_the_last_batches(path, partial):
    run(path, ROWS)
    whole = path.read_bytes()
    path.unlink()
    killed_at(path, 5)
    ends = [partial.stat().st_size]
    for stop in (10, 15):
        killed_at(path, stop)
        ends.append(partial.stat().st_size)
    stream = partial.read_bytes()
    for size in [*range(0, ends[0], 601), *range(ends[0], len(stream), 97), *ends]:
        partial.write_bytes(stream[:size])
        rows = 5 * sum(end <= size for end in ends)
        assert run(path, ROWS, resume=True) == rows, size
        assert path.read_bytes() == whole
        assert not partial.exists()
        path.unlink()


def test_an_interrupted_file_goes_on_from_its_stream(path, partial):
    run(path, ROWS, stop=10)
    assert len(pq.read_table(path)) == 10
    assert partial.exists()
    stream = partial.read_bytes()
    partial.unlink()
    with pytest.raises(InputError, match=r"has 10 rows, and 'a.parquet.partial', where --resume would go on, is not"):
        run(path, ROWS, resume=True)
    partial.write_bytes(stream)
    assert run(path, ROWS, resume=True) == 10
    assert len(pq.read_table(path)) == ROWS
    assert not partial.exists()


def test_more_inputs_than_a_whole_file_has_are_refused_when_they_come(path):
    record = record_of(ROWS, inputs=None, list=None)
    run(path, 10, record=record)
    with pytest.raises(InputError, match="has 10 rows, and"):
        run(path, ROWS, record=record, resume=True)


def test_a_file_without_its_record_tells_by_itself(path):
    run(path, ROWS)
    record_path(path).unlink()
    assert run(path, ROWS, resume=True) == ROWS
    with pytest.raises(InputError, match="the model file is another one"):
        run(path, ROWS, record=record_of(ROWS, model="x"), resume=True)


def test_a_file_that_is_none_is_refused(path, partial):
    path.write_bytes(b"PAR1 or so")
    with pytest.raises(InputError, match=r"cannot be read as a \.parquet file"):
        run(path, ROWS, resume=True)
    path.unlink()
    pq.write_table(pa.table({"input": ["a"], "error": ["b"]}), path)
    with pytest.raises(InputError, match="says nothing of the run"):
        run(path, ROWS, resume=True)
    partial.write_bytes(b"text of somebody")
    with pytest.raises(InputError, match="is no stream of Arrow"):
        run(path, ROWS, resume=True)
    partial.write_bytes(pa.schema([("a", pa.int8())]).serialize().to_pybytes())
    with pytest.raises(InputError, match="says nothing of the run"):
        run(path, ROWS, resume=True)


def test_no_room_for_the_end_leaves_the_stream(path, partial, caplog):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill():
        with open_results(path, columns_of(), record_of(ROWS)) as results:
            write(results, 0, ROWS)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1500, hard))
            results.finish()

    try:
        with pytest.raises(ModelError, match=r"a\.parquet: cannot be written \(File too large\)"):
            fill()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not caplog.records
    assert [file.name for file in path.parent.iterdir() if not file.name.endswith(".json")] == [partial.name]
    assert run(path, ROWS, resume=True) == ROWS
    np.testing.assert_array_equal(read_scores(path)[1], scores_of(0, ROWS))
    assert not partial.exists()


def test_without_pyarrow_one_line_says_what_to_install(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "pyarrow.parquet", raising=False)
    for call in (check_output, read_scores):
        with pytest.raises(
            InputError, match=r"needs pyarrow \(.*\); install it with pip install 'vgg16gpu\[parquet\]'"
        ):
            call(path)
    assert check_output(path.with_suffix(".csv")) == "csv"
