"""opening.py, columns.py, record.py: what is refused before anything is computed or written."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.io.results.runs import EVERY_KIND, LABELS, WITH_RESUME, answers_of, columns_of, record_of, run, write
from vgg16gpu.errors import InputError
from vgg16gpu.io.results import (
    KINDS,
    check_output,
    holds_all_outputs,
    list_digest,
    open_results,
    record_path,
)


def test_the_ending_says_the_kind(tmp_path):
    assert [check_output(tmp_path / f"a.{kind}") for kind in KINDS] == [*KINDS]
    assert sorted(KINDS) == sorted(EVERY_KIND)
    assert check_output(tmp_path / "a.CSV") == "csv"
    assert [kind for kind in KINDS if holds_all_outputs(tmp_path / f"a.{kind}")] == ["npz"]


@pytest.mark.parametrize("name", ["a.pdf", "a", ".csv", "a.csv.gz"])
def test_other_endings_are_refused(tmp_path, name):
    with pytest.raises(InputError, match=r"accepted are \.csv, \.jsonl, .*, and - for stdout"):
        check_output(tmp_path / name)


@pytest.mark.parametrize("kind", [kind for kind in EVERY_KIND if kind not in WITH_RESUME])
def test_some_kinds_cannot_be_resumed(tmp_path, kind):
    with pytest.raises(InputError, match=r"--resume goes on in \.csv, \.jsonl, \.parquet files, and not in '.*a\."):
        check_output(tmp_path / f"a.{kind}", resume=True)
    assert check_output(tmp_path / "a.csv", resume=True) == "csv"


def test_standard_output(capfdbinary, tmp_path):
    assert check_output(Path("-")) == "csv"
    assert check_output(Path("-"), form="jsonl") == "jsonl"
    for options in ({"form": "npy"}, {"resume": True}):
        with pytest.raises(InputError, match="--output -"):
            check_output(Path("-"), **options)
    with pytest.raises(InputError, match="is for --output -"):
        check_output(Path("a.csv"), form="csv")
    run(Path("-"), 30)
    run(tmp_path / "a.csv", 30)
    assert capfdbinary.readouterr().out == (tmp_path / "a.csv").read_bytes()


def test_no_standard_output(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(InputError, match="no standard output"):
        check_output(Path("-"))


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_places_that_cannot_be_written(tmp_path, kind):
    (tmp_path / f"folder.{kind}").mkdir()
    os.mkfifo(tmp_path / f"pipe.{kind}")
    places = {
        f"missing/a.{kind}": "does not exist; create it first",
        f"folder.{kind}": "is a folder",
        f"pipe.{kind}": "is no regular file",
        f"{'x' * 260}.{kind}": "File name too long",
        f"loop.{kind}": "is no regular file",
    }
    (tmp_path / f"loop.{kind}").symlink_to(tmp_path / f"loop.{kind}")
    for place, reason in places.items():
        with pytest.raises(InputError, match=reason):
            check_output(tmp_path / place)


@pytest.mark.parametrize("kind", WITH_RESUME)
def test_there_must_be_a_place_for_the_record_too(tmp_path, kind):
    record_path(tmp_path / f"a.{kind}").mkdir()
    with pytest.raises(InputError, match=r"run\.json' is a folder"):
        check_output(tmp_path / f"a.{kind}")
    with pytest.raises(InputError, match="File name too long"):
        check_output(tmp_path / f"{'x' * 245}.{kind}")


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_nothing_is_written_before_the_first_row(tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    path.write_text("older")
    for finish in (True, False):
        with open_results(path, columns_of(), record_of) as results:
            write(results, 0, 0)
            if finish:
                results.finish()
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == "older"


@pytest.mark.parametrize("kind", WITH_RESUME)
def test_a_link_stays_and_its_file_and_record_are_elsewhere(tmp_path, kind):
    (tmp_path / "there").mkdir()
    link = tmp_path / f"link.{kind}"
    link.symlink_to(tmp_path / "there" / f"a.{kind}")
    run(link, 20, stop=10)
    assert run(link, 20, resume=True) == 10
    assert link.is_symlink()
    assert sorted(file.name for file in (tmp_path / "there").iterdir()) == [f"a.{kind}", f"a.{kind}.run.json"]


@pytest.mark.parametrize(
    "other",
    [
        {"errors": [""]},
        {"scores": np.zeros((9, 4), np.float32)},
        {"scores": np.zeros((8, 5), np.float32)},
        {"best": np.zeros((9, 3), np.intp)},
        {"probabilities": np.zeros((9, 1))},
        {"others": (np.zeros((9, 2)),)},
    ],
)
def test_answers_of_another_form_are_refused(tmp_path, other):
    results = open_results(tmp_path / "a.csv", columns_of(), record_of())
    with results, pytest.raises(InputError, match=f"{next(iter(other))} of 9 answers have shape"):
        results.write(replace(answers_of(0, 9), **other))
    assert not list(tmp_path.iterdir())


def test_columns_that_do_not_go_together():
    for options, reason in (
        ({"top": 6}, "6 ranks of scores of shape"),
        ({"top": 1, "shape": (2, 3)}, "1 ranks of scores of shape"),
        ({"labels": LABELS[:3]}, "3 labels for 5 classes"),
    ):
        with pytest.raises(InputError, match=reason):
            columns_of(**options)


def test_the_digest_of_a_list_is_of_its_names_and_their_order():
    lists = [[], [""], ["a", "b"], ["b", "a"], ["ab"], ["a\nb"], ["a", "b", ""], ["\udcff"], ["\\udcff"]]
    assert len({list_digest(names) for names in lists}) == len(lists)
    assert list_digest(iter(["a", "b"])) == list_digest(("a", "b"))
