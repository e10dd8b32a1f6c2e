"""`info --attributes`: all nodes of a file, within 80 columns, as JSON, and of what does not run here."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from tests.support.onnx_models import Model
from vgg16gpu.cli import cli
from vgg16gpu.cli.info import attributes as info_attributes
from vgg16gpu.io.shipped import digits_model


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["info", "--attributes", *map(str, arguments)])


def described(path: object) -> dict[str, Any]:
    result = run(path, "--json")
    assert result.exit_code == 0, result.output
    content: dict[str, Any] = json.loads(result.stdout)
    return content


def test_as_json() -> None:
    content = described("digits")
    assert content["opsets"] == {"": 17}
    assert content["file_nbytes"] == digits_model().stat().st_size
    convolutions = [node for node in content["nodes"] if node["op"] == "Conv"]
    assert len(convolutions) == 6
    assert convolutions[1]["attributes"]["pads"] == [1, 1, 1, 1]
    held = [operand["initializer"] for operand in convolutions[1]["inputs"]]
    assert held == [None, {"type": "float32", "shape": [16, 16, 3, 3]}, {"type": "float32", "shape": [16]}]
    pools = [node["attributes"] for node in content["nodes"] if node["op"] == "MaxPool"]
    assert [(pool["kernel_shape"], pool["strides"]) for pool in pools] == [([2, 2], [2, 2])] * 3
    assert content["nodes"][-1]["attributes"] == {"alpha": 1.0, "beta": 1.0, "transB": 1}


def test_a_name_that_no_column_holds_breaks_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(info_attributes, "console", lambda: Console(width=80, highlight=False))
    model = Model()
    model.node(
        "Conv", ["input", model.weight("w" * 200, 4, 3, 3, 3)], "y", kernel_shape=[3, 3], group=1, auto_pad="VALID"
    )
    text = run(model.save(tmp_path / "m.onnx")).stdout
    assert max(map(len, text.splitlines())) <= 80
    assert re.search("kernel_shape *│ 3, 3", text)
    assert re.search("auto_pad *│ VALID", text)
    assert sum(line.count("w") for line in text.splitlines() if "│" in line and "www" in line) == 200


def test_two_views_exclude_each_other_and_errors_are_one_line(tmp_path: Path) -> None:
    both = run("digits", "--graph")
    assert (both.exit_code, both.stderr.count("\n")) == (2, 1)
    assert "give one" in both.stderr
    (tmp_path / "x.onnx").write_bytes(np.arange(100).tobytes())
    broken = run(tmp_path / "x.onnx")
    assert (broken.exit_code, broken.stderr.count("\n")) == (2, 1)
    assert "is not an ONNX model" in broken.stderr
