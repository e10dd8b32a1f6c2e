"""checks/accuracy.py: the error definitions on numbers that a person can check, and that NaN never passes."""

import math

import numpy as np
import pytest

from tests.support.closeness import assert_close, rms
from vgg16gpu.checks.accuracy import SCORE_TOLERANCE, SCORE_TOLERANCES, compare, layer_error, score_error, tolerance
from vgg16gpu.compiler.choices import PRECISIONS


def test_score_error_is_per_row_and_norm_wise():
    reference = np.array([[1.0, -4.0, 0.001], [10.0, 0.0, 5.0]], np.float32)
    scores = reference + np.array([[0, 0, 0.002], [0.5, 0, 0]], np.float32)
    assert score_error(scores, reference) == pytest.approx([0.0005, 0.05], rel=1e-4)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_score_error_never_hides_a_non_finite_score(bad):
    reference = np.ones((2, 3), np.float32)
    scores = reference.copy()
    scores[1, 2] = bad
    errors = score_error(scores, reference)
    assert errors[0] <= 1e-5
    assert not errors[1] <= 1e-5


def test_zero_reference():
    zeros = np.zeros((1, 4))
    assert score_error(zeros, zeros)[0] == 0
    assert score_error(zeros + 1e-9, zeros)[0] == math.inf
    assert layer_error(zeros, zeros) == 0


def test_layer_error_is_computed_in_float64():
    reference = np.full(1 << 20, 2.0**100, np.float32)  # the square overflows float32
    assert layer_error(reference, reference) == 0
    assert layer_error(reference * np.float32(1 + 2**-20), reference) == pytest.approx(2**-20, rel=1e-3)


def test_tolerance_holds_for_a_two_level_float32_sum_and_not_for_a_lost_product():
    rng = np.random.default_rng(5)
    for length in (27, 576, 4608, 25088):
        x = rng.standard_normal((64, length), dtype=np.float32)
        w = rng.standard_normal(length, dtype=np.float32)
        products = x * w
        chunks = np.add.reduceat(products, np.arange(0, length, 128), axis=1)
        total = np.zeros(64, np.float32)
        for chunk in chunks.T:
            total = total + chunk
        bound = tolerance(length, rms(x), rms(w))
        expected = x.astype(np.float64) @ w.astype(np.float64)
        assert_close(total, expected, bound)
        assert not compare(total - products[:, 7], expected, bound).passed


def test_comparison_reports_the_worst_element():
    expected = np.zeros((2, 3, 4))
    actual = expected.copy()
    actual[1, 2, 3] = 0.5
    actual[0, 0, 1] = -0.25
    result = compare(actual, expected + 1e-12, atol=1e-6)
    assert not result.passed
    assert result.mismatches == 2
    assert result.worst_index == (1, 2, 3)
    assert result.max_abs == pytest.approx(0.5)
    assert "2 of 24 elements differ" in str(result)
    assert "[1, 2, 3]" in str(result)


@pytest.mark.parametrize(
    ("actual", "expected"),
    [(np.nan, 1.0), (1.0, np.nan), (np.nan, np.nan), (np.inf, 1.0), (1.0, np.inf), (np.inf, -np.inf)],
)
def test_non_finite_values_do_not_match(actual, expected):
    result = compare(np.array([0.0, actual]), np.array([0.0, expected]), atol=1e30, rtol=1.0)
    assert not result.passed
    assert result.worst_index == (1,)
    with pytest.raises(AssertionError, match="1 of 2"):
        assert_close(np.array([0.0, actual]), np.array([0.0, expected]), atol=1e30, rtol=1.0)


def test_empty_arrays_match():
    assert compare(np.zeros((0, 3)), np.zeros((0, 3)), atol=0).passed


def test_every_precision_has_a_bound_and_fp32_the_tightest():
    assert set(SCORE_TOLERANCES) == set(PRECISIONS)
    assert SCORE_TOLERANCES["fp32"] == SCORE_TOLERANCE
    assert list(SCORE_TOLERANCES.values()) == sorted(SCORE_TOLERANCES.values())
