"""The digits' net with a softmax behind it, and behind that what exporters and users add."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import onnx
from onnx import helper, numpy_helper

from vgg16gpu.io.shipped import digits_model

Node: TypeAlias = tuple[str, list[str], str, dict[str, Any]]  # operator, operands, result, attributes

ORDER: Final = [3, 1, 4, 0, 5, 9, 2, 6, 8, 7]
CONSTANTS: Final = {
    "one": np.ones((), np.float32),
    "zeros": np.zeros((1, 1), np.float32),
    "hundredth": np.full(1, 0.01, np.float32),
    "nine tenths": np.full((1, 10), 0.9, np.float32),
    "half": np.full((), 0.5, np.float32),
    "least": np.array(1e-7, np.float32),
    "scale": np.array(1 / 256, np.float32),
    "order": np.array(ORDER),
    "ones": np.array([1]),
    "spatial": np.array([2, 3]),
    "map": np.array([0, 10, 1, 1]),
    "first": np.array([0]),
    "last": np.array([5]),
    "ten": np.array([10]),
    "pads": np.array([0, 1, 0, 0]),
    "weights": np.eye(10, dtype=np.float32)[:, :, None, None],
}
_MAP: Final[list[Node]] = [("Reshape", ["scores", "map"], "a", {})]
_SOFT: Final[list[Node]] = [("Softmax", ["scores"], "a", {"axis": 1})]

# Nodes from "scores" to "output".
TAILS: Final[Mapping[str, list[Node]]] = {
    "nothing": [("Softmax", ["scores"], "output", {"axis": -1})],
    "1x1 map and Flatten": [
        *_MAP,
        ("Conv", ["a", "weights"], "b", {}),
        ("Softmax", ["b"], "c", {"axis": 1}),
        ("Flatten", ["c"], "output", {}),
    ],
    "1x1 map": [*_MAP, ("Softmax", ["a"], "output", {"axis": 1})],
    "1x1 map, channels last": [
        *_MAP,
        ("Transpose", ["a"], "b", {"perm": [0, 2, 3, 1]}),
        ("Softmax", ["b"], "output", {"axis": 3}),
    ],
    "Unsqueeze, Softmax, Squeeze": [
        ("Unsqueeze", ["scores", "ones"], "a", {}),
        ("Softmax", ["a"], "b", {"axis": 2}),
        ("Squeeze", ["b", "ones"], "output", {}),
    ],
    "times 1": [*_SOFT, ("Mul", ["one", "a"], "output", {})],
    "plus 0": [*_SOFT, ("Add", ["a", "zeros"], "output", {})],
    "divided by 1, minus 0": [*_SOFT, ("Div", ["a", "one"], "b", {}), ("Sub", ["b", "zeros"], "output", {})],
    "Clip(1e-7, 1)": [*_SOFT, ("Clip", ["a", "least", "one"], "output", {})],
    "plus 1e-7": [*_SOFT, ("Add", ["a", "least"], "output", {})],
    "smoothed": [*_SOFT, ("Mul", ["a", "nine tenths"], "b", {}), ("Add", ["b", "hundredth"], "output", {})],
    "Relu": [*_SOFT, ("Relu", ["a"], "output", {})],
    "Gather that reorders": [*_SOFT, ("Gather", ["a", "order"], "output", {"axis": 1})],
    "Slice of five": [*_SOFT, ("Slice", ["a", "first", "last", "ones"], "output", {})],
    "Concat of two softmaxes": [
        *_SOFT,
        ("Mul", ["scores", "half"], "cooler", {}),
        ("Softmax", ["cooler"], "b", {"axis": 1}),
        ("Concat", ["a", "b"], "output", {"axis": 1}),
    ],
    "Concat of halves": [
        *_SOFT,
        ("Slice", ["a", "first", "last", "ones"], "b", {}),
        ("Slice", ["a", "last", "ten", "ones"], "c", {}),
        ("Concat", ["c", "b"], "output", {"axis": 1}),
    ],
    "Pad by a class": [*_SOFT, ("Pad", ["a", "pads"], "output", {})],
    "mean of two": [
        *_SOFT,
        ("Mul", ["scores", "half"], "cooler", {}),
        ("Softmax", ["cooler"], "b", {"axis": 1}),
        ("Sum", ["a", "b"], "c", {}),
        ("Mul", ["c", "half"], "output", {}),
    ],
    "Identity, Dropout, Cast": [
        *_SOFT,
        ("Identity", ["a"], "b", {}),
        ("Dropout", ["b"], "c", {}),
        ("Cast", ["c"], "output", {"to": 1}),
    ],
}


def digits_with(tail: Sequence[Node], path: Path) -> Path:
    """The digits' net with nodes behind its scores, written to `path`."""
    model = onnx.load(digits_model())
    graph = model.graph
    graph.node[-1].output[0] = "scores"
    for op, operands, result, attributes in tail:
        graph.node.append(helper.make_node(op, operands, [result], name=result, **attributes))
    read = {name for node in graph.node for name in node.input}
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in CONSTANTS.items() if name in read)
    del graph.output[0].type.tensor_type.shape.dim[:]
    graph.output[0].type.tensor_type.ClearField("shape")
    path.write_bytes(model.SerializeToString())
    return path
