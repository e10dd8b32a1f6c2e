"""`testbench --outputs` on the cpu device: values inside a model, each beside onnxruntime's."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from tests.support.later import later
from vgg16gpu.cli import cli
from vgg16gpu.runtime.engine import Engine
from vgg16gpu.zoo.digits import heldout

NAMES = ("relu1_1", "features.9", "fc7")


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """Five digits as a file."""
    path = tmp_path_factory.mktemp("digits") / "few.npy"
    np.save(path, heldout()[1][:5])
    return path


def invoke(*args):
    return CliRunner().invoke(cli, ["testbench", *map(str, args), "--device", "cpu"])


def bench(*args):
    result = invoke(*args, "--json")
    assert result.exit_code in (0, 1), result.output
    return json.loads(result.stdout), result.exit_code


@pytest.mark.parametrize(
    ("precision", "kernels", "least", "most"),
    [
        ("fp32", "auto", 0, 1e-5),
        *later("fp32 stands for them", ("fp16", "mma", 1e-5, 1e-2), ("int8", "auto", 1e-4, 1e-1)),
    ],
)
def test_named_values_are_compared_one_by_one(few, precision, kernels, least, most):
    asked = ("--precision", precision, "--kernels", kernels, "--batch", 3, "--outputs", ",".join(NAMES))
    report, code = bench("digits", "--inputs", few, *asked)
    assert code == 0, report["failures"]
    assert [value["names"][0] for value in report["values"]] == [*NAMES]
    assert report["outputs"] == [value["names"][-1] for value in report["values"]]
    assert [value["shape"] for value in report["values"]] == [[1, 16, 32, 32], [1, 32, 8, 8], [1, 10]]
    assert all(least <= value["error"] <= most for value in report["values"])
    assert (report["inputs"], report["inputs_passed"], report["agreement"]) == ([], None, None)
    if precision == "int8":
        assert 0.9 < report["quantised"]["ratio"] <= 1.1
        assert report["quantised"]["mean_error"] > 1e-4


def test_one_wrong_number_fails_and_is_named(few, monkeypatch):
    """In the last input of a batch, in one value alone."""

    def off(engine, x, run=Engine.run):
        values = [value.copy() for value in run(engine, x)]
        values[1][-1].reshape(-1)[3] += 0.1
        return tuple(values)

    monkeypatch.setattr(Engine, "run", off)
    report, code = bench("digits", "--inputs", few, "--batch", 5, "--outputs", ",".join(NAMES))
    assert code == 1
    assert [value["passed"] for value in report["values"]] == [place != 1 for place in range(len(NAMES))]
    (reason,) = report["failures"]
    assert reason.startswith(f"'{NAMES[1]}' is off by ")


def test_nan_fails(few, monkeypatch):
    monkeypatch.setattr(Engine, "run", lambda engine, x, run=Engine.run: run(engine, x) * np.float32("nan"))
    for precision in ("fp32", "int8"):
        assert bench("digits", "--inputs", few, "--precision", precision, "--outputs", "relu1_1")[1] == 1


def test_a_folder_of_pictures_and_a_tolerance(tmp_path):
    """Inputs are found, and the tolerance told, as they are where scores are compared."""
    for i in range(2):
        Image.fromarray(heldout()[0][i, :, :, 0]).save(tmp_path / f"{i}.png")
    asked = ("digits", "--inputs", tmp_path, "--outputs", "relu1_1,fc7", "--tolerance")
    report, code = bench(*asked, 0.5)
    assert code == 0, report["failures"]
    assert (report["tolerance"], report["promised_tolerance"], report["references"]) == (0.5, 1e-5, None)
    shown = " ".join(invoke(*asked, 0.5).stdout.split())
    assert "||y - r|| / ||r||, the worst input, --tolerance 0.5 in place of the promised 1e-05" in shown
    assert "PASS: 2 values of 2 inputs, --tolerance 0.5 in place of the promised 1e-05" in shown
    assert bench(*asked, 1e-12)[1] == 1
    assert "'--tolerance': 'nan' is not a number" in invoke(*asked, "nan").stderr


def test_what_is_about_scores_goes_without(few):
    for words in ("--images .", "--references r.txt", "--save .", "--min-accuracy 0.5", "--labels l.txt"):
        given = ["--inputs", few] if words.startswith("--references") else []
        result = invoke("digits", *given, "--outputs", "y", *words.split())
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"{words.split()[0]} is about scores: it goes without --outputs" in result.stderr
