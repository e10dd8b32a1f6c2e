"""Cut models are free of the size that their file names, unless something was computed from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.graph.input_size import fixed_size, open_shape, resolve_input_shape, size_note, takes_any_size
from vgg16gpu.compiler.graph.passes import IMAGE_PASSES, simplify
from vgg16gpu.compiler.model import Model
from vgg16gpu.compiler.onnx.free_size import with_free_size
from vgg16gpu.errors import ModelError


def model(shape: list[int | str], nodes: list[Any], outputs: list[str], **weights: Any) -> Model:
    arrays = [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph(nodes, "cut", [given], made, arrays)
    opsets = [helper.make_opsetid("", 17)]
    return Model(helper.make_model(graph, opset_imports=opsets, ir_version=8))


KERNEL = np.ones((4, 3, 3, 3), np.float32)
CONV = helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1])
GEMM = [helper.make_node("Flatten", ["a"], ["f"]), helper.make_node("Gemm", ["f", "v"], ["y"], transB=1)]


def vgg_like(*sides: int | str) -> Model:
    return model(["n", 3, *sides], [CONV, *GEMM], ["y"], w=KERNEL, v=np.ones((2, 4 * 60), np.float32))


def test_a_model_that_is_cut_before_what_needs_the_size_is_free() -> None:
    made = vgg_like(6, 10)
    cut = made.graph(outputs=["a"])
    assert cut.input.shape == (None, 3, 6, 10)
    assert cut.input.is_free
    assert open_shape(cut) == (None, 3, None, None)
    assert takes_any_size(cut)
    assert size_note(cut) == "open: height from 1 on, width from 1 on"
    assert resolve_input_shape(cut, 2) == (2, 3, 6, 10)  # its own, without another
    assert resolve_input_shape(cut, 2, (33, 7)) == (2, 3, 33, 7)


def test_a_gemm_behind_an_open_size_is_named() -> None:
    graph = model(["n", 3, "h", 10], [CONV, *GEMM], ["y"], w=KERNEL, v=np.ones((2, 4 * 40 * 10), np.float32)).graph()
    assert graph.input.is_open_in_size
    assert not takes_any_size(graph)
    assert size_note(graph).startswith("left open in the file, but Gemm 'y' takes 1600 numbers, which 40x10 gives")
    with pytest.raises(
        ModelError, match=r"size 41x10 .*; 40x10 would fit, or give outputs=\[\.\.\.\] that end before it"
    ):
        resolve_input_shape(graph, 1, (41, 10))


def test_what_was_computed_from_the_size_fixes_it() -> None:
    """Half of the height, as a number of the graph: with other heights it would be wrong, and nothing would say so."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "two"], ["h"], axis=0),
        helper.make_node("Cast", ["h"], ["d"], to=TensorProto.FLOAT),
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Div", ["c", "d"], ["a"]),
    ]
    graph = model(["n", 3, 6, 10], nodes, ["a"], w=KERNEL, two=np.int64(2)).graph(outputs=["a"])
    assert not graph.input.is_free
    assert "the file fixes 6x10" in fixed_size(graph)
    convolved = model(["n", 3, 6, 10], nodes, ["a"], w=KERNEL, two=np.int64(2)).graph(outputs=["c"])
    assert convolved.input.is_free


def test_a_constant_map_fixes_the_size() -> None:
    nodes = [CONV, helper.make_node("Add", ["a", "m"], ["y"])]
    graph = model(["n", 3, 6, 10], nodes, ["y"], w=KERNEL, m=np.ones((1, 4, 6, 10), np.float32)).graph(outputs=["y"])
    assert not graph.input.is_free
    assert "'y' takes what 6x10 gives; give outputs=[...] that end before it" in fixed_size(graph)


def test_rows_have_no_size() -> None:
    graph: Graph = model(["n", 5], [helper.make_node("Relu", ["x"], ["y"])], ["y"]).graph(outputs=["y"])
    assert not graph.input.is_open_in_size
    assert size_note(graph) == ""


@pytest.mark.parametrize("part", ["weight", "relu", None])
def test_a_graph_that_differs_where_the_size_is_open_is_not_free(part: str | None) -> None:
    """Whatever it is that a size was folded into."""
    made = vgg_like(6, 10)
    loaded = made.loaded(["a"])
    conv: Any = loaded.ops[0]
    changed = {"weight": {"weight": 2 * conv.weight}, "relu": {"relu": True}, None: {}}[part]
    other = replace(loaded, ops=(replace(conv, **changed),))
    simplified = simplify(other, passes=IMAGE_PASSES)
    assert with_free_size(simplified, made.file, other).input.is_free == (part is None)
