"""Sparse initializers and Constant nodes with sparse values: dense, as onnxruntime has them; hostile ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper

from tests.support.onnx_models import random_input, torch_vgg
from vgg16gpu import Engine
from vgg16gpu.checks.onnxruntime_session import open_session
from vgg16gpu.compiler.onnx.file import parse_onnx
from vgg16gpu.compiler.onnx.folding.budget import FoldError, FoldingBudget
from vgg16gpu.compiler.onnx.folding.sparse import dense
from vgg16gpu.compiler.onnx.load import load
from vgg16gpu.errors import ModelError
from vgg16gpu.runtime.session import Session


def sparse(array: npt.NDArray[Any], name: str, form: str = "flat") -> onnx.SparseTensorProto:
    """A tensor's numbers that are not zero and their places, in row-major order or by dimension."""
    places = np.flatnonzero(array)
    values = numpy_helper.from_array(array.reshape(-1)[places], name)
    indices = np.stack(np.unravel_index(places, array.shape), 1) if form == "coordinates" else places
    return helper.make_sparse_tensor(
        values, numpy_helper.from_array(indices.astype(np.int64), f"{name}/i"), array.shape
    )


def pruned(proto: ModelProto, form: str, *, as_nodes: bool) -> ModelProto:
    """Nine tenths of each weight set to zero, and stored sparse."""
    tensors = list(proto.graph.initializer)
    del proto.graph.initializer[:]
    for tensor in tensors:
        array = np.array(numpy_helper.to_array(tensor))
        if array.ndim < 2:
            proto.graph.initializer.append(tensor)
            continue
        array[np.random.default_rng(array.size).random(array.shape) < 0.5] = 0
        stored = sparse(array, tensor.name, form)
        if as_nodes:
            stored.values.name = ""
            proto.graph.node.insert(0, helper.make_node("Constant", [], [tensor.name], sparse_value=stored))
        else:
            proto.graph.sparse_initializer.append(stored)
    return proto


@pytest.mark.parametrize("form", ["flat", "coordinates"])
@pytest.mark.parametrize("as_nodes", [False, True])
def test_q9_sparse_weights(form: str, as_nodes: bool, tmp_path: Path) -> None:
    proto = pruned(torch_vgg(norm=True).proto(), form, as_nodes=as_nodes)
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    x = random_input((2, 3, 8, 8))
    (expected,) = open_session(path.read_bytes()).run(None, {"input": x})
    with Engine(path, device="cpu", batch=2) as engine:
        np.testing.assert_allclose(engine.run(x), expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    with Session(path, "cpu") as session:
        assert [value.name for value in session.inputs] == ["input"]
        np.testing.assert_allclose(session.run({"input": x})[0], expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("kind", [np.int64, np.float16, np.int8, np.float32])
@pytest.mark.parametrize("form", ["flat", "coordinates"])
def test_q9_sparse_tensors_of_any_kind(kind: Any, form: str) -> None:
    array = np.zeros((3, 4, 5), kind)
    array[[0, 2, 2], [3, 0, 1], [4, 2, 0]] = [1, -2, 3]
    found = dense(parse_onnx(torch_vgg().proto().SerializeToString()), sparse(array, "s", form), FoldingBudget())
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)
    empty = dense(
        parse_onnx(torch_vgg().proto().SerializeToString()), sparse(np.zeros_like(array), "s", form), FoldingBudget()
    )
    np.testing.assert_array_equal(empty, np.zeros_like(array))


@pytest.mark.parametrize(
    ("values", "indices", "dims", "message"),
    [
        ([1.0, 2.0], [0, 6], [2, 3], "indices outside of its dimensions"),
        ([1.0, 2.0], [-1, 2], [2, 3], "indices outside of its dimensions"),
        ([1.0], [[2, 0]], [2, 3], "indices outside of its dimensions"),
        ([1.0], [[0, -1]], [2, 3], "indices outside of its dimensions"),
        ([1.0, 2.0], [1, 1], [2, 3], "gives two values one place"),
        ([1.0, 2.0], [[0, 1], [0, 1]], [2, 3], "gives two values one place"),
        ([1.0, 2.0], [1], [2, 3], r"values of shape \(2,\) and int64 indices of shape \(1,\)"),
        ([1.0], [[0, 1, 2]], [2, 3], r"indices of shape \(1, 3\)"),
        ([1.0], [0], [1 << 40, 1 << 40], "takes too much memory"),
        ([1.0], [0], [1 << 29], "takes too much memory"),
        ([1.0], [0], [-3], "has the dimensions"),
        ([1.0], [0], [1] * 40, "has the dimensions"),
    ],
)
@pytest.mark.every_case
def test_q9_hostile_sparse_tensors(values: Any, indices: Any, dims: list[int], message: str) -> None:
    stored = helper.make_sparse_tensor(
        numpy_helper.from_array(np.float32(values), "s"), numpy_helper.from_array(np.int64(indices), "i"), [1]
    )
    stored.dims[:] = dims
    file = parse_onnx(torch_vgg().proto().SerializeToString())
    with pytest.raises(FoldError, match=message):
        dense(file, stored, FoldingBudget())
    proto = torch_vgg().proto()
    stored.values.name = proto.graph.initializer[0].name
    del proto.graph.initializer[0]
    proto.graph.sparse_initializer.append(stored)
    with pytest.raises(ModelError, match=message):
        load(parse_onnx(proto.SerializeToString()))
