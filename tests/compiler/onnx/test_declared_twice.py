"""A value that a file declares twice as an output is returned twice, as onnxruntime returns it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.support.onnx_models import Model, random_input, torch_vgg
from vgg16gpu import Engine
from vgg16gpu.checks.onnxruntime_session import open_session
from vgg16gpu.compiler.onnx.load import load
from vgg16gpu.errors import ModelError
from vgg16gpu.runtime.session import Session

X = random_input((3, 3, 8, 8))


def twice(tmp_path: Path, *outputs: str) -> Path:
    proto = torch_vgg().proto()
    declared = onnx.ValueInfoProto()
    declared.CopyFrom(proto.graph.output[0])
    del proto.graph.output[:]
    for name in outputs:
        declared.name = name
        proto.graph.output.append(declared)
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize(
    "outputs", [("output", "output"), ("output", "fc6.relu", "output"), ("conv0", "output", "conv0", "conv0")]
)
def test_q8_a_value_that_is_declared_twice(outputs: tuple[str, ...], precision: str, tmp_path: Path) -> None:
    path = twice(tmp_path, *outputs)
    expected = open_session(path.read_bytes()).run(None, {"input": X})
    assert len(expected) == len(outputs)
    tolerance = {"fp32": 1e-5, "fp16": 5e-3, "bf16": 5e-2}[precision]
    with Engine(path, device="cpu", batch=3, precision=precision) as engine:
        found = engine.run(X)
    assert len(found) == len(outputs)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * np.abs(theirs).max())
    if precision == "fp32":
        with Session(path, "cpu") as session:
            for ours, theirs in zip(session.run({"input": X}), expected, strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())


def test_q8_a_constant_that_is_declared_twice(tmp_path: Path) -> None:
    model = Model((1, 4))
    model.node("Shape", ["input"], "dims")
    path = model.save(tmp_path / "m.onnx", ["dims", "dims"])
    proto = onnx.load(path)
    for output in proto.graph.output:
        output.type.tensor_type.elem_type = onnx.TensorProto.INT64
    path.write_bytes(proto.SerializeToString())
    with Session(path, "cpu") as session:
        assert [y.tolist() for y in session.run({"input": random_input((1, 4))})] == [[1, 4], [1, 4]]


def test_who_asks_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="output 'output' is asked for twice"):
        load(twice(tmp_path, "output"), ["output", "output"])
