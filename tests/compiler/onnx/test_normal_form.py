"""normal_form.py: nodes in any order, domain "ai.onnx", open dimensions as -1; judged by onnxruntime on the file."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, helper

from tests.support.exported_files import FOLDER, sample
from tests.support.graph_reference import compute
from tests.support.onnx_models import (
    Model,
    onnxruntime_values,
    random_input,
    torch_vgg,
    vgg_features,
)
from vgg16gpu import Engine
from vgg16gpu.compiler.onnx.file import parse_onnx
from vgg16gpu.compiler.onnx.listing import list_nodes
from vgg16gpu.compiler.onnx.load import load
from vgg16gpu.compiler.onnx.names import resolve
from vgg16gpu.compiler.onnx.normal_form import normalise
from vgg16gpu.errors import ModelError
from vgg16gpu.runtime.session import Session


def in_order(proto: ModelProto, order: Sequence[int]) -> ModelProto:
    nodes = [proto.graph.node[index] for index in order]
    copies = onnx.GraphProto(node=nodes)
    del proto.graph.node[:]
    proto.graph.node.extend(copies.node)
    return proto


def written(proto: ModelProto, path: Path) -> Path:
    path.write_bytes(proto.SerializeToString())
    return path


def judge(path: Path, x: np.ndarray[Any, Any]) -> None:
    """The scores of the file are those of onnxruntime, which is given it as it stands."""
    graph = load(path)
    for name, expected in onnxruntime_values(path, x).items():
        np.testing.assert_allclose(compute(graph, {graph.input.name: x})[name], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["torch-legacy-view", "torch-dynamo-plain", "keras-tf2onnx", "torch-legacy-branches"])
@pytest.mark.parametrize("seed", [None, 0, 1])
def test_q5_nodes_in_any_order(name: str, seed: int | None, tmp_path: Path) -> None:
    path = FOLDER / f"{name}.onnx"
    proto = onnx.load(path)
    count = len(proto.graph.node)
    order = range(count)[::-1] if seed is None else np.random.default_rng(seed).permutation(count).tolist()
    judge(written(in_order(proto, order), tmp_path / "m.onnx"), sample(path, 1))


def test_q5_layers_are_counted_along_the_graph() -> None:
    """In a file that is turned round conv1_1 is the first convolution all the same."""
    model = Model((1, 3, 16, 16))
    vgg_features(model, (4, 4, "M", 6, 6, "M"))
    turned = in_order(model.proto(), range(len(model.nodes))[::-1])
    graph = parse_onnx(turned.SerializeToString()).model.graph
    assert resolve(graph, ["relu1_2", "conv2_1"]) == ("relu1", "conv3")


def relu(x: str, y: str) -> NodeProto:
    return helper.make_node("Relu", [x], [y], name=y)


def chain(nodes: Sequence[NodeProto]) -> ModelProto:
    inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 4])]
    outputs = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "graph", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def test_q5_a_cycle_is_refused_and_named() -> None:
    add = helper.make_node("Add", ["x", "c"], ["a"], name="a")
    proto = chain([relu("c", "y"), relu("b", "c"), relu("a", "b"), add])
    with pytest.raises(ModelError, match=r"reads 'b' before Relu 'b' computes it; .* the nodes form a cycle") as caught:
        load(parse_onnx(proto.SerializeToString()))
    assert len(str(caught.value).splitlines()) == 1  # of what stands behind it nothing is said


@pytest.mark.parametrize(
    "nodes",
    [
        [relu("a", "a"), relu("x", "y")],
        [relu("b", "a"), relu("a", "b"), relu("d", "c"), relu("c", "d"), relu("z", "y"), relu("x", "z")],
    ],
)
def test_q5_a_cycle_that_no_output_needs_is_left_out(nodes: list[NodeProto]) -> None:
    assert [op.y for op in load(parse_onnx(chain(nodes).SerializeToString())).ops][-1] == "y"


@pytest.mark.parametrize("kind", ["cycles", "reversed", "fan"])
def test_q5_sorting_takes_no_long_time(kind: str) -> None:
    count = 5_000
    if kind == "cycles":
        nodes = [relu(f"v{i}", f"v{i}") for i in range(count)]
    elif kind == "reversed":
        nodes = [relu(f"v{i + 1}", f"v{i}") for i in range(count)]
    else:
        nodes = [helper.make_node("Sum", [f"v{i}" for i in range(1, count)], ["v0"])]
        nodes += [relu("v0", f"v{i}") for i in range(1, count)]
    proto = chain(nodes)
    start = time.process_time()
    normalise(proto)
    assert time.process_time() - start < 1


@pytest.mark.parametrize("imports", [["ai.onnx"], ["", "ai.onnx"], [""]])
def test_q6_the_domain_of_nodes_may_be_spelled_out(imports: list[str], tmp_path: Path) -> None:
    proto = torch_vgg(norm=True).proto()
    del proto.opset_import[:]
    proto.opset_import.extend(helper.make_opsetid(domain, 17) for domain in imports)
    for node in proto.graph.node:
        node.domain = "ai.onnx"
    path = written(proto, tmp_path / "m.onnx")
    judge(path, random_input((2, 3, 8, 8)))
    assert [node.op for node in list_nodes(parse_onnx(path.read_bytes()))][:2] == ["Conv", "BatchNormalization"]


@pytest.mark.parametrize(
    ("dims", "shape"),
    [
        ([-1, 3, 8, 8], (None, 3, 8, 8)),
        ([-1, 3, -1, -1], (None, 3, None, None)),
        ([1, -1, 8, 8], (1, None, 8, 8)),
        ([1, 3, -1, 8], (1, 3, None, 8)),
    ],
)
def test_q7_a_dimension_of_minus_one_is_open(dims: list[int], shape: tuple[int | None, ...], tmp_path: Path) -> None:
    proto = torch_vgg().proto()
    for dim, number in zip(proto.graph.input[0].type.tensor_type.shape.dim, dims, strict=True):
        dim.Clear()
        dim.dim_value = number
    path = written(proto, tmp_path / "m.onnx")
    assert load(path).input.shape == shape
    x = random_input((1, 3, 8, 8))
    judge(path, x)
    with Session(path, "cpu") as session:
        assert session.inputs[0].shape == shape
        np.testing.assert_allclose(session.run({"input": x})[0], onnxruntime_values(path, x)["output"], 1e-4, 1e-5)
    if dims[0] == -1:
        with Engine(path, device="cpu", batch=2) as engine:
            assert engine.run(random_input((3, 3, 8, 8))).shape == (3, 5)


@pytest.mark.parametrize("dims", [[0, 3, 8, 8], [1, 3, 0, 8], [-5, 3, 8, 8]])
def test_q7_other_dimensions_say_what_to_do(dims: list[int], tmp_path: Path) -> None:
    proto = torch_vgg().proto()
    for dim, number in zip(proto.graph.input[0].type.tensor_type.shape.dim, dims, strict=True):
        dim.Clear()
        dim.dim_value = number
    with pytest.raises(ModelError, match=r"must be positive.*: export the model with numbers, or with -1 or a name"):
        load(written(proto, tmp_path / "m.onnx"))
