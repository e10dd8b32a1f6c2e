"""LeNet-5 with ReLU and max-pools: its layers, its forward pass around any convolution, and its ONNX file.

    (N, 1, S, S) - conv1 1->6 5x5, padding 2 - pool - conv2 6->16 5x5 - pool - fc1 120 - fc2 84 - fc3 10 scores

Source: Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, "Gradient-based learning applied to document recognition" (1998);
conv1 is padded, so that images of 28x28 give the 5x5 maps in front of fc1 that theirs of 32x32 give.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from onnx import GraphProto, TensorProto, helper

from vgg16gpu.compiler.onnx.file import open_onnx
from vgg16gpu.compiler.onnx.metadata import LABELS_KEY, MEAN_KEY, STD_KEY
from vgg16gpu.errors import InputError
from vgg16gpu.io.foreign.documents import parse_json
from vgg16gpu.zoo.model_writer import ModelWriter
from vgg16gpu_lab.problem import Array, Array64, Problem

Floats: TypeAlias = npt.NDArray[np.floating[Any]]
Convolve: TypeAlias = Callable[[str, Floats], Floats]  # (layer's name, x) -> y, bias included

CONVOLUTIONS: Final = ("conv1", "conv2")
FULLY_CONNECTED: Final = ("fc1", "fc2", "fc3")
SMALLEST_IMAGE: Final = 12  # pixels a side: one pixel is left in front of fc1

_KERNEL, _PADDING = 5, {"conv1": 2, "conv2": 0}
_CHANNELS = {"conv1": (1, 6), "conv2": (6, 16)}
_CLASSES = 10


@dataclass(frozen=True)
class Shape:
    """The net for square images. Raises InputError for images that nothing is left of."""

    image: int = 28

    def __post_init__(self) -> None:
        if self.image < SMALLEST_IMAGE:
            raise InputError(f"LeNet takes images of {SMALLEST_IMAGE}x{SMALLEST_IMAGE} and larger, not {self.image}")

    def convolution(self, layer: str, batch: int, *, bias: bool = False) -> Problem:
        """Return conv1 or conv2 for a batch, with its bias or without."""
        channels, outputs = _CHANNELS[layer]
        side = self.image if layer == "conv1" else self.image // 2
        return Problem(batch, channels, side, side, outputs, _KERNEL, padding=_PADDING[layer], bias=bias)

    @property
    def features(self) -> int:
        """Numbers that go into fc1."""
        last = self.convolution("conv2", 1)
        return last.outputs * (last.out_height // 2) * (last.out_width // 2)

    @property
    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Shape of each weight and bias, by name, in order."""
        weights: dict[str, tuple[int, ...]] = {}
        weights |= {layer: self.convolution(layer, 1).weight_shape for layer in CONVOLUTIONS}
        sizes = (self.features, 120, 84, _CLASSES)
        weights |= {layer: (sizes[i + 1], sizes[i]) for i, layer in enumerate(FULLY_CONNECTED)}
        found: dict[str, tuple[int, ...]] = {}
        for layer, shape in weights.items():
            found |= {f"{layer}.weight": shape, f"{layer}.bias": shape[:1]}
        return found


@dataclass(frozen=True, eq=False)
class LeNet:
    """A trained net; its input is (pixel / 255 - mean) / std."""

    shape: Shape
    parameters: Mapping[str, Array]
    mean: float
    std: float

    def scores(self, x: Floats, convolve: Convolve) -> Floats:
        """Compute (N, 10) from (N, 1, S, S), in the precision of x; everything but the convolutions in numpy."""
        for layer in CONVOLUTIONS:
            x = self.after_convolution(convolve(layer, x))
        return self.classify(x)

    def expected(self, x: Floats) -> Array64:
        """Compute the scores in float64."""
        return self.scores(x.astype(np.float64), self.exact).astype(np.float64, copy=False)

    def exact(self, layer: str, x: Floats) -> Array64:
        """Compute a convolution in float64, with its bias."""
        return self.shape.convolution(layer, len(x), bias=True).expected(x, *self.filters(layer))

    def filters(self, layer: str) -> tuple[Array, Array]:
        """Return (weight, bias) of a convolution."""
        return self.parameters[f"{layer}.weight"], self.parameters[f"{layer}.bias"]

    def after_convolution(self, y: Floats) -> Floats:
        """Apply the maximum of 2x2, then ReLU: both orders agree, and this one leaves ReLU a quarter of the work."""
        positive: Floats = np.maximum(pooled(y), 0)
        return positive

    def classify(self, x: Floats) -> Floats:
        """Apply the fully connected layers."""
        y: Floats = np.reshape(x, (len(x), -1))
        for layer in FULLY_CONNECTED:
            y = y @ self.parameters[f"{layer}.weight"].T + self.parameters[f"{layer}.bias"]
            y = y if layer == FULLY_CONNECTED[-1] else np.maximum(y, 0)
        return y

    def write(self, path: Path, classes: Sequence[str] = ()) -> None:
        """Write the net as ONNX, any batch, with what `infer` needs to feed it."""
        metadata = {MEAN_KEY: json.dumps([self.mean]), STD_KEY: json.dumps([self.std])}
        metadata |= {LABELS_KEY: json.dumps(classes)} if classes else {}
        writer = ModelWriter(_graph(self.shape), self.shape.parameters, metadata)
        with path.open("wb") as stream:
            writer.open(stream)
            for name in self.shape.parameters:
                writer.begin(name)
                writer.values(self.parameters[name])
            writer.finish()


def read_lenet(path: Path) -> LeNet:
    """Read what `write` wrote. Raises ModelError for a file that is not an ONNX model."""
    file = open_onnx(path)
    parameters = {tensor.name: np.array(file.array(tensor)) for tensor in file.model.graph.initializer}
    metadata = {entry.key: parse_json(entry.value, entry.key) for entry in file.model.metadata_props}
    image = file.model.graph.input[0].type.tensor_type.shape.dim[2].dim_value
    return LeNet(Shape(image), parameters, metadata[MEAN_KEY][0], metadata[STD_KEY][0])


def pooled(y: Floats) -> Floats:
    """Return the maximum of 2x2; an odd last row or column is dropped."""
    rows, columns = y.shape[2] // 2 * 2, y.shape[3] // 2 * 2
    y = y[:, :, :rows, :columns]
    across = np.maximum(y[:, :, :, ::2], y[:, :, :, 1::2])
    return np.maximum(across[:, :, ::2], across[:, :, 1::2])


def columns_of(x: Floats, problem: Problem) -> Floats:
    """Compute im2col on the host: (N, C * K * K, rows * columns) of the output, a copy."""
    k, s, p = problem.kernel, problem.stride, problem.padding
    padded = np.pad(x, ((0, 0), (0, 0), (p, p), (p, p)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (k, k), (2, 3))[:, :, ::s, ::s]
    return windows.transpose(0, 1, 4, 5, 2, 3).reshape(len(x), problem.taps, -1)


def _graph(shape: Shape) -> GraphProto:
    nodes, value = [], "input"

    def add(kind: str, name: str, *more: str, **attributes: Any) -> None:
        nonlocal value
        nodes.append(helper.make_node(kind, [value, *more], [name], name, **attributes))
        value = name

    for layer in CONVOLUTIONS:
        padding = [_PADDING[layer]] * 4
        parameters = f"{layer}.weight", f"{layer}.bias"
        add("Conv", layer, *parameters, kernel_shape=[_KERNEL] * 2, pads=padding, strides=[1, 1])
        add("Relu", f"{layer}.relu")
        add("MaxPool", f"{layer}.pool", kernel_shape=[2, 2], strides=[2, 2])
    add("Flatten", "flatten", axis=1)
    for layer in FULLY_CONNECTED:
        add("Gemm", layer, f"{layer}.weight", f"{layer}.bias", alpha=1.0, beta=1.0, transB=1)
        if layer != FULLY_CONNECTED[-1]:
            add("Relu", f"{layer}.relu")
    nodes[-1].output[0] = "output"
    x = helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 1, shape.image, shape.image])
    y = helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", _CLASSES])
    return helper.make_graph(nodes, "lenet", [x], [y])
