"""checks/references.py: rows of every form that `infer` writes, found by name or by place, and what is refused."""

import os

import numpy as np
import pytest

from vgg16gpu.checks.references import read_references
from vgg16gpu.errors import InputError
from vgg16gpu.io.results import Columns, RunRecord, open_results
from vgg16gpu.io.scores import PredictionBatch

KINDS = ["csv", "jsonl", "parquet", "npy", "npz", "txt", "json"]
NAMED = ["csv", "jsonl", "parquet", "npz", "json"]
NAMES = ["b.png", "a,b.png", 'quo"te\n.png', "d.png", os.fsdecode(b"\xff.png")]
RNG = np.random.default_rng(3)
SCORES = RNG.standard_normal((5, 7)).astype(np.float32)


def written(folder, kind, names=NAMES, scores=SCORES, failed=(), all_scores=True):
    """A file as `infer --output` writes it."""
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    scores = scores.copy()
    scores[list(failed)] = np.nan
    best = np.argsort(-np.nan_to_num(scores), axis=1)[:, :3].astype(np.intp)
    best[list(failed)] = -1
    errors = ["is no picture" if i in failed else "" for i in range(len(names))]
    answers = PredictionBatch(names, errors, scores, best, np.where(best < 0, np.nan, 0.5))
    path = folder / f"r.{kind}"
    columns = Columns(3, None, all_scores, (scores.shape[1],), ("scores",))
    results = open_results(path, columns, RunRecord("0" * 64, {}, None, None, "0"))
    with results:
        results.write(answers)
        results.finish()
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_infer_writes(tmp_path, kind):
    found = read_references(written(tmp_path, kind), NAMES, 7)
    assert np.array_equal(found.scores, SCORES)
    assert found.answered.all()
    assert (found.unanswered, found.unused, found.has_names) == ((), 0, kind in NAMED)


@pytest.mark.parametrize("kind", NAMED)
def test_rows_in_another_order_and_rows_of_others(tmp_path, kind):
    order = [3, 0, 4, 2, 1]
    path = written(tmp_path, kind, [NAMES[i] for i in order], SCORES[order])
    found = read_references(path, NAMES[:4], 7)
    assert np.array_equal(found.scores, SCORES[:4])
    assert found.unused == 1


@pytest.mark.parametrize("kind", KINDS)
def test_rows_without_an_answer(tmp_path, kind):
    found = read_references(written(tmp_path, kind, failed=(1, 4)), NAMES, 7)
    assert np.array_equal(found.scores, SCORES[[0, 2, 3]])
    assert found.answered.tolist() == [True, False, True, True, False]
    assert found.unanswered == (NAMES[1], NAMES[4])


def test_a_row_that_is_partly_nan_is_compared(tmp_path):
    scores = SCORES.copy()
    scores[2, 3] = np.nan
    found = read_references(written(tmp_path, "csv", scores=scores), NAMES, 7)
    assert found.answered.all()
    assert np.isnan(found.scores[2]).tolist() == [False] * 3 + [True] + [False] * 3


def test_no_answers_at_all(tmp_path):
    path = written(tmp_path, "npz", failed=range(5))
    with pytest.raises(InputError, match="an answer for none of the 5 inputs"):
        read_references(path, NAMES, 7)


@pytest.mark.parametrize("kind", NAMED)
def test_a_missing_row_is_named(tmp_path, kind):
    path = written(tmp_path, kind, [f"there/{i}.png" for i in range(5)])
    with pytest.raises(InputError, match=r"no row for 2 of 2 inputs, the first is 'x\\n'; .* of 'there/0.png'"):
        read_references(path, ["x\n", "y"], 7)


@pytest.mark.parametrize("kind", NAMED)
def test_a_doubled_row_is_named(tmp_path, kind):
    path = written(tmp_path, kind, ["a", "b", "a", "c", "c"])
    with pytest.raises(InputError, match="2 rows for 'a'"):
        read_references(path, ["b", "a"], 7)
    assert np.array_equal(read_references(path, ["b"], 7).scores, SCORES[1:2])


@pytest.mark.parametrize("kind", ["npy", "txt"])
def test_without_names_there_is_a_row_for_each(tmp_path, kind):
    path = written(tmp_path, kind)
    with pytest.raises(InputError, match=r"5 rows, there are 4 inputs; .* with names \(\.csv"):
        read_references(path, NAMES[:4], 7)
    with pytest.raises(InputError, match="7 scores for each of 5 inputs, the model 8"):
        read_references(path, NAMES, 8)


def test_numbers_of_the_published_form(tmp_path):
    """Whatever lines they stand in, and as numbers alone in .npy."""
    path = tmp_path / "output.txt"
    path.write_text(" ".join(f"{value:.9g}" for value in SCORES.ravel()))
    assert np.array_equal(read_references(path, NAMES, 7).scores, SCORES)
    np.save(tmp_path / "flat.npy", SCORES.ravel().astype(np.float64))
    assert np.array_equal(read_references(tmp_path / "flat.npy", NAMES, 7).scores, SCORES)
    path.write_text("1 2 3 4 5 6")
    with pytest.raises(InputError, match="6 numbers; 5 inputs with 7 scores each need 35"):
        read_references(path, NAMES, 7)
    path.write_text("")
    with pytest.raises(InputError, match="0 numbers"):
        read_references(path, NAMES, 7)


@pytest.mark.parametrize("kind", NAMED)
def test_another_number_of_classes(tmp_path, kind):
    with pytest.raises(InputError, match="7 scores for each of 5 inputs, the model 8"):
        read_references(written(tmp_path, kind), NAMES, 8)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_ranks_alone_are_not_enough(tmp_path, kind):
    with pytest.raises(InputError, match="--scores"):
        read_references(written(tmp_path, kind, all_scores=False), NAMES, 7)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("missing.csv", None, "do not exist"),
        ("r.xlsx", b"PK", "ending '.xlsx'"),
        ("r.npy", b"nonsense", "no file of results"),
        ("r.json", b"{", "no file of results"),
        ("r.txt", b"1 2 x", "'x' is not a number"),
        ("r.csv", b'input,error,scores_0\na,,"1', "no file of results"),
    ],
)
def test_what_cannot_be_read(tmp_path, name, content, words):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=words):
        read_references(tmp_path / name, ["a"], 1)
