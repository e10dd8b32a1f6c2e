"""Models of one node, and what onnxruntime says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.support.graph_reference import compute
from tests.support.onnx_models import Model, random_input
from vgg16gpu.checks.onnxruntime_session import open_session
from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.graph.input_size import resolve_input_shape
from vgg16gpu.compiler.graph.ops import Op
from vgg16gpu.compiler.onnx.file import parse_onnx
from vgg16gpu.compiler.onnx.load import Loaded, load, load_model
from vgg16gpu.errors import ModelError

MAP = ("n", 4, 9, 7)
FIXED = (2, 4, 9, 7)
MATRIX = ("n", 6)
OPEN_SIZE = ("n", 4, "h", "w")

Shaped = Sequence[int | str | None]


def weights(*shape: int) -> Any:
    return random_input(shape, seed=len(shape))


def ints(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


def norm_parameters(channels: int = 4) -> list[Any]:
    """Scale, shift, mean and variance."""
    return [random_input((channels,), seed) for seed in range(3)] + [np.abs(random_input((channels,), 3)) + 0.5]


def single(path: Path, op: str, shape: Shaped, constants: Sequence[Any], **options: Any) -> Path:
    """A model of one node; constants are its operands after the input, None where one is left out."""
    opset, outputs = options.pop("opset", 17), options.pop("outputs", "y")
    model = Model(shape)
    names = [
        "" if value is None else model.constant(f"c{index}", np.asarray(value)) for index, value in enumerate(constants)
    ]
    model.node(op, ["input", *names], outputs, name="it", **options)
    return model.save(path / "m.onnx", opset=opset)


def run_onnxruntime(source: Path | bytes, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Outputs by name, without optimisations."""
    content = source if isinstance(source, bytes) else source.read_bytes()
    session = open_session(content, optimise=False, quiet=True)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def accept(path: Path, batch: int = 2) -> Op:
    """Load, compare with onnxruntime, return the last op."""
    graph = load(path)
    x = random_input(resolve_input_shape(graph, graph.input.shape[0] or batch))
    compare(run_onnxruntime(path, {graph.input.name: x}), compute(graph, {graph.input.name: x}))
    return graph.ops[-1]


def compare(expected: Mapping[str, Any], got: Mapping[str, Any]) -> None:
    """All expected values, shapes too."""
    for name, value in expected.items():
        assert np.shape(got[name]) == np.shape(value), name
        np.testing.assert_allclose(got[name], value, rtol=1e-4, atol=1e-5)


def refuse(path: Path, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        load(path)
    assert message in str(caught.value)
    assert "'it' (opset" in str(caught.value)


def run_time(op: str, operands: Mapping[str, Any], outputs: str | Sequence[str] = "y", **options: Any) -> bytes:
    """A model of one node all of whose operands are run-time inputs."""
    opset = options.pop("opset", 17)
    names = ["" if value is None else name for name, value in operands.items()]
    results = [outputs] if isinstance(outputs, str) else list(outputs)
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in operands.items()
        if value is not None
    ]
    declared = [onnx.ValueInfoProto(name=name) for name in results]  # onnxruntime infers the rest
    node = helper.make_node(op, names, results, "it", **options)
    graph = helper.make_graph([node], "graph", inputs, declared)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    content: bytes = model.SerializeToString()
    return content


def load_run_time(content: bytes, operands: Mapping[str, Any]) -> Loaded:
    """The model for operands like these: floats stay inputs, all else is bound."""
    arrays = {name: value for name, value in operands.items() if value is not None}
    floats = {name: value.shape for name, value in arrays.items() if value.dtype.kind == "f"}
    bound = {name: value for name, value in arrays.items() if name not in floats}
    return load_model(parse_onnx(content), bound=bound, shapes=floats)


def accept_run_time(op: str, operands: Mapping[str, Any], **options: Any) -> Graph:
    """One node on run-time inputs alone, against onnxruntime; returns its graph."""
    content = run_time(op, operands, **options)
    loaded = load_run_time(content, operands)
    assert loaded.graph is not None
    given = {name: value for name, value in operands.items() if value is not None}
    got = compute(loaded.graph, {value.name: operands[value.name] for value in loaded.graph.inputs})
    compare(run_onnxruntime(content, given), {**got, **loaded.constants})
    return loaded.graph
