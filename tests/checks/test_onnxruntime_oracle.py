"""onnxruntime_oracle.py: the same scores with and without inner values, whatever the batch, and no copies."""

import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from vgg16gpu.checks.onnxruntime_oracle import Oracle
from vgg16gpu.errors import Error, ModelError

RNG = np.random.default_rng(6)
WEIGHT = RNG.standard_normal((8, 3, 3, 3)).astype(np.float32)


def conv_relu(path, batch=None, constant=False, external=False):
    """x -> Conv -> c -> Relu -> y; the weight large enough to stay in the file when it is mapped."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4), helper.make_node("Relu", ["c"], ["y"])]
    weight = numpy_helper.from_array(WEIGHT, "w")
    if constant:
        nodes.insert(0, helper.make_node("Constant", [], ["w"], value=weight))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch or "n", 3, 5, 5])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], [] if constant else [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, path, save_as_external_data=external, location="weights.bin", size_threshold=0)
    return path


def convolved(x):
    """The Conv of `conv_relu` in float64."""
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    return np.einsum("ncyxhw,ochw->noyx", windows, WEIGHT)


@pytest.mark.parametrize("form", [{}, {"constant": True}, {"external": True}, {"batch": 2}])
def test_scores_and_inner_values(tmp_path, form):
    path = conv_relu(tmp_path / "m.onnx", **form)
    x = RNG.standard_normal((3, 3, 5, 5)).astype(np.float32)
    expected = convolved(x)
    np.testing.assert_allclose(Oracle(path).scores(x), np.maximum(expected, 0), atol=1e-4)
    values = Oracle(path, ["c", "y"]).values(x, ["c", "y"])
    np.testing.assert_allclose(values["c"][:1], expected[:1], atol=1e-4)
    assert values["c"].min() < 0
    np.testing.assert_allclose(values["y"][:1], np.maximum(expected, 0)[:1], atol=1e-4)


def test_a_model_that_onnxruntime_refuses(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"nonsense")
    with pytest.raises(ModelError, match="onnxruntime refuses"):
        Oracle(tmp_path / "m.onnx")


def test_an_input_that_does_not_fit(tmp_path):
    with pytest.raises(ModelError, match="cannot run"):
        Oracle(conv_relu(tmp_path / "m.onnx")).scores(np.zeros((1, 4, 5, 5), np.float32))


def test_without_onnxruntime(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(Error, match="pip install onnxruntime"):
        Oracle(tmp_path / "m.onnx")
