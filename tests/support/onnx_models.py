"""Small ONNX models in the spellings that exporters use, built with onnx.helper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from vgg16gpu.checks.onnxruntime_session import open_session

DEFAULT_OPSET = 17
FORMS = Path(__file__).resolve().parents[1] / "fixtures" / "forms"
IR_VERSION = 10  # the newest that all supported onnxruntime releases read


@dataclass
class Model:
    """An ONNX model in the making: seeded weights, one run-time input."""

    input_shape: Sequence[int | str | None] = ("n", 3, 8, 8)
    input_name: str = "input"
    input_type: int = TensorProto.FLOAT
    seed: int = 0
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    def weight(self, name: str, *shape: int, low: float = -1.0, high: float = 1.0) -> str:
        """A float32 initializer, scaled so that activations keep their size."""
        fan_in = int(np.prod(shape[1:]))
        values = self.random.uniform(low, high, shape) * (2 / fan_in**0.5 if len(shape) > 1 else 1)
        return self.constant(name, values.astype(np.float32))

    def constant(self, name: str, values: npt.ArrayLike) -> str:
        """Any initializer."""
        self.weights.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def node(self, op: str, inputs: Sequence[str], outputs: str | Sequence[str], name: str = "", **values: Any) -> str:
        """Append a node; returns its first output."""
        names = [outputs] if isinstance(outputs, str) else list(outputs)
        self.nodes.append(helper.make_node(op, inputs, names, name or f"/{names[0]}", **values))
        return names[0]

    def conv(self, x: str, y: str, channels: int, filters: int, kernel: int = 3, **values: Any) -> str:
        """A padded convolution as torch writes it."""
        weights = [self.weight(f"{y}.weight", filters, channels, kernel, kernel), self.weight(f"{y}.bias", filters)]
        values = {"kernel_shape": [kernel, kernel], "pads": [kernel // 2] * 4, "strides": [1, 1], **values}
        return self.node("Conv", [x, *weights], y, **values)

    def batch_norm(self, x: str, y: str, channels: int, **values: Any) -> str:
        """BatchNormalization at inference, far from the identity."""
        names = [self.weight(f"{y}.{part}", channels) for part in ("weight", "bias", "mean")]
        variance = self.weight(f"{y}.var", channels, low=0.5, high=2.0)
        return self.node("BatchNormalization", [x, *names, variance], y, **values)

    def gemm(self, x: str, y: str, features: int, outputs: int, **values: Any) -> str:
        """A fully connected layer as torch writes it."""
        weights = [self.weight(f"{y}.weight", outputs, features), self.weight(f"{y}.bias", outputs)]
        return self.node("Gemm", [x, *weights], y, **{"alpha": 1.0, "beta": 1.0, "transB": 1, **values})

    def proto(
        self,
        outputs: Sequence[str] | None = None,
        *,
        opset: int = DEFAULT_OPSET,
        ir_version: int = IR_VERSION,
        weights_as_inputs: bool = False,
    ) -> onnx.ModelProto:
        """The finished model; without `outputs` the last node's first output."""
        inputs = [helper.make_tensor_value_info(self.input_name, self.input_type, self.input_shape)]
        if weights_as_inputs:
            inputs += [helper.make_tensor_value_info(w.name, w.data_type, list(w.dims)) for w in self.weights]
        names = outputs or [self.nodes[-1].output[0]]
        results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]
        graph = helper.make_graph(self.nodes, "graph", inputs, results, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)

    def save(self, path: Path, outputs: Sequence[str] | None = None, **options: Any) -> Path:
        """Write the finished model."""
        path.write_bytes(self.proto(outputs, **options).SerializeToString())
        return path


def vgg_features(
    model: Model, layers: Sequence[int | str], *, norm: bool = False, channels: int = 3
) -> tuple[str, int]:
    """The convolutional part; numbers are filters, "M" is a 2x2 max-pool. Returns its value and channels."""
    x = model.input_name
    for index, layer in enumerate(layers):
        if isinstance(layer, str):
            x = model.node("MaxPool", [x], f"pool{index}", kernel_shape=[2, 2], strides=[2, 2])
            continue
        x = model.conv(x, f"conv{index}", channels, layer)
        x = model.batch_norm(x, f"norm{index}", layer) if norm else x
        x, channels = model.node("Relu", [x], f"relu{index}"), layer
    return x, channels


def torch_vgg(
    layers: Sequence[int | str] = (4, "M", 6, 5, "M"),
    size: int = 8,
    *,
    batch: int | str = "n",
    norm: bool = False,
    hidden: int = 7,
    classes: int = 5,
) -> Model:
    """What torch's exporter makes of a VGG: AveragePool k1, Flatten, Gemm with transB."""
    model = Model(("n" if batch == "n" else batch, 3, size, size))
    x, channels = vgg_features(model, layers, norm=norm)
    x = model.node("AveragePool", [x], "avgpool", kernel_shape=[1, 1], strides=[1, 1])
    x = model.node("Flatten", [x], "flatten", axis=1)
    _classifier(model, x, channels * (size >> layers.count("M")) ** 2, hidden, classes)
    return model


def _classifier(model: Model, x: str, features: int, hidden: int, classes: int) -> None:
    x = model.node("Relu", [model.gemm(x, "fc6", features, hidden)], "fc6.relu")
    x = model.node("Relu", [model.gemm(x, "fc7", hidden, hidden)], "fc7.relu")
    model.gemm(x, "output", hidden, classes)


def inner_values(model: Model) -> list[str]:
    """Names of all run-time values that the model computes, in order."""
    known = {weight.name for weight in model.weights}
    values = []
    for node in model.nodes:
        if known.issuperset(node.input) or node.op_type == "Shape":
            known.update(node.output)
        else:
            values.append(node.output[0])
    return values


def onnxruntime_values(path: Path, x: npt.NDArray[Any], names: Sequence[str] | None = None) -> dict[str, Any]:
    """What onnxruntime computes, without its optimisations, for the named values (by default the outputs)."""
    proto = onnx.load(path)
    if names is not None:
        del proto.graph.output[:]
        proto.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names)
    session = open_session(proto.SerializeToString(), threads=1, optimise=False)
    outputs = [output.name for output in session.get_outputs()]
    weights = {weight.name for weight in proto.graph.initializer}
    inputs = [value.name for value in proto.graph.input if value.name not in weights]
    return dict(zip(outputs, session.run(outputs, {inputs[0]: x}), strict=True))


def random_input(shape: Sequence[int], seed: int = 0) -> npt.NDArray[np.float32]:
    """Standard normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
