"""csv_rows.py, jsonl_rows.py, number_texts.py: the bytes of a row, and names that nobody should give to a file."""

import numpy as np
import pytest

from tests.io.results.runs import (
    answers_of,
    columns_of,
    error_of,
    names_of,
)
from vgg16gpu.io.results.csv_rows import CsvForm
from vgg16gpu.io.results.jsonl_rows import JsonlForm
from vgg16gpu.io.results.number_texts import number_texts, row_texts
from vgg16gpu.io.scores import PredictionBatch

FORMS = {"csv": CsvForm, "jsonl": JsonlForm}


def answers(names, scores, best, probabilities, errors=None):
    return PredictionBatch(
        names, errors or [""] * len(names), np.array(scores, np.float32), np.array(best), np.array(probabilities)
    )


def test_csv_has_these_very_bytes():
    columns = columns_of(top=1, labels=["x", "y, z"], shape=(2,))
    form = CsvForm(columns)
    rows = form.rows(
        answers(
            ["a.png", "b\udcff.png", "c,d.png"],
            [[1.5, 1 / 3], [np.nan, np.nan], [-np.inf, 1e-30]],
            [[0], [-1], [1]],
            [[0.25], [np.nan], [1.0]],
            ["", 'no "picture"', ""],
        )
    )
    assert form.header == b"input,error,class_1,label_1,score_1,probability_1,scores_0,scores_1\n"
    assert rows == [
        b"a.png,,0,x,1.5,0.25,1.5,0.333333343\n",
        b'b\xff.png,"no ""picture""",,,,,,\n',
        b'"c,d.png",,1,"y, z",1e-30,1,-inf,1e-30\n',
    ]


def test_jsonl_has_these_very_bytes():
    form = JsonlForm(columns_of(top=1, labels=["x", "ü"], shape=(2,)))
    rows = form.rows(
        answers(
            ["a\n.png", "b\udcff.png", "c"],
            [[1.5, 1 / 3], [np.nan, np.nan], [-np.inf, 2]],
            [[0], [-1], [1]],
            [[0.25], [np.nan], [1.0]],
            ["", "none", ""],
        )
    )
    assert form.header == b""
    assert rows == [
        b'{"input": "a\\n.png", "error": null, "class_1": 0, "label_1": "x", "score_1": 1.5, "probability_1": 0.25, '
        b'"scores": [1.5, 0.333333343]}\n',
        b'{"input": "b\\udcff.png", "error": "none", "class_1": null, "label_1": null, "score_1": null, '
        b'"probability_1": null, "scores": null}\n',
        b'{"input": "c", "error": null, "class_1": 1, "label_1": "\\u00fc", "score_1": 2, "probability_1": 1, '
        b'"scores": [null, 2]}\n',
    ]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("top", [0, 2])
@pytest.mark.parametrize("scores", [True, False])
def test_a_form_knows_its_own_rows_and_no_others(form, top, scores):
    """What `head` says of a row is what was written; a row that lost or won a field is none."""
    mine = FORMS[form](columns_of(top=top, scores=scores))
    rows = mine.rows(answers_of(0, 40, columns_of(top=top, scores=scores)))
    heads = [mine.head(row) for row in rows]
    assert heads == [(name, bool(error_of(i))) for i, name in enumerate(names_of(40))]
    others = [FORMS[form](columns_of(top=other, scores=True)) for other in (0, 1, 2, 3) if other != top]
    others += [FORMS[form](columns_of(top=2, scores=not scores))] if top else []
    for row in rows:
        assert [other.head(row) for other in others] == [None] * len(others)
        assert mine.head(row.replace(b"\n", b"\r\n")) is None
        assert mine.head(row[:-1] + b" \n") is None
        assert mine.head(row[:-1] + b",1\n") is None


def test_numbers_come_back_with_the_same_bits():
    bits = np.random.default_rng(1).integers(0, 1 << 32, 20000, np.uint32)
    edges = np.array([0, 0x80000000, 1, 0x007FFFFF, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000], np.uint32)
    values = np.concatenate([bits, edges]).view(np.float32)
    values[np.isnan(values)] = np.nan
    texts = number_texts(values, {})
    np.testing.assert_array_equal(np.array(texts, np.float32).view(np.uint32), values.view(np.uint32))
    assert row_texts(values.reshape(2, -1), ",", {}) == [
        ",".join(texts[: len(texts) // 2]),
        ",".join(texts[len(texts) // 2 :]),
    ]
