"""fit: open dimensions filled from the request."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.onnx_models import Model, torch_vgg
from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.graph.input_size import resolve_input_shape
from vgg16gpu.compiler.onnx.load import load
from vgg16gpu.errors import ModelError


def vgg(path: Path, shape: tuple[int | str | None, ...], size: int) -> Graph:
    """Three poolings, fully connected for `size`, its input declared as `shape`."""
    model = torch_vgg((4, "M", 4, "M", 4, "M"), size=size)
    model.input_shape = shape
    return load(model.save(path / "m.onnx"))


def test_the_batch(tmp_path: Path) -> None:
    assert resolve_input_shape(vgg(tmp_path, ("n", 3, 32, 32), 32), 5) == (5, 3, 32, 32)
    fixed = vgg(tmp_path, (2, 3, 32, 32), 32)
    assert resolve_input_shape(fixed, 2) == (2, 3, 32, 32)
    with pytest.raises(ModelError, match=r"batch is fixed to 2, 5 is asked for; use batch 2 or .* dynamic batch"):
        resolve_input_shape(fixed, 5)


@pytest.mark.parametrize("size", [224, 32, 100, 512])
def test_an_open_size_is_found(tmp_path: Path, size: int) -> None:
    found = resolve_input_shape(vgg(tmp_path, ("n", 3, "h", "w"), size), 1)
    assert found == (1, 3, size // 8 * 8, size // 8 * 8)


def test_a_size_that_does_not_fit_names_one_that_does(tmp_path: Path) -> None:
    graph = vgg(tmp_path, ("n", 3, "h", "w"), 40)
    assert resolve_input_shape(graph, 1, 47) == (1, 3, 47, 47)  # pools to the same 5x5 map
    with pytest.raises(ModelError, match=r"size 48x48 .*does not fit: Gemm 'fc6'.*; 40x40 would fit"):
        resolve_input_shape(graph, 1, 48)


def test_a_fixed_size(tmp_path: Path) -> None:
    graph = vgg(tmp_path, ("n", 3, 40, "w"), 40)
    assert resolve_input_shape(graph, 1) == (1, 3, 40, 40)
    assert resolve_input_shape(graph, 1, (40, 42)) == (1, 3, 40, 42)
    with pytest.raises(ModelError, match=r"fixed to 40xany \(height x width\), 42x40 is asked for"):
        resolve_input_shape(graph, 1, (42, 40))
    with pytest.raises(ModelError, match="fixed to 40x40"):
        resolve_input_shape(vgg(tmp_path, ("n", 3, 40, 40), 40), 1, 41)


def test_no_size_fits(tmp_path: Path) -> None:
    model = torch_vgg((4, "M"), size=8)
    model.input_shape = ("n", 3, "h", "w")
    graph = load(model.save(tmp_path / "m.onnx"))
    assert resolve_input_shape(graph, 1) == (1, 3, 8, 8)  # sizes that nobody uses are tried last
    model.input_shape = ("n", 3, "h", 600)
    with pytest.raises(ModelError, match=r"weights for 64 features, its input \(1, 134400\)"):
        resolve_input_shape(load(model.save(tmp_path / "m.onnx")), 1)
    with pytest.raises(ModelError, match="0x8 is not possible"):
        resolve_input_shape(graph, 1, (0, 8))


def test_open_channels_come_from_the_weights(tmp_path: Path) -> None:
    model = Model(("n", None, 8, 8))
    model.conv(model.node("Relu", ["input"], "r"), "y", 3, 2)
    assert resolve_input_shape(load(model.save(tmp_path / "m.onnx")), 1) == (1, 3, 8, 8)
    model = Model(("n", None, 8, 8))
    model.batch_norm("input", "y", 5)
    assert resolve_input_shape(load(model.save(tmp_path / "m.onnx")), 1) == (1, 5, 8, 8)
    model = Model(("n", None, 8, 8))
    model.node("Relu", ["input"], "y")
    with pytest.raises(ModelError, match="leaves its channels open"):
        resolve_input_shape(load(model.save(tmp_path / "m.onnx")), 1)


def test_matrices(tmp_path: Path) -> None:
    model = Model(("n", None))
    model.gemm("input", "y", 6, 5)
    graph = load(model.save(tmp_path / "m.onnx"))
    assert resolve_input_shape(graph, 4) == (4, 6)
    with pytest.raises(ModelError, match="has no image size; leave size out"):
        resolve_input_shape(graph, 4, 224)
