"""S5 on a user's own model and inputs: every version is checked on them; what is no plain VGG is refused at once."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from tests.support.onnx_models import Model, torch_vgg
from vgg16gpu.checks.onnxruntime_oracle import Oracle
from vgg16gpu.cli import cli
from vgg16gpu.errors import ModelError
from vgg16gpu.zoo.generate import make_vgg
from vgg16gpu_lab.experiment import Choice
from vgg16gpu_lab.experiments import s5
from vgg16gpu_lab.figures.seeds import pictures
from vgg16gpu_lab.measure.bench_rig import BenchRig
from vgg16gpu_lab.measure.measure import Effort, Status
from vgg16gpu_lab.network.host import SequentialNet
from vgg16gpu_lab.network.plain_model import plain_model
from vgg16gpu_lab.variants import variants

HEIGHT, WIDTH = 12, 20


def keras():
    """Channels last, wider than high."""
    model = Model(("n", HEIGHT, WIDTH, 3))
    x = model.node("Transpose", ["input"], "t", perm=[0, 3, 1, 2])
    x = model.node("Relu", [model.conv(x, "c", 3, 4)], "r")
    x = model.node("MaxPool", [x], "p", kernel_shape=[2, 2], strides=[2, 2])
    model.gemm(model.node("Flatten", [x], "f"), "y", 4 * HEIGHT * WIDTH // 4, 5)
    return model


@pytest.fixture
def inputs(tmp_path):
    folder = tmp_path / "inputs"
    folder.mkdir()
    np.save(folder / "x.npy", np.random.default_rng(1).standard_normal((2, HEIGHT, WIDTH, 3)).astype(np.float32))
    return folder


def test_inputs_are_in_the_order_of_the_networks(inputs, tmp_path):
    path = keras().save(tmp_path / "mine.onnx")
    model = plain_model(path, inputs)
    assert model.shape == (1, 3, HEIGHT, WIDTH)
    expected = Oracle(path).scores(np.load(inputs / "x.npy"))
    for image, scores in zip(model.x, expected, strict=True):
        found = SequentialNet(model.graph, model.shape).run(image[np.newaxis])
        np.testing.assert_allclose(found[0], scores, rtol=1e-4, atol=1e-5)


def branch():
    model = Model()
    model.node("Add", [model.conv("input", "a", 3, 4), model.conv("input", "b", 3, 4)], "y")
    return model


def rows():
    model = Model(("n", 6))
    model.gemm("input", "y", 6, 5)
    return model


def average():
    model = Model()
    x = model.node("AveragePool", [model.conv("input", "a", 3, 4)], "p", kernel_shape=[2, 2], strides=[2, 2])
    model.gemm(model.node("Flatten", [x], "f"), "y", 64, 5)
    return model


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (branch, "S5 takes plain VGGs: Conv 'b': the simple kernels take chains of plain convolutions, max-pools and"),
        (average, "S5 takes plain VGGs: Pool 'p': the simple kernels take chains"),
        (rows, r"S5 takes images, \(N, C, H, W\)"),
    ],
)
def test_what_is_no_plain_vgg(made, words, tmp_path):
    with pytest.raises(ModelError, match=f"m.onnx: .*{words}"):
        plain_model(made().save(tmp_path / "m.onnx"))


def test_a_large_model_is_estimated_on_a_cpu(device, tmp_path, monkeypatch):
    if device.facts.kind != "cpu":
        pytest.skip("a GPU runs everything")
    monkeypatch.setattr(s5, "make_vgg", lambda path, size: make_vgg(path, size=size, width=4, hidden=32, classes=10))
    monkeypatch.setattr(s5, "LARGE", 1000)
    path = torch_vgg().save(tmp_path / "m.onnx")
    rig = BenchRig(device, variants(), Effort(seconds=0.0, samples=3, limit=0.0, cold=False))
    for quick in (True, False):
        rows = s5.EXPERIMENT.run(rig, Choice("cpu", quick=quick, model=path), lambda *_: None)
        assert {row.variant for row in rows if row.status is Status.RIGHT} == {"engine", "onnxruntime"}
        assert {row.status for row in rows if row.variant not in s5.RUN_ANYWAY} == {Status.ESTIMATED}
    rig.close()


@pytest.fixture
def lab(tmp_path, monkeypatch, no_figures):  # noqa: ARG001
    monkeypatch.chdir(tmp_path)

    def invoke(*args):
        return CliRunner().invoke(cli, ["lab", "run", *map(str, args), "--device", "cpu", "--quick"])

    return invoke


def refused(result):
    assert result.exit_code == 2, result.output
    assert (result.stdout, result.stderr.count("\n")) == ("", 1)
    return result.stderr


@pytest.mark.slow(reason="test_lab_cli.py runs an experiment")
def test_every_version_on_a_model_and_inputs_of_ones_own(lab, inputs, tmp_path):
    keras().save(tmp_path / "mine.onnx")
    result = lab("S5", "--model", "mine.onnx", "--inputs", inputs)
    assert result.exit_code == 0, result.output
    assert "S5 own model" in result.stdout
    record = json.loads((tmp_path / "lab-results" / "S5.json").read_text())
    assert (record["options"]["model"], record["options"]["inputs"]) == ("mine.onnx", str(inputs))
    rows = record["rows"]
    assert [(row["method"], row["parameter"]) for row in rows] == [
        (version.method, f"iterations={n}") for version in s5.VERSIONS for n in version.iterations
    ]
    assert {row["status"] for row in rows} == {"right"}
    assert {(row["table"], row["size"], row["theirs"]) for row in rows} == {(s5.OWN_TABLE, f"{HEIGHT}x{WIDTH}", None)}
    assert {row["checked"] for row in rows} == {"scores of 2 of 2 images against onnxruntime's"}
    names = [picture.name for picture in pictures(record) if not picture.is_empty]
    assert names == [f"S5-versions-{HEIGHT}x{WIDTH}", "S5-roofline"]


def test_what_is_refused_is_refused_before_others_run(lab, tmp_path):
    branch().save(tmp_path / "branch.onnx")
    torch_vgg().save(tmp_path / "m.onnx")
    (tmp_path / "x.txt").write_text("1 2 3")
    assert "plain VGGs" in refused(lab("S1", "S5", "--model", "branch.onnx"))
    assert "no such file" in refused(lab("S5", "--model", "none.onnx"))
    assert "has 3 numbers" in refused(lab("S1", "S5", "--model", "m.onnx", "--inputs", "x.txt"))
    assert "image size is fixed to 8x8" in refused(lab("S5", "--model", "m.onnx", "--size", "16"))
    assert "--inputs are for --model" in refused(lab("S5", "--inputs", "x.txt"))
    assert "are for S5" in refused(lab("S1", "--model", "m.onnx"))
    assert not (tmp_path / "lab-results").exists()
