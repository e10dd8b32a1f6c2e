"""A graph as layers: which of them follow a ReLU, so that no number that they are given is below zero."""

from pathlib import Path

from tests.support.onnx_models import Model
from vgg16gpu.compiler.graph.ops import Pool
from vgg16gpu.compiler.model import Model as OnnxModel
from vgg16gpu.zoo.generate import make_vgg
from vgg16gpu_lab.ladder.layers import sites


def test_every_pool_of_a_vgg_follows_a_relu(tmp_path: Path) -> None:
    make_vgg(tmp_path / "m.onnx", width=4, hidden=8, size=32, classes=3)
    found = sites(OnnxModel(tmp_path / "m.onnx").graph(), (1, 3, 32, 32))
    assert [site.follows_relu for site in found if isinstance(site.layer, Pool)] == [True] * 5
    assert not found[0].follows_relu


def test_a_pool_without_a_relu_before(tmp_path: Path) -> None:
    model = Model(("n", 2, 8, 8))
    x = model.conv("input", "a", 2, 3)
    for name in "bc":
        x = model.node("MaxPool", [x], name, kernel_shape=[2, 2], strides=[2, 2])
    model.gemm(model.node("Flatten", [x], "f"), "scores", 3 * 2 * 2, 4)
    assert not any(
        site.follows_relu for site in sites(OnnxModel(model.save(tmp_path / "m.onnx")).graph(), (1, 2, 8, 8))
    )
