"""`testbench` of a file that rounds by itself: compared without its rounding, and with the file as it stands."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from tests.support.later import later
from tests.support.quantised_nets import inputs, quantised, vgg
from vgg16gpu.checks.accuracy import SCORE_TOLERANCES
from vgg16gpu.cli import cli
from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.graph.ops import FakeQuantize, Identity
from vgg16gpu.compiler.quantization import qdq

COUNT = 16


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of quantised files, of inputs for them and of one input."""
    folder = tmp_path_factory.mktemp("files")
    for activation in ("relu6", "hardtanh"):
        quantised(vgg(activation), folder / f"{activation}.onnx", scale=3.0)
    np.save(folder / "x.npy", inputs(COUNT, 99, 3.0))
    return folder


def called(folder: Path, name: str, *options: str) -> Result:
    arguments = ["testbench", str(folder / name), "--device", "cpu", "--inputs", str(folder / "x.npy"), *options]
    return CliRunner().invoke(cli, arguments)


def report_of(folder: Path, name: str, *options: str) -> tuple[dict[str, Any], int]:
    result = called(folder, name, *options, "--json")
    assert result.exit_code in (0, 1), result.output
    return json.loads(result.stdout), result.exit_code


@pytest.mark.parametrize("precision", ["fp32", *later("fp32 stands for it", "fp16")])
@pytest.mark.parametrize("name", ["hardtanh.onnx", *later("as hardtanh", "relu6.onnx")])
def test_two_comparisons(files: Path, name: str, precision: str) -> None:
    kernels = ("--kernels", "ffma" if precision == "fp32" else "mma")
    report, code = report_of(files, name, "--precision", precision, *kernels)
    assert code == 0, report["failures"]
    assert report["worst_error"] <= SCORE_TOLERANCES[precision]
    stands = report["as_it_stands"]
    assert 1e-3 < stands["mean_error"] <= stands["tolerance"] < 0.1 + SCORE_TOLERANCES[precision]
    assert stands["agreement"] >= 0.9
    assert report["quantised"] is None
    shown = " ".join(called(files, name, "--precision", precision, *kernels).stdout.split())
    assert "The file rounds values (QuantizeLinear), this precision does not." in shown
    assert f"mean error is {stands['mean_error']:.2e}, the same best class for {stands['agreement']:.0%}" in shown


def test_int8_rounds_and_is_compared_once(files: Path) -> None:
    report, code = report_of(files, "relu6.onnx", "--precision", "int8")
    assert code == 0, report["failures"]
    assert report["as_it_stands"] is None
    assert report["quantised"]["ratio"] <= 1.1


def test_int8_of_a_file_with_zero_points_is_calibrated_with_its_limits(files: Path, tmp_path: Path) -> None:
    """The kernels hold none of its integers: its clips stay, in calibration, in int8 and in its quantised form."""
    path = quantised(vgg("lopsided"), tmp_path / "m.onnx", scale=3.0)
    found = CliRunner().invoke(cli, ["calibrate", str(path), "--images", str(files / "x.npy"), "--device", "cpu"])
    assert found.exit_code == 0, found.output
    options = ("--precision", "int8", "--inputs", str(files / "x.npy"), "--device", "cpu", "--json")
    result = CliRunner().invoke(cli, ["testbench", str(path), *options])
    report = json.loads(result.stdout)
    assert result.exit_code == 0, report["failures"]
    assert report["worst_error"] < 0.05
    assert report["quantised"]["ratio"] <= 1.1


@pytest.mark.parametrize("outputs", [("scores",), ("act0", "pool1")])
def test_values_inside(files: Path, outputs: tuple[str, ...]) -> None:
    report, code = report_of(files, "hardtanh.onnx", "--outputs", ",".join(outputs))
    assert code == 0, report["failures"]
    assert len(report["values"]) == len(outputs)
    stands = report["as_it_stands"]
    assert 1e-4 < stands["mean_error"] <= stands["tolerance"] < 0.1
    assert (stands["agreement"] is None) == (outputs != ("scores",))


def unlimited(graph: Graph) -> Graph:
    """What was wrong: rounding left out, and the limits of the integers with it."""
    ops = [Identity(op.x, op.y, op.names) if isinstance(op, FakeQuantize) else op for op in graph.ops]
    return replace(graph, ops=tuple(ops))


def test_limits_that_are_lost_fail_both(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qdq, "strip_qdq", unlimited)
    report, code = report_of(files, "hardtanh.onnx")
    assert code == 1
    assert report["inputs_passed"] == 0
    stands = report["as_it_stands"]
    assert stands["mean_error"] > 5 * stands["tolerance"]
    assert any("beside the file as it stands is more than" in reason for reason in report["failures"])
