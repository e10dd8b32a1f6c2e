"""io/scores.py: ranks, and score files that read back to the same bits or do not appear at all."""

import csv
import json

import numpy as np
import pytest

from vgg16gpu.errors import InputError
from vgg16gpu.io.scores import finite_or_none, rank, score_problem, softmax, top_classes, write_scores

NAMES = ["a.png", 'b "quoted", c.png']
SCORES = np.random.default_rng(4).standard_normal((2, 7)).astype(np.float32)


def test_softmax_of_large_scores():
    np.testing.assert_allclose(softmax(np.array([[1000.0, 1000.0, -1000.0]])), [[0.5, 0.5, 0.0]])
    assert np.isnan(softmax(np.array([1.0, np.nan]))).all()


def test_top_classes_are_stable():
    scores = np.array([[1.0, 3.0, 3.0, 2.0], [0.0, -1.0, 5.0, 5.0]])
    assert top_classes(scores, 3).tolist() == [[1, 2, 3], [2, 3, 0]]
    assert top_classes(scores, 10).shape == (2, 4)


def test_rank():
    ranks = rank(np.array([0.1, 3.0, 2.0], np.float32), ["x", "y", "z"], 2, are_probabilities=False)
    assert [(r.index, r.label) for r in ranks] == [(1, "y"), (2, "z")]
    assert ranks[0].probability == pytest.approx(np.exp(3) / (np.exp(3) + np.exp(2) + np.exp(0.1)), rel=1e-6)
    (only,) = rank(np.array([0.25, 0.75], np.float32), ["x", "y"], 1, are_probabilities=True)
    assert only.probability == 0.75


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".csv", ".txt", ".json"])
def test_files_hold_the_same_bits(tmp_path, suffix):
    path = tmp_path / f"out{suffix}"
    path.write_text("older content")
    write_scores(path, NAMES, SCORES)
    match suffix:
        case ".npy":
            back = np.load(path)
        case ".npz":
            with np.load(path) as archive:
                back = archive["scores"]
                assert archive["names"].tolist() == NAMES
        case ".csv":
            rows = list(csv.reader(path.read_text().splitlines()))
            assert [row[0] for row in rows] == ["input", *NAMES]
            back = np.array([row[1:] for row in rows[1:]], np.float32)
        case ".txt":
            back = np.loadtxt(path, dtype=np.float32)
        case _:
            items = json.loads(path.read_text())
            assert [item["input"] for item in items] == NAMES
            back = np.array([item["scores"] for item in items], np.float32)
    np.testing.assert_array_equal(back, SCORES)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("are_probabilities", [True, False])
@pytest.mark.parametrize("row", [[0, np.nan, 1], [np.nan] * 3, [0, np.inf, 1], [-np.inf] * 3])
def test_scores_that_are_no_numbers_have_no_rank(row, are_probabilities):
    scores = np.array(row, np.float32)
    assert rank(scores, ["x", "y", "z"], 2, are_probabilities=are_probabilities) == ()
    assert score_problem(scores) == ("scores are NaN" if np.isnan(scores).any() else "scores are infinite")


def test_minus_infinity_is_a_probability_of_zero():
    ranks = rank(np.array([0, -np.inf, 0], np.float32), ["x", "y", "z"], 3, are_probabilities=False)
    assert [r.probability for r in ranks] == [0.5, 0.5, 0]


def test_npz_takes_further_outputs(tmp_path):
    others = {"names": SCORES[:, :2], "file": SCORES[:, 2:], "/a/b": SCORES[:, :1]}
    write_scores(tmp_path / "a.npz", NAMES, SCORES, others)
    with np.load(tmp_path / "a.npz") as archive:
        assert archive["names"].tolist() == NAMES
        np.testing.assert_array_equal(archive["scores"], SCORES)
        for name, array in others.items():
            np.testing.assert_array_equal(archive[f"scores:{name}"], array)
    write_scores(tmp_path / "a.npy", NAMES, SCORES, others)
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), SCORES)


def test_places_that_cannot_be_written(tmp_path):
    with pytest.raises(InputError, match=r"\.npy"):
        write_scores(tmp_path / "out.pdf", NAMES, SCORES)
    assert not list(tmp_path.iterdir())


def test_json_has_no_nan():
    assert finite_or_none({"a": [1.0, float("nan")], "b": (float("inf"), 2)}) == {"a": [1.0, None], "b": [None, 2]}
