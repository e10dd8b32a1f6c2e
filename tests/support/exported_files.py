"""Files of tests/fixtures/exported, made by real exporters, and what onnxruntime says of such files."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

from vgg16gpu.checks.onnxruntime_session import open_session

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "exported"
MODULES: dict[str, dict[str, list[float]]] = json.loads((FOLDER / "modules.json").read_text())
NAMES = sorted(path.name for path in FOLDER.glob("*.onnx"))
REFUSED = ("quantised-operators.onnx", "torch-dynamo-training.onnx", "torch-legacy-training.onnx")
ACCEPTED = [name for name in NAMES if name not in REFUSED]
HALVES = [name for name in ACCEPTED if "half" in name]
QUANTISED = [name for name in ACCEPTED if name.startswith("quantised")]


def sample(path: Path, batch: int) -> npt.NDArray[np.float32]:
    """Return standard normal numbers in float16's precision, in the shape of the file's first input."""
    dims = onnx.load(path, load_external_data=False).graph.input[0].type.tensor_type.shape.dim
    numbers = np.random.default_rng(0).standard_normal((batch, *(dim.dim_value for dim in dims[1:])))
    return numbers.astype(np.float16).astype(np.float32)


def answers(model: ModelProto | Path, x: npt.NDArray[Any]) -> list[npt.NDArray[np.float32]]:
    """Return onnxruntime's outputs as float32; `x` takes the type of the model's input."""
    source = model if isinstance(model, Path) else model.SerializeToString()
    session = open_session(source, threads=1, optimise=False, quiet=True)
    (declared,) = session.get_inputs()
    x = x.astype(np.float16 if declared.type == "tensor(float16)" else np.float32)
    return [np.asarray(y, np.float32) for y in session.run(None, {declared.name: x})]


def in_float32(proto: ModelProto) -> ModelProto:
    """Return a float16 model with its numbers, and so its sums, in float32."""
    proto, half, whole = copy.deepcopy(proto), TensorProto.FLOAT16, TensorProto.FLOAT
    attributes = [attribute for node in proto.graph.node for attribute in node.attribute]
    for tensor in [*proto.graph.initializer, *(attribute.t for attribute in attributes if attribute.HasField("t"))]:
        if tensor.data_type == half:
            values = numpy_helper.to_array(tensor).astype(helper.tensor_dtype_to_np_dtype(whole))
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    for value in [*proto.graph.input, *proto.graph.output, *proto.graph.value_info]:
        if value.type.tensor_type.elem_type == half:
            value.type.tensor_type.elem_type = whole
    for node in proto.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == half:
                attribute.i = whole
    return proto
