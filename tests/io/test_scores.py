"""io/scores.py: probabilities, the best classes, numbers for JSON."""

import numpy as np

from vgg16gpu.io.scores import finite_or_none, softmax, top_classes


def test_softmax_of_large_scores():
    np.testing.assert_allclose(softmax(np.array([[1000.0, 1000.0, -1000.0]])), [[0.5, 0.5, 0.0]])
    assert np.isnan(softmax(np.array([1.0, np.nan]))).all()


def test_top_classes_are_stable():
    scores = np.array([[1.0, 3.0, 3.0, 2.0], [0.0, -1.0, 5.0, 5.0]])
    assert top_classes(scores, 3).tolist() == [[1, 2, 3], [2, 3, 0]]
    assert top_classes(scores, 10).shape == (2, 4)


def test_json_has_no_nan():
    assert finite_or_none({"a": [1.0, float("nan")], "b": (float("inf"), 2)}) == {"a": [1.0, None], "b": [None, 2]}
