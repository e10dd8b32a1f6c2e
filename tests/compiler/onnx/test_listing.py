"""onnx_nodes: the nodes of a file as they stand there, of models that no engine takes, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import AttributeProto, helper, numpy_helper

from tests.support.onnx_models import Model
from vgg16gpu.compiler.onnx.file import open_onnx
from vgg16gpu.compiler.onnx.listing import ListedNode, Operand, list_nodes


def listed(model: Model, tmp_path: Path, **options: Any) -> tuple[ListedNode, ...]:
    return list_nodes(open_onnx(model.save(tmp_path / "m.onnx", **options)))


def test_every_kind_of_attribute(tmp_path: Path) -> None:
    model = Model()
    branch = helper.make_graph([helper.make_node("Relu", ["input"], ["r"])], "g", [], [])
    values = {
        "a_float": 0.1,
        "an_int": -3,
        "a_text": "SAME_UPPER",
        "a_tensor": numpy_helper.from_array(np.zeros((2, 3), np.float64)),
        "a_graph": branch,
        "floats": [0.5, 1e-5],
        "ints": [1, 2],
        "texts": ["a", "b"],
    }
    model.node("Anything", ["input"], "y", domain="some.where", **values)
    (node,) = listed(model, tmp_path)
    assert node.op == "some.where.Anything"
    assert node.attributes == {
        **values,
        "a_tensor": "float64 2x3",
        "a_graph": "a graph of 1 nodes",
    }
    assert [operand.role for operand in (*node.inputs, *node.outputs)] == ["0", "0"]


def test_an_attribute_of_a_type_unknown_here(tmp_path: Path) -> None:
    model = Model()
    model.node("Relu", ["input"], "y")
    model.nodes[-1].attribute.append(AttributeProto(name="t", type=AttributeProto.TYPE_PROTO))
    (node,) = listed(model, tmp_path)
    assert node.attributes == {"t": f"a value of another type, number {int(AttributeProto.TYPE_PROTO)}"}


@pytest.mark.parametrize("opset", [0, 2**40])
def test_an_opset_that_onnx_does_not_know_leaves_numbers(opset: int, tmp_path: Path) -> None:
    model = Model()
    model.node("Relu", ["input"], "y")
    proto = model.proto()
    proto.opset_import[0].version = opset
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    (node,) = list_nodes(open_onnx(tmp_path / "m.onnx"))
    assert node.inputs == (Operand("0", "input"),)
