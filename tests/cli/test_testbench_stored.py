"""`testbench` on the package's stored references: no onnxruntime, the same verdicts, and a wrong score fails."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from testbench import make_references
from vgg16gpu.checks import references
from vgg16gpu.checks.onnxruntime_oracle import Oracle
from vgg16gpu.checks.references import StoredReferences, reference_files
from vgg16gpu.cli import cli
from vgg16gpu.io.labels import IMAGENET_MEAN, IMAGENET_STD
from vgg16gpu.io.synthetic import TESTBENCH_SEED, structured_images

WITHOUT_ONNXRUNTIME = pytest.mark.usefixtures("no_onnxruntime")
DIGITS = next(path for path in reference_files() if path.name == "digits.npz")


@pytest.fixture
def no_onnxruntime(monkeypatch):
    """As where it is not installed."""
    monkeypatch.setitem(sys.modules, "onnxruntime", None)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of all stored references is this one, empty."""
    folder = tmp_path / "references"
    folder.mkdir()
    monkeypatch.setattr(references, "_FOLDERS", (folder,))
    return folder


@pytest.fixture(scope="module")
def narrow_references(narrow):
    pictures = structured_images(10, 32, TESTBENCH_SEED)
    return make_references.ask_onnxruntime(narrow, "narrow", pictures, "ten", (IMAGENET_MEAN, IMAGENET_STD))


def invoked(*arguments):
    return CliRunner().invoke(cli, ["testbench", *map(str, arguments), "--device", "cpu"])


def bench(*arguments):
    result = invoked(*arguments, "--json")
    assert result.exit_code in (0, 1), result.output
    return json.loads(result.stdout), result.exit_code


def flipped(stored, row, column):
    """The same references with the sign of one score changed."""
    scores = stored.scores.copy()
    scores[row, column] = -scores[row, column]
    return replace(stored, scores=scores)


@pytest.mark.slow(reason="450 digits; the narrow net's stored scores are in make test")
@WITHOUT_ONNXRUNTIME
def test_digits_pass_without_onnxruntime():
    report, code = bench("digits")
    assert code == 0, report["failures"]
    assert report["inputs_passed"] == len(report["inputs"]) == 450
    assert 0 < report["worst_error"] <= 1e-6
    stored = StoredReferences.read(DIGITS)
    assert report["references"] == {
        "file": "digits.npz",
        "found_by": "model's SHA-256",
        "unanswered": [],
        "rows_of_others": 0,
        "onnxruntime": stored.onnxruntime,
        "provider": "CPUExecutionProvider",
    }


def test_the_verdicts_are_those_of_computed_references(narrow, narrow_references, folder):
    computed, code = bench(narrow)
    assert (code, computed["references"]) == (0, None)
    narrow_references.write(folder / "narrow.npz")
    stored, code = bench(narrow)
    assert (code, stored["references"]["file"]) == (0, "narrow.npz")
    assert stored["inputs"] == computed["inputs"]  # onnxruntime gives the same bits on the same CPU
    again, code = bench(narrow, "--references", "onnxruntime")
    assert (code, again["references"], again["inputs"]) == (0, None, computed["inputs"])
    shown = " ".join(invoked(narrow).stdout.split())
    assert f"References: stored scores of onnxruntime {narrow_references.onnxruntime} for this model" in shown
    assert "PASS: 10 of 10 inputs agree with onnxruntime's stored scores, worst error" in shown


@WITHOUT_ONNXRUNTIME
def test_one_flipped_score_fails(narrow, narrow_references, folder):
    flipped(narrow_references, 6, int(np.abs(narrow_references.scores[6]).argmin())).write(folder / "narrow.npz")
    report, code = bench(narrow)
    assert code == 1
    assert [item["passed"] for item in report["inputs"]] == [i != 6 for i in range(10)]
    assert "1 of 10 inputs fail, the first is 'structured 6'" in report["failures"][0]


@pytest.mark.parametrize(
    "options",
    [
        ("--layers",),
        ("--mean", "0.4,0.4,0.4"),  # other inputs than those that are stored
    ],
)
def test_what_asks_for_more_needs_onnxruntime(narrow, narrow_references, folder, monkeypatch, options):
    narrow_references.write(folder / "narrow.npz")
    report, code = bench(narrow, *options)
    assert code == 0, report["failures"]
    assert report["references"] is None
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    result = invoked(narrow, *options)
    assert result.exit_code == 2
    assert "onnxruntime is not installed" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_damaged_file_is_told_and_onnxruntime_computes(narrow, folder, monkeypatch):
    (folder / "narrow.npz").write_bytes(b"PK\x03\x04 nonsense")
    asked = []
    whole = Oracle.scores

    def counted(oracle, x):
        asked.append(len(x))
        return whole(oracle, x)

    monkeypatch.setattr(Oracle, "scores", counted)
    result = invoked(narrow)
    assert result.exit_code == 0, result.output
    assert sum(asked) == 10
    assert f"'{folder / 'narrow.npz'}' cannot be read" in " ".join(result.stderr.split())
    assert result.stderr.count("\n") == 1
    assert "PASS: 10 of 10 inputs, " in result.stdout
