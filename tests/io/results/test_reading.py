"""reading.py: what was written comes back, and what is no file of results is refused in one line."""

import numpy as np
import pytest

from tests.io.results.runs import EVERY_KIND, columns_of, names_of, run, scores_of
from vgg16gpu.errors import InputError
from vgg16gpu.io.results import read_scores
from vgg16gpu.io.results.parquet_results import storable


@pytest.mark.parametrize("kind", EVERY_KIND)
@pytest.mark.parametrize("shape", [(5,), (2, 3)])
def test_every_kind_comes_back(tmp_path, kind, shape):
    columns = columns_of(top=2) if len(shape) == 1 else columns_of(top=0, labels=None, shape=shape)
    run(tmp_path / f"a.{kind}", 40, columns)
    names, scores = read_scores(str(tmp_path / f"a.{kind}"))
    np.testing.assert_array_equal(scores, scores_of(0, 40, shape).reshape(40, -1))
    assert scores.dtype == np.float32
    if kind in ("npy", "txt"):
        assert names is None
    else:
        assert names == [storable(name) if kind == "parquet" else name for name in names_of(40)]


@pytest.mark.parametrize("kind", EVERY_KIND)
@pytest.mark.parametrize("content", [b"", b"rubbish\n", b"\xff\x00\n", b'{"input": 1}\n', b"[1]\n", b'"\n'])
def test_other_files_are_refused(tmp_path, kind, content):
    (tmp_path / f"a.{kind}").write_bytes(content)
    if kind == "jsonl" and not content:
        pytest.skip("a file of no rows")
    with pytest.raises(InputError, match=rf"a\.{kind}'") as caught:
        read_scores(tmp_path / f"a.{kind}")
    assert "\n" not in str(caught.value)


def test_rows_of_different_lengths_are_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"input": "a", "scores": [1, 2]}\n{"input": "b", "scores": [1]}\n')
    (tmp_path / "a.csv").write_text("input,error,scores_0,scores_1\na,,1,2\nb,,1\n")
    (tmp_path / "a.txt").write_text("1 2\n3\n")
    for kind in ("jsonl", "csv", "txt"):
        with pytest.raises(InputError, match=rf"a\.{kind}' is no file of results"):
            read_scores(tmp_path / f"a.{kind}")
