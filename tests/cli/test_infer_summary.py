"""cli/infer/summary.py: what many inputs gave, on a screen's worth of lines."""

import numpy as np

from vgg16gpu.cli.common.show import console
from vgg16gpu.cli.infer.options import MANY
from vgg16gpu.cli.infer.report import Stages
from vgg16gpu.cli.infer.summary import CLASSES, REASONS, print_summary
from vgg16gpu.cli.infer.tally import RunSummary
from vgg16gpu.io.scores import PredictionBatch


def answers(count, best, probability, errors, unread=()):
    """Inputs f0, f1, ... with one rank each."""
    names = [f"f{n}" for n in range(count)]
    ranks = np.array(best).reshape(count, 1), np.array(probability, np.float64).reshape(count, 1)
    return PredictionBatch(names, errors, np.zeros((count, 15), np.float32), *ranks, (), frozenset(unread))


def test_reasons_and_classes_are_counted_and_cut(capsys):
    tally = RunSummary([f"label {n}" for n in range(15)], MANY)
    found = [n % 15 for n in range(100)]
    tally.add(answers(100, found, [0.5 + 0.01 * n for n in found], [""] * 100))
    tally.add(answers(3, [-1] * 3, [np.nan] * 3, ["scores are NaN"] * 3))
    broken = [f"'f{n}' is broken in way {n % 7}" for n in range(21)]
    tally.add(answers(21, [-1] * 21, [np.nan] * 21, broken, range(21)))
    assert len(tally.inputs) == MANY  # memory does not grow with the number of inputs
    print_summary(console(), tally)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "124 inputs: 100 answered, 3 without an answer, 21 not read"
    reasons = [line.strip() for line in lines if line.startswith("  ")]
    assert len(reasons) == REASONS
    assert reasons[:2] == ["3: scores are NaN", "3: is broken in way 0"]
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if line.startswith("│")]
    assert len(rows) == CLASSES
    assert rows[0] == ["9", "label 9", "7", "7.0%", "59.0%"]  # of those with seven the most certain
    assert "and 5 other classes" in lines


def test_the_stage_that_the_others_wait_for():
    for reading, decoding, computing, limit in (
        (0.1, 0.2, 1.0, "start"),
        (0.1, 0.2, 9.5, "computing"),
        (2.0, 17.0, 9.0, "decoding"),
        (17.0, 2.0, 1.0, "reading"),
    ):
        stages = Stages(10.0, 0.0, 2, reading, decoding, 0.0, computing, 0.0, 0.1, 0.1)
        assert stages.limit == limit
