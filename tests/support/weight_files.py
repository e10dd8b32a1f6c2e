"""Write weights of VGGs as torch's world has them, without torch: state dicts of arrays, .safetensors files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

TIMM = {"classifier.0": "pre_logits.fc1", "classifier.3": "pre_logits.fc2", "classifier.6": "head.fc"}
TYPES = {"float32": "F32", "float16": "F16", "float64": "F64", "uint16": "BF16", "int64": "I64"}


def state_of(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Return the weights of an ONNX file of `make_vgg` as torchvision's state dict."""
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}


def timms(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state dict under timm's names, its two hidden layers as convolutions."""
    found = {}
    for name, value in state.items():
        layer, _, part = name.rpartition(".")
        if part == "weight" and layer == "classifier.0":
            value = value.reshape(value.shape[0], -1, 7, 7)  # noqa: PLW2901
        if part == "weight" and layer == "classifier.3":
            value = value.reshape(*value.shape, 1, 1)  # noqa: PLW2901
        found[f"{TIMM.get(layer, layer)}.{part}"] = value
    return found


def safetensors(state: Mapping[str, np.ndarray[Any, Any]], padding: int = 0) -> bytes:
    """Return the bytes of a .safetensors file; arrays of uint16 are bfloat16, `padding` blanks end its header."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    place = 0
    for name, array in state.items():
        end = place + array.nbytes
        header[name] = {"dtype": TYPES[array.dtype.name], "shape": list(array.shape), "data_offsets": [place, end]}
        place = end
    text = json.dumps(header).encode() + b" " * padding
    return len(text).to_bytes(8, "little") + text + b"".join(array.tobytes() for array in state.values())
