"""onnx_inline: local functions are written out, and those that would not end are refused."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import FunctionProto, NodeProto, TensorProto, helper

from tests.support.graph_reference import compute
from tests.support.onnx_models import onnxruntime_values, random_input
from vgg16gpu.compiler.graph.ops import Conv, Relu
from vgg16gpu.compiler.onnx.file import parse_onnx
from vgg16gpu.compiler.onnx.inline import MAX_BYTES, MAX_DEPTH
from vgg16gpu.compiler.onnx.load import load
from vgg16gpu.errors import ModelError

OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]


def function(name: str, nodes: Sequence[NodeProto], inputs: Sequence[str] = ("x",)) -> FunctionProto:
    return helper.make_function("local", name, inputs, ["y"], nodes, OPSETS)


def call(name: str, x: str, y: str) -> NodeProto:
    return helper.make_node(name, [x], [y], domain="local")


def model(nodes: Sequence[NodeProto], functions: Sequence[FunctionProto], weight: bool = False) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 8])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    weights = [onnx.numpy_helper.from_array(random_input((4, 3, 3, 3)), "w")] if weight else []
    graph = helper.make_graph(nodes, "graph", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=OPSETS, ir_version=10, functions=functions)


def chain(depth: int, calls: int = 1) -> list[FunctionProto]:
    """Functions f0, f1, ..., each of which calls the one before."""
    made = [function("f0", [helper.make_node("Relu", ["x"], ["y"])])]
    for index in range(1, depth):
        names = ["x", *(f"v{step}" for step in range(calls - 1)), "y"]
        nodes = [call(f"f{index - 1}", x, y) for x, y in itertools.pairwise(names)]
        made.append(function(f"f{index}", nodes))
    return made


def test_a_function_inside_a_function(tmp_path: Path) -> None:
    inner = function("Act", [helper.make_node("Relu", ["x"], ["y"])])
    convolve = helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3])
    outer = function("Block", [convolve, call("Act", "c", "y")], ["x", "w"])
    proto = model([helper.make_node("Block", ["x", "w"], ["y"], domain="local")], [inner, outer], weight=True)
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    graph = load(path)
    assert [type(op) for op in graph.ops] == [Conv, Relu]
    conv = graph.ops[0]
    assert isinstance(conv, Conv)
    assert not conv.weight.flags.owndata  # still a view of the file
    x = random_input((2, 3, 8, 8))
    expected = onnxruntime_values(path, x)["y"]
    np.testing.assert_allclose(compute(graph, {"x": x})["y"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("nodes", "functions", "message"),
    [
        ([call(f"f{MAX_DEPTH}", "x", "y")], chain(MAX_DEPTH + 1), "nested more than 32 deep"),
        (
            [call("f20", "x", "z"), call(f"f{MAX_DEPTH}", "z", "y")],
            chain(MAX_DEPTH + 1),
            "nested more than 32 deep",
        ),
        ([call("me", "x", "y")], [function("me", [call("me", "x", "y")])], "function 'me' calls itself"),
        (
            [call("a", "x", "y")],
            [function("a", [call("b", "x", "y")]), function("b", [call("a", "x", "y")])],
            "calls itself",
        ),
        ([call("f15", "x", "y")], chain(16, calls=2), r"has 32768 nodes of .* at most 20000 of"),
        ([call("f20", "x", "y")], chain(21, calls=2), r"has 1048576 nodes of .* once its functions are written out"),
    ],
)
@pytest.mark.every_case
def test_functions_that_are_refused(nodes: list[NodeProto], functions: list[FunctionProto], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load(parse_onnx(model(nodes, functions).SerializeToString()))


def test_many_bytes_are_refused() -> None:
    large = helper.make_node("Transpose", ["x"], ["y"], perm=[0] * 20_000)
    names = ["x", *(f"v{index}" for index in range(MAX_BYTES // 20_000)), "y"]
    calls = [call("large", a, b) for a, b in itertools.pairwise(names)]
    with pytest.raises(ModelError, match="bytes once its functions are written out"):
        load(parse_onnx(model(calls, [function("large", [large])]).SerializeToString()))
