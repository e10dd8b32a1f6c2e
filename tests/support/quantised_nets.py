"""Files that onnxruntime's own tool quantises, from nets with the activations that it leaves to QuantizeLinear."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

from tests.support.onnx_models import Model, random_input
from vgg16gpu.compiler.graph.ops import Array

SHAPE: Final = (3, 16, 16)
IMAGES: Final = 8  # of the calibration
CLASSES: Final = 10
HIDDEN: Final = 32


def clip(model: Model, x: str, y: str, low: float, high: float) -> str:
    limits = [model.constant(f"{y}.{name}", np.float32(value)) for name, value in (("low", low), ("high", high))]
    return model.node("Clip", [x, *limits], y)


ACTIVATIONS: Final[Mapping[str, Callable[[Model, str, str], str]]] = MappingProxyType(
    {
        "relu": lambda model, x, y: model.node("Relu", [x], y),
        "relu6": lambda model, x, y: clip(model, x, y, 0, 6),
        "hardtanh": lambda model, x, y: clip(model, x, y, -1, 1),
        "unit": lambda model, x, y: clip(model, x, y, 0, 1),
        "lopsided": lambda model, x, y: clip(model, x, y, -0.25, 2),
        "leaky": lambda model, x, y: model.node("LeakyRelu", [x], y, alpha=0.2),
        "none": lambda *names: names[1],
    }
)


def vgg(activation: str) -> Model:
    """A VGG of two blocks whose values leave the limits of most activations."""
    model = Model(("n", *SHAPE))
    made = ACTIVATIONS[activation]
    x, channels = "input", SHAPE[0]
    for index, (filters, pools) in enumerate(((8, False), (8, True), (16, True))):
        x, channels = made(model, model.conv(x, f"conv{index}", channels, filters), f"act{index}"), filters
        if pools:
            x = model.node("MaxPool", [x], f"pool{index}", kernel_shape=[2, 2], strides=[2, 2])
    x = model.node("Flatten", [x], "flat")
    x = made(model, model.gemm(x, "fc1", channels * 16, HIDDEN), "act_fc1")
    model.gemm(x, "scores", HIDDEN, CLASSES)
    return model


class Images(CalibrationDataReader):  # type: ignore[misc]
    """What onnxruntime's tool calibrates with."""

    def __init__(self, scale: float = 1.0) -> None:
        self._left, self._scale = iter(range(IMAGES)), scale

    def get_next(self) -> dict[str, Any] | None:
        seed = next(self._left, None)
        return None if seed is None else {"input": inputs(1, seed, self._scale)}


def inputs(count: int, seed: int, scale: float = 1.0) -> Array:
    return random_input((count, *SHAPE), seed) * np.float32(scale)


def quantised(model: Model, path: Path, *, scale: float = 1.0, **options: Any) -> Path:
    """The model quantised by onnxruntime with its defaults, with QuantizeLinear; the float32 file is beside it."""
    plain = model.save(path.with_suffix(".float.onnx"), opset=17)
    quantize_static(plain, path, Images(scale), QuantFormat.QDQ, **options)
    return path
