"""loader: several inputs, inputs and outputs that are constants, and graphs of other exporters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.compiler.onnx.test_load import refusal
from tests.support.graph_reference import compute
from tests.support.onnx_models import (
    Model,
    onnxruntime_values,
    random_input,
)
from vgg16gpu.compiler.onnx.file import OnnxFile, parse_onnx
from vgg16gpu.compiler.onnx.load import load, load_model
from vgg16gpu.errors import ModelError

# Several inputs, and inputs that are constants


def sum_of(*kinds: tuple[str, int, Any]) -> OnnxFile:
    """A model that adds its inputs, each (name, element type, shape)."""
    inputs = [helper.make_tensor_value_info(*kind) for kind in kinds]
    node = helper.make_node("Sum", [name for name, _, _ in kinds], ["y"], "it")
    graph = helper.make_graph([node], "graph", inputs, [onnx.ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", 17)]
    return parse_onnx(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def test_given_shapes_take_the_place_of_declared_ones() -> None:
    file = sum_of(("a", FLOAT, None), ("b", TensorProto.UNDEFINED, ["n", 3]))
    with pytest.raises(ModelError, match=r"has 2 run-time inputs \('a', 'b'\); exactly one is supported, or several"):
        load(file)
    with pytest.raises(ModelError, match="has 2 run-time inputs"):
        load(file, shapes={"a": (3,)})
    graph = load(file, shapes={"a": (4, 2, 3), "b": (2, 3)})
    assert [value.shape for value in graph.inputs] == [(4, 2, 3), (2, 3)]


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"a": (2, 0)}, r"input 'a' has shape \(2, 0\); all dimensions must be positive"),
        ({"a": (1,) * 9}, "input 'a' has 9 dimensions; at most 8"),
        ({"c": (2,)}, "has no run-time input 'c'; its inputs are 'a'"),
    ],
)
def test_shapes_that_are_refused(shapes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load(sum_of(("a", FLOAT, ["n", 2])), shapes=shapes)


def test_bound_inputs_are_constants() -> None:
    file = sum_of(("a", FLOAT, [2, 3]), ("b", FLOAT, [3]))
    graph = load(file, bound={"b": np.ones(3, np.float16)})
    assert [value.name for value in graph.inputs] == ["a"]
    assert graph.constants["b"].dtype == np.float32
    with pytest.raises(ModelError, match="has no run-time input 'c'; its inputs are 'a', 'b'"):
        load(file, bound={"c": np.ones(3, np.float32)})
    with pytest.raises(ModelError, match="output 'b' is the model's input"):
        load(file, ["b"], bound={"b": np.ones(3, np.float32)})


def test_inputs_of_whole_numbers_must_be_bound() -> None:
    file = sum_of(("a", FLOAT, [2, 3]), ("b", INT64, [3]))
    with pytest.raises(ModelError, match="input 'b' has element type INT64"):
        load(file)
    with pytest.raises(ModelError, match="its operand has element type int64"):
        load(file, bound={"b": np.ones(3, np.int64)})


def test_a_value_that_stands_for_open_dimensions_is_refused(tmp_path: Path) -> None:
    model = Model()
    model.node("Reshape", ["input", model.constant("shape", np.array([-(1 << 62), -1]))], "y")
    assert "a constant that it reads is out of range" in refusal(model.save(tmp_path / "m.onnx"))


# Constants as outputs


def test_outputs_that_are_constants(tmp_path: Path) -> None:
    model = Model((2, 3, 8, 8))
    model.node("Relu", ["input"], "y")
    model.node("Shape", ["y"], "dims")
    model.node("Constant", [], "one", value_float=1.0)
    model.constant("weight", np.float32([3]))
    path = model.save(tmp_path / "m.onnx")
    loaded = load_model(path, ["one", "y", "dims", "weight"])
    assert loaded.outputs == ("one", "y", "dims", "weight")
    assert loaded.graph is not None
    assert loaded.graph.outputs == ("y",)
    assert {name: array.tolist() for name, array in loaded.constants.items()} == {
        "one": 1.0,
        "dims": [2, 3, 8, 8],
        "weight": [3.0],
    }
    loaded = load_model(path, ["dims"])
    assert loaded.graph is None
    with pytest.raises(ModelError, match="output 'dims' is a constant"):
        load(path, ["dims"])


def test_a_constant_that_depends_on_the_batch_is_refused(tmp_path: Path) -> None:
    model = Model()
    model.node("Shape", ["input"], "y")
    with pytest.raises(ModelError, match="output 'y' depends on a dimension that is open; export with fixed sizes"):
        load_model(model.save(tmp_path / "m.onnx"))


# Forms in the wild


def test_cntk_mnist(tmp_path: Path) -> None:
    model = Model((1, 1, 28, 28))
    x = model.node("Conv", ["input", model.weight("w", 8, 1, 5, 5)], "conv", auto_pad="SAME_UPPER", strides=[1, 1])
    x = model.node("Relu", [model.node("Add", [x, model.weight("b", 8, 1, 1)], "plus")], "relu")
    x = model.node("MaxPool", [x], "pool", kernel_shape=[2, 2], strides=[2, 2], auto_pad="NOTSET", pads=[0] * 4)
    x = model.node("Reshape", [x, model.constant("rows", np.array([1, 1568]))], "flat")
    weight = model.node("Reshape", [model.weight("w2", 8, 14, 14, 10), model.constant("s", np.array([1568, 10]))], "w3")
    x = model.node("MatMul", [x, weight], "times")
    model.node("Add", [x, model.weight("b2", 1, 10)], "y")
    path = model.save(tmp_path / "m.onnx", opset=8, ir_version=3)
    graph = load(path)
    assert [type(op).__name__ for op in graph.ops] == [
        *["Conv", "Arithmetic", "Relu", "Pool", "Flatten", "Gemm", "Arithmetic"]
    ]
    x_values = random_input((1, 1, 28, 28))
    expected = onnxruntime_values(path, x_values)["y"]
    np.testing.assert_allclose(compute(graph, {"input": x_values})["y"], expected, rtol=1e-4, atol=1e-5)
