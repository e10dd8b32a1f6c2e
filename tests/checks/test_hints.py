"""checks/hints.py and checks/rounding.py: each fault of references is named, and nothing is named that is not there."""

import math
import re

import numpy as np
import pytest

from vgg16gpu.checks.accuracy import SCORE_TOLERANCES, rounding_of, score_error
from vgg16gpu.checks.hints import reference_hints
from vgg16gpu.checks.testbench import judge
from vgg16gpu.io.scores import softmax

RNG = np.random.default_rng(11)
TRUE = RNG.normal(0, 3, (24, 50))
NAMES = [f"input {i}" for i in range(24)]
BOUNDS = {name: bound for name, bound in SCORE_TOLERANCES.items() if math.isfinite(bound)}


def hints(references, scores=None, bound=1e-5):
    ours = noisy(TRUE, bound) if scores is None else scores
    found = reference_hints(NAMES, ours.astype(np.float32), references.astype(np.float32), bound)
    assert all("\n" not in hint for hint in found)
    return found


def noisy(scores, bound):
    """Ours: off by a third of what is allowed."""
    off = bound / 3 * np.abs(scores).max(axis=1, keepdims=True)
    return scores + np.random.default_rng(5).uniform(-off, off, scores.shape)


def log_softmax(scores):
    return np.log(softmax(scores))


@pytest.mark.parametrize("bound", BOUNDS.values(), ids=BOUNDS)
def test_nothing_is_said_of_what_agrees_or_is_something_else(bound):
    assert hints(TRUE, bound=bound) == ()
    assert hints(np.random.default_rng(1).normal(0, 3, TRUE.shape), bound=bound) == ()
    assert hints(TRUE + 0.5 * RNG.normal(0, 3, TRUE.shape), bound=bound) == ()
    assert hints(2 * TRUE, bound=bound) == ()
    assert hints(np.full(TRUE.shape, np.nan), bound=bound) == ()
    assert hints(np.zeros(TRUE.shape), bound=bound) == ()


@pytest.mark.parametrize("decimals", [0, 1, 2, 3])
def test_decimals(decimals):
    (hint,) = hints(np.round(TRUE, decimals))
    assert f"look rounded to {decimals} decimal{'' if decimals == 1 else 's'};" in hint
    allowed = float(re.search(r"--tolerance (\S+):", hint)[1])
    rounded = np.round(TRUE, decimals).astype(np.float32)
    assert (score_error(noisy(TRUE, 1e-5).astype(np.float32), rounded) <= allowed).all()
    assert allowed < 20 * 10.0**-decimals


def test_the_tolerance_that_a_hint_names_is_enough():
    """Classes that are rounded to the same score are both the best."""
    rounded = np.round(TRUE, 0).astype(np.float32)
    ties = np.sort(rounded)[:, -1] == np.sort(rounded)[:, -2]
    assert ties.any()
    ours = noisy(TRUE, 1e-5).astype(np.float32)
    (hint,) = hints(rounded, ours)
    allowed = float(re.search(r"--tolerance (\S+):", hint)[1])
    assert all(verdict.passed for verdict in judge(NAMES, ours, rounded, allowed))


def test_significant_digits():
    three = np.array([[float(f"{value:.2e}") for value in row] for row in TRUE])
    (hint,) = hints(three)
    assert "rounded to 3 significant digits" in hint


@pytest.mark.parametrize(("name", "bits"), [("float16", 11), ("bfloat16", 8)])
def test_halves(name, bits):
    mantissa, exponent = np.frexp(TRUE)
    (hint,) = hints(np.ldexp(np.round(mantissa * 2**bits), exponent - bits))
    assert f"rounded to {name};" in hint


def test_what_is_not_rounded():
    assert rounding_of(TRUE.astype(np.float32)) is None
    assert rounding_of(np.float32([[0.5, 0.25]])) is None  # too few to say
    assert rounding_of((1e6 * TRUE).astype(np.float32)) is None
    assert rounding_of((1e-6 * TRUE).astype(np.float32)) is None
    assert rounding_of(np.float32([[np.nan, np.inf]])) is None


@pytest.mark.parametrize("bound", BOUNDS.values(), ids=BOUNDS)
def test_softmax(bound):
    (hint,) = hints(softmax(TRUE), bound=bound)
    assert "look like probabilities" in hint
    assert "from before the softmax" in hint
    assert hints(softmax(RNG.normal(0, 3, TRUE.shape)), bound=bound) == ()
    assert hints(softmax(TRUE), scores=softmax(TRUE), bound=bound) == ()


def test_scores_for_a_model_that_ends_in_a_softmax():
    (hint,) = hints(TRUE, scores=softmax(TRUE))
    assert "from before the softmax that this model ends with" in hint
    (hint,) = hints(log_softmax(TRUE), scores=softmax(TRUE))
    assert "logarithms of probabilities" in hint


@pytest.mark.parametrize("bound", BOUNDS.values(), ids=BOUNDS)
def test_log_softmax(bound):
    (hint,) = hints(log_softmax(TRUE + 5), scores=noisy(TRUE + 5, bound), bound=bound)
    assert "logarithms of probabilities" in hint


def test_the_other_sign():
    (hint,) = hints(-TRUE)
    assert "other sign" in hint


@pytest.mark.parametrize("bound", BOUNDS.values(), ids=BOUNDS)
def test_rows_of_other_inputs(bound):
    (hint,) = hints(np.roll(TRUE, 1, axis=0), bound=bound)
    assert "look shuffled: 'input 0' agrees with the row of 'input 1', and 24 failing inputs" in hint
    assert "1 further down each time" in hint
    (hint,) = hints(TRUE[np.random.default_rng(2).permutation(24)], bound=bound)
    assert "look shuffled" in hint
    assert "each time" not in hint


def test_shuffled_and_rounded_and_softmaxed():
    first, second = hints(np.round(np.roll(softmax(TRUE), 5, axis=0), 3))
    assert "look like probabilities" in first
    assert "look shuffled" in first
    assert "rounded to 3 decimals" in second


@pytest.mark.parametrize("bound", [1e-5, 1e-2])
def test_classes_in_another_order(bound):
    order = np.random.default_rng(8).permutation(50)
    (hint,) = hints(TRUE[:, order], bound=bound)
    first = np.flatnonzero(order != np.arange(50))[0]
    theirs = np.flatnonzero(order == first)[0]
    assert f"class {first} of this model is {theirs} of theirs" in hint


def test_infinite_scores_are_no_reason_to_fail():
    scores = TRUE.copy()
    scores[3, 4] = np.inf
    assert hints(TRUE, scores) == ()
    (hint,) = hints(np.round(TRUE, 2), scores)
    assert "2 decimals" in hint
