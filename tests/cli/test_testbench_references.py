"""`testbench --references` on what `infer --output` wrote, right and spoiled in every way that a hint knows."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from tests.support.later import later
from vgg16gpu.cli import cli
from vgg16gpu.io.scores import softmax
from vgg16gpu.zoo.digits import heldout

COUNT = 9
BROKEN = "03-broken.png"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Nine digits and a file that is none."""
    folder = tmp_path_factory.mktemp("pictures")
    images, _, _ = heldout()
    for i in range(COUNT):
        Image.fromarray(images[i, :, :, 0]).save(folder / f"{i:02}.png")
    (folder / BROKEN).write_bytes(b"nonsense")
    return folder


@pytest.fixture(scope="module")
def names(pictures):
    return [str(path) for path in sorted(pictures.iterdir()) if path.name != BROKEN]


@pytest.fixture(scope="module")
def scores(pictures, tmp_path_factory):
    """What `infer` answers to the digits."""
    path = tmp_path_factory.mktemp("scores") / "scores.npy"
    infer(pictures, path)
    rows = np.load(path)
    assert np.isnan(rows).all(axis=1).sum() == 1
    return rows[~np.isnan(rows).all(axis=1)]


def infer(pictures, path):
    options = ["--model", "digits", "--device", "cpu", "--scores", "-q", "--output"]
    result = CliRunner().invoke(cli, ["infer", *options, str(path), str(pictures)])
    assert result.exit_code == 1, result.output  # one picture has no answer


def invoked(inputs, references, *more):
    options = ["--inputs", inputs, "--references", references, "--device", "cpu", *more]
    return CliRunner().invoke(cli, ["testbench", "digits", *map(str, options)])


def bench(inputs, references, *more):
    result = invoked(inputs, references, "--json", *more)
    assert result.exit_code in (0, 1), result.output
    return json.loads(result.stdout), result.exit_code


def archive(tmp_path, names, scores):
    np.savez(tmp_path / "r.npz", names=np.array(names), scores=scores.astype(np.float32))
    return tmp_path / "r.npz"


@pytest.mark.parametrize("kind", ["csv", "npy", *later("other forms of the same", "parquet", "npz", "txt", "json")])
def test_what_infer_wrote_passes(pictures, tmp_path, kind):
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / f"r.{kind}"
    infer(pictures, path)
    report, code = bench(pictures, path)
    assert code == 0, report["failures"]
    assert report["inputs_passed"] == len(report["inputs"]) == COUNT
    assert report["worst_error"] <= 1e-6
    assert report["hints"] == []
    found_by = "place" if kind in ("npy", "txt") else "name"
    missing = [str(pictures / BROKEN)]
    assert report["references"] == {
        "file": path.name,
        "found_by": found_by,
        "unanswered": missing,
        "rows_of_others": 0,
    }


def test_what_is_not_compared_is_told(pictures, names, scores, tmp_path):
    rows = np.concatenate([scores, np.full((1, 10), np.nan), scores[:2]])
    path = archive(tmp_path, [*names, str(pictures / BROKEN), "other", "another"], rows)
    shown = " ".join(invoked(pictures, path).stdout.split())
    assert "r.npz, rows found by name, 2 rows there are of other inputs; 1 of 10 inputs have no answer there" in shown
    assert f"are not compared: '{pictures / BROKEN}'" in shown
    assert f"PASS: {COUNT} of {COUNT} inputs" in shown


SPOILED = {
    "rounded": (lambda rows: np.round(rows, 2), "rounded to 2 decimals"),
    "softmaxed": (softmax, "look like probabilities"),
    "logarithms": (lambda rows: np.log(softmax(rows)), "logarithms of probabilities"),
    "shuffled": (lambda rows: np.roll(rows, 1, axis=0), "look shuffled"),
    "reordered": (lambda rows: rows[:, ::-1], "classes in another order"),
    "negative": (lambda rows: -rows, "other sign"),
}


@pytest.fixture
def digits_alone(pictures, tmp_path):
    folder = tmp_path / "digits"
    folder.mkdir()
    for path in pictures.iterdir():
        if path.name != BROKEN:
            (folder / path.name).write_bytes(path.read_bytes())
    return folder


@pytest.mark.first_case(reason="tests/checks/test_hints.py has each")
@pytest.mark.parametrize("fault", SPOILED)
def test_hints(digits_alone, scores, tmp_path, fault):
    spoil, words = SPOILED[fault]
    np.save(tmp_path / "r.npy", spoil(scores.astype(np.float64)).astype(np.float32))
    report, code = bench(digits_alone, tmp_path / "r.npy")
    assert code == 1
    assert len(report["hints"]) == 1
    assert words in report["hints"][0]
    shown = " ".join(invoked(digits_alone, tmp_path / "r.npy").stdout.split())
    assert f"Hint: {report['hints'][0][:30]}" in shown


def test_mistakes_are_one_line(digits_alone, scores, tmp_path):
    names = [str(digits_alone / f"{i:02}.png") for i in range(COUNT)]
    doubled = archive(tmp_path, [names[0], *names[:-1]], scores)
    np.save(tmp_path / "short.npy", scores[1:])
    np.savez(tmp_path / "elsewhere.npz", names=np.array([f"x/{i}" for i in range(COUNT)]), scores=scores)
    for path, more, words in (
        (tmp_path / "elsewhere.npz", (), f"no row for {COUNT} of {COUNT} inputs, the first is '{names[0]}'"),
        (doubled, (), f"no row for 1 of {COUNT} inputs"),
        (tmp_path / "short.npy", (), f"{COUNT - 1} rows, there are {COUNT} inputs"),
        (tmp_path / "none.csv", (), "do not exist"),
        (tmp_path / "short.npy", ("--tolerance", "nan"), "'--tolerance': 'nan' is not a number"),
    ):
        result = invoked(digits_alone, path, *more)
        assert result.exit_code == 2
        assert words in result.stderr
        assert len(result.stderr.splitlines()) == 1
    result = CliRunner().invoke(cli, ["testbench", "digits", "--references", str(doubled)])
    assert result.exit_code == 2
    assert "--inputs or --images" in result.stderr
