"""`testbench` of nets with few classes, or none: right ones pass, wrong ones fail, and float64 decides on rounding."""

import json

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

from vgg16gpu.checks import nearer
from vgg16gpu.checks.onnxruntime_oracle import Oracle
from vgg16gpu.cli import cli
from vgg16gpu.cli.testbench import command
from vgg16gpu.runtime.engine import Engine

SIZE = 16
CHANNELS = 8


def bench(model, *options):
    arguments = ["testbench", str(model), "--device", "cpu", *map(str, options)]
    result = CliRunner().invoke(cli, [*arguments, "--json"])
    assert result.exit_code in (0, 1), result.output
    return json.loads(result.stdout), result.exit_code


def text(model, *options):
    result = CliRunner().invoke(cli, ["testbench", str(model), "--device", "cpu", *map(str, options)])
    return result.exit_code, " ".join(result.stdout.split())


def net(path, head, weights=()):
    """Save a convolution of 3x16x16 to 8 channels with ReLU, then `head`, which reads 'features'."""
    rng = np.random.default_rng(1)
    constants = {"w": rng.standard_normal((CHANNELS, 3, 3, 3)) / 5, "b": rng.standard_normal(CHANNELS), **dict(weights)}
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["conv"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv"], ["features"]),
        *head,
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, SIZE, SIZE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(array, np.float32), name) for name, array in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
    return path


def scored(path, classes, last=None, bias=0.0, scale=1.0):
    """Save scores of classes behind the mean of each channel; `bias`: of the first class."""
    rng = np.random.default_rng(2)
    biases = np.zeros(classes)
    biases[0] = bias
    head = [
        helper.make_node("GlobalAveragePool", ["features"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["flat"]),
        helper.make_node("Gemm", ["flat", "fc", "fc_b"], ["scores" if last else "y"]),
        *([helper.make_node(last, ["scores"], ["y"])] if last else []),
    ]
    return net(path, head, {"fc": rng.standard_normal((CHANNELS, classes)) * scale, "fc_b": biases}.items())


def one_answer(path):
    return scored(path, 5, bias=50)


NETS = {
    "5 classes, one answer": one_answer,
    "2 probabilities": lambda path: scored(path, 2, "Softmax"),
    "1 number": lambda path: scored(path, 1),
    "a map": lambda path: net(path, [helper.make_node("MaxPool", ["features"], ["y"], kernel_shape=[2, 2])]),
}


@pytest.fixture(params=NETS)
def right(request, tmp_path):
    return NETS[request.param](tmp_path / "m.onnx")


def test_n2_a_right_net_passes_whatever_it_answers(right):
    report, code = bench(right)
    assert code == 0, report["failures"]
    assert report["inputs_passed"] == 10
    assert report["control"]["passed"] is True


@pytest.mark.first_case(reason="one net; right ones of each kind pass")
def test_a_small_fault_fails_and_so_does_one_answer_to_all(right, monkeypatch):
    kept = []

    class Stuck(Engine):
        def run(self, x):
            kept.append(super().run(x))
            return kept[0]

    monkeypatch.setattr(command, "Engine", Stuck)
    assert bench(right)[1] == 1

    class Off(Engine):
        def run(self, x):
            return super().run(x) * np.float32(1.001)

    monkeypatch.setattr(command, "Engine", Off)
    report, code = bench(right)
    assert code == 1
    assert report["inputs_passed"] == 0
    assert [each["passed"] for each in report["float64"]] == [False]  # asked once


def test_a_net_that_answers_all_alike_is_blind(tmp_path):
    report, code = bench(scored(tmp_path / "m.onnx", 1, bias=1, scale=1e-9))
    assert code == 1
    assert report["inputs_passed"] == 10
    assert "blind: of the references of 10 inputs only 1 differ" in report["failures"][0]


def test_a_map_has_no_best_class(tmp_path):
    path = NETS["a map"](tmp_path / "m.onnx")
    report, _ = bench(path)
    assert {(item["top1"], item["reference_top1"], item["top5_of"]) for item in report["inputs"]} == {(None, None, 0)}
    assert report["agreement"] is None
    assert report["distinct_answers"] == 0
    assert text(path)[1].endswith("PASS: 10 of 10 inputs")
    (tmp_path / "cat").mkdir()
    result = CliRunner().invoke(cli, ["testbench", str(path), "--device", "cpu", "--images", str(tmp_path)])
    assert result.exit_code != 0
    assert "has no scores of classes" in result.output


@pytest.fixture
def farther(monkeypatch):
    """Move onnxruntime's scores by 3e-5 of the largest."""
    whole = Oracle.scores

    def moved(oracle, x):
        rows = whole(oracle, x)
        return rows + np.float32(3e-5) * np.abs(rows).max()

    monkeypatch.setattr(Oracle, "scores", moved)


@pytest.mark.usefixtures("farther")
def test_n2_where_onnxruntime_is_farther_from_float64_ours_passes(tmp_path):
    path = scored(tmp_path / "m.onnx", 2)
    report, code = bench(path)
    assert code == 0, report["failures"]
    assert len(report["float64"]) == 10
    assert all(each["error"] < 1e-6 and each["onnxruntime_error"] > 2e-5 for each in report["float64"])
    assert all(item["by_float64"] and item["error"] < 1e-6 for item in report["inputs"])
    _, shown = text(path)
    assert "Float64 decides on 10 answers beyond the tolerance of onnxruntime's: ours are off by at most" in shown
    assert "PASS, by float64" in shown


@pytest.mark.usefixtures("farther")
def test_float64_is_asked_of_few_inputs(tmp_path, monkeypatch):
    monkeypatch.setattr(nearer, "MOST", 4)
    path = scored(tmp_path / "m.onnx", 2)
    report, code = bench(path)
    assert (code, len(report["float64"])) == (1, 4)
    assert [item["passed"] for item in report["inputs"]] == [True] * 4 + [False] * 6
    assert "Float64: float64 was asked of the first 4 inputs alone" in text(path)[1]


@pytest.mark.usefixtures("farther")
def test_a_net_that_float64_does_not_know_fails_as_before(tmp_path, monkeypatch):
    def refused(*_):
        raise nearer.ModelError("m.onnx: its values in float64 are not known: no such op")

    monkeypatch.setattr(nearer, "Float64Oracle", refused)
    path = scored(tmp_path / "m.onnx", 2)
    report, code = bench(path)
    assert (code, report["inputs_passed"], report["float64"]) == (1, 0, [])
    assert "are not known: no such op" in text(path)[1]


def test_references_that_are_wrong_by_more_than_rounding_are_not_ours_to_pass(tmp_path, monkeypatch):
    """Fail although float64 agrees with ours: something else is wrong then."""
    whole = Oracle.scores
    monkeypatch.setattr(Oracle, "scores", lambda oracle, x: whole(oracle, x) * np.float32(1.005))
    report, code = bench(scored(tmp_path / "m.onnx", 2))
    assert (code, report["inputs_passed"], report["float64"]) == (1, 0, [])


def test_ours_farther_from_float64_fails(tmp_path, monkeypatch):
    class Off(Engine):
        def run(self, x):
            rows = super().run(x)
            return rows + np.float32(3e-5) * np.abs(rows).max()

    monkeypatch.setattr(command, "Engine", Off)
    path = scored(tmp_path / "m.onnx", 2)
    report, code = bench(path)
    assert code == 1
    assert report["inputs_passed"] == 0
    (decision,) = report["float64"]
    assert decision["error"] == pytest.approx(3e-5, rel=0.1)
    assert "Float64: 'structured 0' is off by 3." in text(path)[1]


def test_values_and_steps_too(tmp_path, monkeypatch):
    whole = Oracle.values

    def moved(oracle, x, names):
        return {name: value * np.float32(1 + 3e-5) for name, value in whole(oracle, x, names).items()}

    monkeypatch.setattr(Oracle, "values", moved)
    path = scored(tmp_path / "m.onnx", 2)
    report, code = bench(path, "--layers")
    assert code == 0, report["failures"]
    assert report["steps"]
    assert all(step["by_float64"] and step["error"] < 1e-6 for step in report["steps"])
    report, code = bench(path, "--outputs", "features,y")
    assert code == 0, report["failures"]
    assert [value["by_float64"] for value in report["values"]] == [True, True]
    assert len(report["float64"]) == 20
