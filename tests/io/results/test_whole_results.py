"""whole_results.py, parts.py: files as numpy writes them, in memory that does not grow."""

import io
import json
import tracemalloc

import numpy as np
import pytest

from tests.io.results.runs import answers_of, columns_of, names_of, record_of, run, scores_of
from tests.support.later import later
from vgg16gpu.io.results import open_results
from vgg16gpu.io.scores import PredictionBatch


def names_in(folder):
    return sorted(file.name for file in folder.iterdir())


@pytest.mark.parametrize("shape", [(5,), (2, 3), ()])
@pytest.mark.parametrize("block", [1, 7, 100])
def test_npy_is_what_numpy_writes(tmp_path, shape, block):
    columns = columns_of(top=0, labels=None, shape=shape)
    run(tmp_path / "a.npy", 40, columns, block=block)
    stream = io.BytesIO()
    np.save(stream, scores_of(0, 40, shape))
    assert (tmp_path / "a.npy").read_bytes() == stream.getvalue()
    assert names_in(tmp_path) == ["a.npy"]


def test_npz_has_all_outputs(tmp_path):
    columns = columns_of(top=0, labels=None, outputs=("y", "/a/b", "names"))
    run(tmp_path / "a.npz", 40, columns)
    with np.load(tmp_path / "a.npz") as archive:
        assert archive.files == ["names", "scores", "scores:/a/b", "scores:names"]
        assert archive["names"].tolist() == names_of(40)
        np.testing.assert_array_equal(archive["scores"], scores_of(0, 40))
        assert archive["scores:/a/b"].shape == (40, 2)
        assert archive["scores:names"].tolist() == [[1, 1]] * 40
    np.savez(tmp_path / "b.npz", names=np.array(names_of(40)), scores=scores_of(0, 40))
    with np.load(tmp_path / "a.npz") as ours, np.load(tmp_path / "b.npz") as theirs:
        assert ours["names"].dtype == theirs["names"].dtype
    assert names_in(tmp_path) == ["a.npz", "b.npz"]


@pytest.mark.parametrize("shape", [(5,), (2, 3), (2, 1, 2), ()])
def test_json_is_a_list_of_objects(tmp_path, shape):
    run(tmp_path / "a.json", 40, columns_of(top=0, labels=None, shape=shape))
    rows = json.loads((tmp_path / "a.json").read_bytes())
    assert [row["input"] for row in rows] == names_of(40)
    assert np.array(rows[2]["scores"], object).ravel().tolist() == [None] * int(np.prod(shape))
    back = np.array([np.array(row["scores"], np.float32) for row in rows])
    np.testing.assert_array_equal(back, scores_of(0, 40, shape))


@pytest.mark.parametrize(
    "kind",
    [
        "npz",
        *later("as npz", "csv", "npy", "txt", "json", "jsonl", "parquet"),
    ],
)
def test_memory_stays_flat(tmp_path, kind):
    """All rows are 10 MB of numbers, or 3 MB of text."""
    columns = columns_of(top=0, labels=None, shape=(250,))
    is_text = kind not in ("npy", "npz", "parquet")
    count, size = (1000, 20) if is_text else (10000, 100)
    block = answers_of(0, size, columns)
    with open_results(tmp_path / f"a.{kind}", columns, record_of()) as results:
        results.write(block)
        tracemalloc.start()
        for first in range(0, count, size):
            names = [f"photos/{i}.jpg" for i in range(first, first + size)]
            results.write(PredictionBatch(names, block.errors, block.scores, block.best, block.probabilities))
        results.finish()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < (1_000_000 if is_text else 5_000_000), f"{peak:,} bytes"
