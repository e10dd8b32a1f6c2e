"""ladder on the command line: table, JSON, chart, what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from vgg16gpu.cli import cli
from vgg16gpu.zoo.digits import heldout
from vgg16gpu_lab.ladder import climb
from vgg16gpu_lab.ladder.content import BOUNDS
from vgg16gpu_lab.ladder.plot import draw


@pytest.fixture(scope="module", autouse=True)
def _one_sample() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(climb, "SECONDS", 0.0)
        patched.setattr(climb, "WARM_UP", 0.0)
        yield


def ladder(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["ladder", "digits", "--device", "cpu", *map(str, arguments)])


@pytest.fixture(scope="module")
def written(_one_sample: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ladder")
    result = ladder("--rungs", "N,A,G", "--output", folder / "ladder.json", "--plot", folder / "ladder.png")
    assert result.exit_code == 0, result.stderr
    (folder / "ladder.txt").write_text(result.stdout)
    return folder


def test_the_table_and_the_file(written: Path) -> None:
    text = (written / "ladder.txt").read_text()
    for part in ("sums on the host", "register tile", "split-K", "onnxruntime, CPU", "ms (CPU)", "a CPU's", "missing"):
        assert part in text
    assert " ".join(BOUNDS.split()) in " ".join(text.split())
    assert "N: a CPU has few cores" in text
    assert text.index("sums on the host") < text.index("register tile") < text.index("split-K")
    content = json.loads((written / "ladder.json").read_text())
    assert [rung["letter"] for rung in content["rungs"]] == ["A", "G", "N"]
    assert [rung["status"] for rung in content["rungs"]] == ["measured"] * 2 + ["missing"]
    a, g, n = content["rungs"]
    assert n["times"] is None
    assert n["why"]
    assert a["on_device"] is None
    assert g["on_device"]["median_s"] > 0
    assert g["times"]["samples"] >= 1
    assert g["gain"]["measured"] == pytest.approx(a["times"]["median_s"] / g["times"]["median_s"])
    assert content["onnxruntime"]["median_s"] > 0
    assert content["environment"]["versions"]["onnxruntime"]
    assert content["model"]["input_shape"] == [1, 1, 32, 32]
    assert content["inputs"] is None


def test_predictions_are_drawn_for_a_gpu_and_reports_at_their_size(written: Path) -> None:
    content = json.loads((written / "ladder.json").read_text())

    def legend() -> list[str]:
        return [text.get_text().partition(":")[0] for text in draw(content).axes[0].get_legend().get_texts()]

    assert {*legend()} == {"measured", "onnxruntime, CPU"}
    content["device"]["kind"] = "cuda"
    content["model"]["input_shape"] = [1, 3, 244, 244]
    assert {*legend()} == {"measured", "onnxruntime, CPU", "predicted", "published, another card"}


def test_your_own_inputs(tmp_path: Path) -> None:
    x = heldout()[1][:3]
    np.save(tmp_path / "x.npy", x)
    result = ladder("--rungs", "E", "--inputs", tmp_path, "--output", tmp_path / "ladder.json")
    assert result.exit_code == 0, result.stderr
    assert "error: the largest of your inputs (3)" in result.stdout
    assert json.loads((tmp_path / "ladder.json").read_text())["inputs"] == 3


def test_wrong_scores_are_a_failed_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(climb, "TOLERANCES", {"fp32": 0.0})
    result = ladder("--rungs", "E", "--json")
    assert result.exit_code == 1
    (rung,) = json.loads(result.stdout)["rungs"]
    assert (rung["letter"], rung["status"]) == ("E", "wrong")
    assert rung["why"].startswith("the scores differ by")


def test_refused() -> None:
    for arguments, words in (
        (("--rungs", "A,Z"), "'Z' is not one of 'A', 'B'"),
        (("--plot", "x.gif"), "accepted are .png"),
        (("--output", "/nowhere/x.json"), "/nowhere"),
        (("--size", "30"), "30"),
        (("--model", "x.onnx"), "the same"),
        (("--inputs", "/nowhere"), "does not exist"),
    ):
        result = ladder(*arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert words in result.stderr
