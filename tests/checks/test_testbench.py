"""checks/testbench.py: what passes, what must not, and how the reasons read."""

import math

import numpy as np
import pytest
from PIL import Image

from vgg16gpu.checks.testbench import (
    AnswersReport,
    Quantised,
    control,
    judge,
    judge_steps,
    labelled_images,
    standard_inputs,
    worst_steps,
)
from vgg16gpu.errors import InputError

RNG = np.random.default_rng(7)
REFERENCES = RNG.standard_normal((10, 50)).astype(np.float32)
NAMES = [f"input {i}" for i in range(10)]


def report(scores, references=REFERENCES, **options):
    return AnswersReport(judge(NAMES[: len(scores)], scores, references), control=control(references, 50), **options)


@pytest.mark.parametrize("where", ["score", "reference", "row"])
def test_nan_never_passes(where):
    scores, references = REFERENCES.copy(), REFERENCES.copy()
    if where == "score":
        scores[2, 49] = np.nan
    elif where == "reference":
        references[2, 49] = np.nan
    else:
        scores[2] = np.nan
    result = report(scores, references)
    assert [verdict.passed for verdict in result.verdicts] == [i != 2 for i in range(10)]
    assert not result.passed


def test_where_rounding_is_coarse_the_other_of_two_equal_classes_passes():
    references = np.zeros((1, 4), np.float32)
    references[0, :2] = (1.0, 0.999)
    (verdict,) = judge(["a"], references[:, [1, 0, 2, 3]], references, 1e-2, same_best=False)
    assert verdict.passed
    assert verdict.top1 != verdict.reference_top1
    assert not judge(["a"], references[:, [2, 3, 0, 1]], references, 1e-2, same_best=False)[0].passed
    assert AnswersReport((verdict,)).agreement == 0


def test_accuracy_is_that_of_our_scores() -> None:
    """Count ours where the references answer otherwise: 3 of our 10 are right, 5 of theirs."""
    ours, theirs = np.eye(50, dtype=np.float32)[:10], np.roll(np.eye(50, dtype=np.float32)[:10], 1, axis=1)
    labels = [*range(3), *range(4, 9), 40, 41]  # rows 3 to 7 are where the references say, one class on
    result = AnswersReport(judge(NAMES, ours, theirs, labels=labels), min_accuracy=0.31)
    assert result.accuracy == 0.3
    assert result.agreement == 0
    assert "accuracy 30.00% is below 31.00%" in result.failures


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_without_a_tolerance_a_non_finite_score_still_fails(bad):
    scores = REFERENCES * 3
    scores[4, 1] = bad
    verdicts = judge(NAMES, scores, REFERENCES, math.inf, same_best=False)
    assert [verdict.passed for verdict in verdicts] == [i != 4 for i in range(10)]


@pytest.mark.parametrize(
    ("ours", "theirs", "passed"),
    [(0.011, 0.01, True), (0.0111, 0.01, False), (0.0, 0.0, True), (1e-9, 0.0, False), (math.nan, 0.01, False)],
)
def test_int8_may_err_a_tenth_more_than_onnxruntime(ours, theirs, passed):
    result = AnswersReport(judge(NAMES, REFERENCES, REFERENCES), quantised=Quantised(ours, theirs))
    assert result.passed == passed
    assert any("onnxruntime's quantised form, 1.1 are allowed" in reason for reason in result.failures) != passed


def test_the_report_in_numbers():
    scores = REFERENCES.copy()
    largest = np.abs(REFERENCES).max(axis=1)
    scores[0, REFERENCES[0].argmin()] += 0.5 * largest[0]
    scores[1, REFERENCES[1].argmin()] += 0.25 * largest[1]
    scores[2, REFERENCES[2].argmin()] += 100 * largest[2]
    result = AnswersReport(judge(NAMES, scores, REFERENCES, 1.0))
    assert result.worst_error == pytest.approx(100)
    assert result.mean_error == pytest.approx(10.075)
    assert result.agreement == 0.9
    assert AnswersReport(()).worst_error is AnswersReport(()).mean_error is AnswersReport(()).agreement is None


def test_different_shapes_are_an_error_and_no_failure():
    with pytest.raises(InputError):
        judge(NAMES, REFERENCES, REFERENCES[:, :49])


def test_the_worst_of_several_inputs_is_kept_and_nan_is_worst():
    reference = {"a": np.ones((1, 4), np.float32)}
    runs = [judge_steps([(("a",), np.full((1, 4), value, np.float32))], reference) for value in (1, np.nan, 2)]
    assert math.isnan(worst_steps(runs)[0].error)
    assert worst_steps([runs[0], runs[2]])[0].error == 1.0


def test_standard_inputs():
    inputs = standard_inputs((3, 48, 32), (0.5,) * 3, (0.25,) * 3)
    assert len(inputs) == 10
    assert all(item.array.shape == (3, 48, 32) and item.array.dtype == np.float32 for item in inputs)
    assert len({item.array.tobytes() for item in inputs}) == 10
    assert -2 <= min(item.array.min() for item in inputs) < max(item.array.max() for item in inputs) <= 2
    assert standard_inputs((1, 8, 8), (0.0,), (1.0,))[0].array.shape == (1, 8, 8)
    with pytest.raises(InputError, match="--inputs"):
        standard_inputs((12,), (0.0,), (1.0,))


def test_labelled_images(tmp_path):
    for folder in ("1", "Sea_lion"):
        (tmp_path / folder).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / folder / "a.png")
    files = labelled_images(tmp_path, ["cat", "dog", "sea lion"])
    assert [(file.removeprefix(str(tmp_path)), label) for file, label in files] == [
        ("/1/a.png", 1),
        ("/Sea_lion/a.png", 2),
    ]
    with pytest.raises(InputError, match=r"Sea_lion.*below 2.*'cat'"):
        labelled_images(tmp_path, ["cat", "dog"])
    with pytest.raises(InputError, match="no folders"):
        labelled_images(tmp_path / "1", ["cat"])
    with pytest.raises(InputError, match="not a folder"):
        labelled_images(tmp_path / "missing", ["cat"])
