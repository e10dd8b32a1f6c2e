"""`testbench` end to end on the cpu device: it passes what is right and, above all, fails what is not."""

import json
import re
import shutil
from typing import ClassVar

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from tests.support.later import later
from tests.support.quantised_reference import evaluate
from vgg16gpu.cli import cli
from vgg16gpu.cli.testbench import case as testbench_case
from vgg16gpu.cli.testbench import command
from vgg16gpu.cli.testbench.case import LabelledImages
from vgg16gpu.compiler.quantization.scale_file import read_scales
from vgg16gpu.io.normalize import normalise
from vgg16gpu.runtime.engine import Engine
from vgg16gpu.zoo.digits import DIGITS_MEAN, DIGITS_STD, heldout

DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


@pytest.fixture(scope="module")
def saved(narrow, tmp_path_factory):
    """input.txt and output.txt of the standard inputs, as `--save` writes them."""
    folder = tmp_path_factory.mktemp("saved")
    report, code = bench("--model", narrow, "--save", folder)
    assert code == 0, report["failures"]
    return folder


def bench(*args, device="cpu"):
    result = CliRunner().invoke(cli, ["testbench", *map(str, args), "--device", device, "--json"])
    assert result.exit_code in (0, 1), result.output
    return json.loads(result.stdout), result.exit_code


def text(*args):
    return CliRunner().invoke(cli, ["testbench", *map(str, args), "--device", "cpu"])


@DEVICES
def test_the_standard_inputs_pass(narrow, tmp_path, device):
    options = ("--layers", "--iterations", "1,2", "--output", tmp_path / "r.json")
    report, code = bench("--model", narrow, *options, device=device)
    assert code == 0, report["failures"]
    assert report["passed"] is True
    assert report["inputs_passed"] == 10
    assert report["distinct_answers"] >= 4
    assert 0 < report["worst_error"] <= 1e-5
    assert len(report["steps"]) >= 11  # 8 convolutions and 3 gemms, at least
    assert set(report["mean_run_s"]) == {"1", "2"}
    assert report["environment"]["versions"]["onnxruntime"]
    assert json.loads((tmp_path / "r.json").read_text())["inputs"] == report["inputs"]


def test_a_wrong_row_of_a_batch_fails(narrow, monkeypatch):
    whole = Engine.run

    def swapped(engine, x):
        scores = whole(engine, x).copy()
        scores[[0, -1]] = scores[[-1, 0]]
        return scores

    monkeypatch.setattr(Engine, "run", swapped)
    assert bench("--model", narrow)[1] == 0  # a batch of one has nothing to swap
    report, code = bench("--model", narrow, "--batch", 5)
    assert (code, report["inputs_passed"]) == (1, 6)


def test_saved_files_are_the_seeds_format_and_pass_again(narrow, saved):
    inputs = np.array((saved / "input.txt").read_text().split(), np.float32)
    outputs = np.array((saved / "output.txt").read_text().split(), np.float32)
    assert inputs.size == 10 * 3 * 32 * 32
    assert outputs.size == 10 * 40
    report, code = bench("--model", narrow, "--inputs", saved / "input.txt", "--references", saved / "output.txt")
    assert code == 0, report["failures"]
    assert report["inputs_passed"] == 10


def test_a_nan_output_fails(narrow, monkeypatch):
    class Broken(Engine):
        def run(self, x):
            scores = super().run(x)
            scores[:, 3] = np.nan
            return scores

    monkeypatch.setattr(command, "Engine", Broken)
    report, code = bench("--model", narrow, "--tolerance", "1e9")
    assert (code, report["inputs_passed"]) == (1, 0)
    result = text("--model", narrow, "--layers", "--iterations", "1", "--batch", "2")
    assert result.exit_code == 1
    assert "FAIL: 10 of 10 inputs fail" in result.stdout
    assert "Steps: ||y - r|| / ||r|| of what each stores" in result.stdout
    assert re.search(r"Mean of 10 inputs x 1: [\d.]+ \ws a run of batch 2, host to host", result.stdout)


def test_a_wrong_step_is_named(narrow, monkeypatch):
    class Broken(Engine):
        def read_values(self):
            for index, (names, value) in enumerate(super().read_values()):
                yield names, value + np.float32(0.01) * (index >= 4)

    monkeypatch.setattr(command, "Engine", Broken)
    report, code = bench("--model", narrow, "--layers")
    assert code == 1
    assert [step["passed"] for step in report["steps"]][:4] == [True, True, True, False]
    assert any(report["steps"][3]["names"][-1] in reason for reason in report["failures"])


@pytest.fixture(params=[25, *later("more digits of the same", 450)])
def fewer_digits(request, monkeypatch):
    """The held-out digits are so many."""
    digits = [values[: request.param] for values in heldout()]
    assert len(digits[0]) == request.param
    monkeypatch.setattr(testbench_case, "heldout", lambda: digits)
    return request.param


@pytest.mark.parametrize("precision", ["fp32", *later("tests of testbench in each precision", "fp16", "bf16", "int8")])
def test_the_shipped_net_on_held_out_digits(precision, fewer_digits):
    report, code = bench("--model", "digits", "--precision", precision, device="auto")
    assert code == 0, report["failures"]
    assert report["precision"] == precision
    assert len(report["inputs"]) == fewer_digits
    assert report["tolerance"] == {"fp32": 1e-5, "fp16": 1e-2, "bf16": 8e-2}.get(precision)
    assert min(report["agreement"], report["accuracy"]) >= 0.98
    assert (report["quantised"] is not None) == (precision == "int8")


class Integers(Engine):
    """An engine that computes in fp32, and answers as int8 kernels must; `shift`: what one score is off by."""

    shift = 0.0
    found: ClassVar[dict[bytes, np.ndarray]] = {}  # by input, of all engines

    def __init__(self, model, *, precision, **options):
        assert precision == "int8"
        super().__init__(model, **options)
        self.integers = self.model.graph()
        self.scales = read_scales(self.model.path, self.integers)

    def run(self, x):
        key = x.tobytes()
        if key not in self.found:
            normalised = normalise(x, DIGITS_MEAN, DIGITS_STD)
            self.found[key] = evaluate(self.integers, self.scales, normalised).stored[self.integers.outputs[0]]
        scores = self.found[key]
        return scores + np.float32(self.shift) * np.eye(1, scores.shape[1], dtype=np.float32)


def test_int8_is_judged_by_onnxruntimes_quantised_form(monkeypatch, fewer_digits):
    monkeypatch.setattr(command, "Engine", Integers)
    report, code = bench("--model", "digits", "--precision", "int8")
    assert code == 0, report["failures"]
    assert report["inputs_passed"] == len(report["inputs"]) == fewer_digits
    assert report["accuracy"] >= 0.98
    assert 0.9 < report["quantised"]["ratio"] <= report["quantised"]["limit"] == 1.1
    assert report["quantised"]["mean_error"] == pytest.approx(report["mean_error"])
    result = text("--model", "digits", "--precision", "int8")
    assert "judged by their mean" in result.stdout
    assert "times that of onnxruntime's quantised form (at most 1.1)" in " ".join(result.stdout.split())
    monkeypatch.setattr(Integers, "shift", 0.2)
    report, code = bench("--model", "digits", "--precision", "int8")
    assert code == 1
    assert report["quantised"]["ratio"] > 1.1
    assert any("onnxruntime's quantised form" in reason for reason in report["failures"])


def test_folders_of_labelled_images(tmp_path):
    images, _, labels = heldout()
    for index in range(8):
        folder = tmp_path / str(labels[index])
        folder.mkdir(exist_ok=True)
        Image.fromarray(images[index, :, :, 0]).save(folder / f"{index}.png")
    files = [(str(file), 0) for file in sorted(tmp_path.glob("*/*.png"))]
    assert LabelledImages(files, (1, 32, 32), None)[2:5].names == [file for file, _ in files[2:5]]
    report, code = bench("--model", "digits", "--images", tmp_path, "--min-accuracy", "0.7")
    assert code == 0, report["failures"]
    assert report["inputs_passed"] == 8
    wrong = tmp_path / str((labels[0] + 1) % 10)
    wrong.mkdir(exist_ok=True)
    (tmp_path / str(labels[0]) / "0.png").rename(wrong / "0.png")
    report, code = bench("--model", "digits", "--images", tmp_path, "--min-accuracy", "1")
    assert code == 1
    assert "accuracy" in report["failures"][0]
    assert "(not judged without --min-accuracy)" in text("--model", "digits", "--images", tmp_path).stdout


def test_wrong_requests(narrow):
    for words, said in {
        "--references r.txt": "give both",
        "--inputs a.txt --images b": "exclude each other",
        "--images b --save c": "--save",
        "--inputs missing.txt": "missing.txt",
        "--images missing": "not a folder",
        "--output missing/report.json": "create it first",
        "--size 16": "size",
    }.items():
        result = text("--model", narrow, *words.split())
        assert (result.exit_code, result.stdout) == (2, ""), words
        assert said in result.stderr
        assert result.stderr.count("\n") == 1


def test_another_model_is_taken_where_there_is_none_of_244_pixels_and_told(narrow, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(narrow, "vgg16.onnx")
    result = text("--inputs", "missing.txt")
    names = "models/vgg16-244.onnx, vgg16-244.onnx, models/random-vgg16-244.onnx and random-vgg16-244.onnx"
    assert result.stderr.startswith(f"testbench: takes vgg16.onnx, as {names} do not exist; ")
