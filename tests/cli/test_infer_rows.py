"""`infer --output`: rows as they come, in the order of the files, and `--resume` behind whatever ended a run."""

import csv
import io
import json
import os
import random
import signal
import time

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from tests.support.ended import begun, ended
from vgg16gpu.cli import cli
from vgg16gpu.io.results.results import ResultWriter
from vgg16gpu.pictures.loading import loader
from vgg16gpu.zoo.digits import heldout

COUNT = 24
BROKEN = (7, 18)
DEFAULTS = ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """24 digits in two folders, two of them broken."""
    path = tmp_path_factory.mktemp("digits")
    images = heldout()[0]
    (path / "sub").mkdir()
    for number in range(COUNT):
        place = path / ("sub" if number >= 16 else ".") / f"{number:02}.png"
        Image.fromarray(images[number, :, :, 0]).save(place)
        if number in BROKEN:
            place.write_text("broken")
    return path


@pytest.fixture(scope="module")
def whole(folder, tmp_path_factory):
    """The undisturbed files, by their ending."""
    path = tmp_path_factory.mktemp("whole")
    for kind in ("csv", "jsonl", "parquet"):
        result = infer(folder, "--output", path / f"rows.{kind}")
        assert result.exit_code == 1, result.output
    return {kind: (path / f"rows.{kind}").read_bytes() for kind in ("csv", "jsonl", "parquet")}


def command(folder, *arguments):
    options = ("--model", "digits", "--device", "cpu", "--batch", "4", "--top", "2", "--workers", "2")
    return [*map(str, ("infer", *options, folder, *arguments))]


def infer(folder, *arguments, **options):
    return CliRunner().invoke(cli, command(folder, *arguments), **options)


def test_a_row_for_each_file_in_order(folder, whole):
    rows = list(csv.DictReader(io.StringIO(whole["csv"].decode())))
    assert list(rows[0])[:2] == ["input", "error"]
    names = sorted(str(path) for path in folder.rglob("*.png"))
    assert [row["input"] for row in rows] == names
    labels = heldout()[2]
    for number, row in enumerate(rows):
        assert bool(row["error"]) is (number in BROKEN)
        if number not in BROKEN:
            assert float(row["probability_1"]) >= float(row["probability_2"])
    right = sum(row["label_1"] == str(label) for row, label in zip(rows, labels, strict=False))
    assert right >= 0.9 * COUNT
    lines = [json.loads(line) for line in whole["jsonl"].splitlines()]
    assert [line["input"] for line in lines] == names
    assert [str(line["class_1"]) for line in lines if not line["error"]] == [r["class_1"] for r in rows if r["class_1"]]


def test_all_scores_and_arrays_are_in_line_with_the_files(folder, tmp_path):
    assert infer(folder, "--output", tmp_path / "a.csv", "--scores").exit_code == 1
    assert infer(folder, "--output", tmp_path / "a.npz").exit_code == 1
    rows = list(csv.DictReader(io.StringIO((tmp_path / "a.csv").read_text())))
    with np.load(tmp_path / "a.npz") as archive:
        names, scores = archive["names"].tolist(), archive["scores"]
    assert names == [row["input"] for row in rows]
    assert np.isnan(scores[list(BROKEN)]).all()
    for row, expected in zip(rows, scores, strict=True):
        if not row["error"]:
            best = int(row["class_1"])
            assert np.float32(row["score_1"]) == expected[best] == expected.max()


def test_lists_and_folders_without_their_subfolders(folder, tmp_path):
    listed = tmp_path / "list.txt"
    listed.write_text("\n".join(f"{folder}/{name}" for name in ("00.png", "missing.png", "sub/20.png")))
    result = infer("--files-from", listed, "--output", "-")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert result.exit_code == 1
    assert [row["input"].rsplit("/", 1)[1] for row in rows] == ["00.png", "missing.png", "20.png"]
    assert "missing.png" in rows[1]["error"]
    report = json.loads(infer(folder, "--no-recursive", "--json").stdout)
    assert len(report["inputs"]) + len(report["unreadable"]) == 16


@pytest.mark.first_case(reason="tests/io/results has files that are torn at each place")
@pytest.mark.parametrize(("kind", "share"), [("csv", 0.3), ("jsonl", 0.999), ("csv", 0.0)])
def test_resuming_behind_a_torn_file_ends_in_the_same_bytes(folder, whole, tmp_path, kind, share):
    path = tmp_path / f"rows.{kind}"
    assert infer(folder, "--output", path).exit_code == 1
    record = json.loads((tmp_path / f"rows.{kind}.run.json").read_text())
    (tmp_path / f"rows.{kind}.run.json").write_text(json.dumps({**record, "finished": None, "bytes": None}))
    path.write_bytes(whole[kind][: int(share * len(whole[kind]))])
    result = infer(folder, "--output", path, "--resume", "--json")
    assert result.exit_code == 1, result.output
    assert path.read_bytes() == whole[kind]
    report = json.loads(result.stdout)
    done = whole[kind][: int(share * len(whole[kind]))].count(b"\n") - (kind == "csv")
    assert len(report["inputs"]) + len(report["unreadable"]) == COUNT - max(done, 0)  # nothing was computed again


def test_resuming_what_is_finished_computes_nothing(folder, whole, tmp_path):
    path = tmp_path / "rows.csv"
    infer(folder, "--output", path)
    result = infer(folder, "--output", path, "--resume")
    assert result.exit_code == 1  # as the rows say
    assert f"all {COUNT} inputs have their rows" in result.stderr
    assert path.read_bytes() == whole["csv"]
    told = infer(folder, "--output", path, "--resume", "--json")
    report = json.loads(told.stdout)
    assert told.exit_code == 1
    assert (report["inputs"], report["unreadable"], report["output"]) == ([], [], str(path))
    assert report.keys() == json.loads(infer(folder, "--output", tmp_path / "b.csv", "--json").stdout).keys()


def test_another_run_is_refused(folder, tmp_path):
    path = tmp_path / "rows.csv"
    infer(folder / "sub", "--output", path)
    before = path.read_bytes()
    for inputs, change, words in (
        (folder / "sub", ("--precision", "fp16"), "precision"),
        (folder / "sub", ("--interpolation", "nearest"), "interpolation"),
        (folder, (), "the list of inputs is another one"),
    ):
        result = infer(inputs, "--output", path, "--resume", *change)
        assert result.exit_code == 2
        assert words in result.stderr.splitlines()[-1]
        assert path.read_bytes() == before


def test_resume_and_format_want_a_file_of_rows(folder, tmp_path):
    for arguments, words in (
        (("--resume",), "--resume is of a file of results"),
        (("--resume", "--output", tmp_path / "a.npy"), "--resume goes on in .csv, .jsonl, .parquet files"),
        (("--format", "csv"), "--format is of a file of results"),
        (("--format", "csv", "--output", tmp_path / "a.csv"), "is for --output -"),
        (("--output", tmp_path / "a.doc"), "has the ending '.doc'"),
    ):
        result = infer(folder, *arguments)
        assert result.exit_code == 2
        assert words in result.stderr
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_until_rows_are_whole_and_resume_goes_on(folder, whole, tmp_path, monkeypatch, number):
    path, write = tmp_path / "rows.csv", ResultWriter.write
    with monkeypatch.context() as patched:

        def struck(results, answers):
            os.kill(os.getpid(), number)
            write(results, answers)

        patched.setattr(ResultWriter, "write", struck)
        # So few files under way that the first rows cannot be all: on a busy machine the writer may come late.
        patched.setattr(loader.Loader.__init__, "__defaults__", ((0, 0), 8))
        before = [(each, signal.signal(each, default)) for each, default in DEFAULTS]  # as where no test runs
        try:
            result = infer(folder, "--output", path)
        finally:
            for each, handler in before:
                signal.signal(each, handler)
    assert result.exit_code == 130
    done = len(path.read_text().splitlines()) - 1
    assert 0 < done < COUNT
    assert f"{done} of {COUNT} inputs have their rows in {path}; --resume goes on" in result.stderr
    assert infer(folder, "--output", path, "--resume").exit_code == 1
    assert path.read_bytes() == whole["csv"]


@pytest.mark.slow(reason="processes; signals within this one, and tests/io/results/test_kill.py, are in make test")
@pytest.mark.parametrize("seed", range(20))
def test_a_run_that_was_killed_goes_on(folder, whole, tmp_path, seed):
    """At a random moment, by any of three signals; what is there is not computed again."""
    chance = random.Random(seed)
    kind = ("csv", "jsonl", "parquet")[seed % 3]
    number = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)[seed // 3 % 3]
    path = tmp_path / f"rows.{kind}"
    written = path if kind != "parquet" else tmp_path / "rows.parquet.partial"
    child = begun("-m", "vgg16gpu", *command(folder, "--output", path))
    enough, deadline = chance.randrange(1, 1000), time.monotonic() + 60
    while child.poll() is None and time.monotonic() < deadline:
        if written.exists() and written.stat().st_size > enough:
            time.sleep(chance.random() * 0.02)
            child.send_signal(number)
            break
        time.sleep(0.001)
    _, told = ended(child)
    if child.returncode == 1:
        pytest.skip("it was through before the signal came")
    if number != signal.SIGKILL:
        assert child.returncode == 128 + number
        record = json.loads(path.with_name(f"{path.name}.run.json").read_text())
        assert record["finished"] or "--resume goes on" in told  # it may have been at its report
    result = infer(folder, "--output", path, "--resume", "--json")
    assert result.exit_code == 1, result.output
    report = json.loads(result.stdout)
    assert len(report["inputs"]) + len(report["unreadable"]) < COUNT
    if kind == "parquet":
        assert rows_of(path) == rows_of_bytes(whole[kind], tmp_path)
    else:
        assert path.read_bytes() == whole[kind]


def rows_of(path):
    parquet = pytest.importorskip("pyarrow.parquet")
    return parquet.read_table(path).to_pylist()


def rows_of_bytes(content, folder):
    (folder / "whole.parquet").write_bytes(content)
    return rows_of(folder / "whole.parquet")
