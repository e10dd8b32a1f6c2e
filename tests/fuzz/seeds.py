"""Small valid models of every form that is accepted, to be damaged by `cases.py`, and the files around them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.support.onnx_models import Model, dynamo_vgg, torch_vgg, vgg_features, view_vgg, zoo_vgg

Inputs: TypeAlias = Mapping[str, npt.NDArray[Any]]

WEIGHTS: Final = "weights.bin"
SECRET: Final = "secret.bin"  # beside the model's folder, never in it
FLOATS: Final = np.random.default_rng(1).uniform(-1, 1, 4096).astype(np.float32).tobytes()


@dataclass(frozen=True, eq=False)
class Seed:
    """A valid model with an input for it and the files that lie beside it.

    tolerance: how far from onnxruntime's answer another one may be, as a part of the largest value.
    """

    name: str
    data: bytes
    inputs: Inputs
    files: Mapping[str, bytes] = field(default_factory=dict)
    tolerance: float = 1e-4


def furnish(folder: Path) -> None:
    """Put into a folder, and beside it, what the paths in hostile models lead to."""
    files = folder / "model"
    files.mkdir(parents=True)
    (folder / SECRET).write_bytes(FLOATS)
    (folder / "beside").mkdir()
    (folder / "beside" / SECRET).write_bytes(FLOATS)
    for seed in seeds():
        for name, content in seed.files.items():
            (files / name).write_bytes(content)
    (files / "empty.bin").touch()
    (files / "pointer.bin").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")
    (files / "folder").mkdir()
    for link, target in LINKS.items():
        (files / link).symlink_to(target)
    os.mkfifo(files / "pipe")


LINKS: Final = {
    "link.bin": f"../{SECRET}",
    "absolute.bin": "/etc/passwd",
    "zero.bin": "/dev/zero",
    "loop.bin": "loop.bin",
    "away": "../beside",
    "here.bin": WEIGHTS,
}
PATHS: Final = (
    f"../{SECRET}",
    f"folder/../../{SECRET}",
    f"./../{SECRET}",
    f"..\\{SECRET}",
    f"away/{SECRET}",
    "/etc/passwd",
    "//etc/passwd",
    "/dev/zero",
    "/proc/self/mem",
    "file:///etc/passwd",
    "C:\\weights.bin",
    "pipe",
    "folder",
    "empty.bin",
    "pointer.bin",
    "absent.bin",
    "model.onnx",
    "",
    ".",
    "..",
    "\0",
    "a\nb",
    "a" * 5000,
    "weights.bin/",
    "weights.bin/x",
    "./weights.bin",
    *LINKS,
)


@cache
def seeds() -> tuple[Seed, ...]:
    """Every seed model."""
    return tuple(build(name) for name, build in _SEEDS.items())


def _seed(name: str, model: ModelProto, files: Mapping[str, bytes] | None = None, tolerance: float = 1e-4) -> Seed:
    random = np.random.default_rng(len(name))
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = {}
    for value in model.graph.input:
        if value.name not in weights:
            shape = [dim.dim_value if dim.HasField("dim_value") else 2 for dim in value.type.tensor_type.shape.dim]
            dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            inputs[value.name] = random.uniform(-1, 1, shape).astype(dtype)
    return Seed(name, model.SerializeToString(), inputs, files or {}, tolerance)


def _vgg(name: str) -> Seed:
    model = torch_vgg((4, "M", 3), size=4, batch=1)
    model.node("Softmax", ["output"], "prob")
    return _seed(name, model.proto())


def _norm(name: str) -> Seed:
    return _seed(name, torch_vgg((4, "M"), size=4, norm=True).proto())


def _dropout(name: str) -> Seed:
    return _seed(name, zoo_vgg(style="caffe2", size=4).proto(opset=9, weights_as_inputs=True, ir_version=3))


def _view(name: str) -> Seed:
    return _seed(name, view_vgg(style="operand", size=4).proto())


def _dynamo(name: str) -> Seed:
    return _seed(name, dynamo_vgg(size=4, folded=False).proto(opset=18))


def _branches(name: str) -> Seed:
    """A fire module, a residual block, a global pool."""
    model = Model(("n", 3, 6, 6))
    x = model.node("Relu", [model.conv("input", "squeeze", 3, 4, kernel=1)], "squeezed")
    sides = [model.conv(x, "left", 4, 4, kernel=1), model.conv(x, "right", 4, 4)]
    x = model.node("Concat", sides, "both", axis=1)
    y = model.node("Relu", [model.conv(x, "inner", 8, 8)], "inner_relu")
    x = model.node("Add", [x, y], "sum")
    x = model.node("GlobalAveragePool", [x], "pooled")
    model.gemm(model.node("Flatten", [x], "flat"), "output", 8, 5)
    return _seed(name, model.proto())


def _external(name: str) -> Seed:
    """Every weight in another file."""
    model = torch_vgg((4, "M"), size=4, batch=1).proto()
    body = b"#" * 8
    for tensor in model.graph.initializer:
        raw = numpy_helper.to_array(tensor).tobytes()
        send_out(tensor, WEIGHTS, len(body), len(raw))
        body += raw
    return _seed(name, model, files={WEIGHTS: body})


def send_out(tensor: TensorProto, location: str, offset: object, length: object) -> None:
    for place in ("raw_data", "float_data"):
        tensor.ClearField(place)
    del tensor.external_data[:]
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)


def _functions(name: str) -> Seed:
    """A local function that calls another one, called twice."""
    model = Model((1, 3, 4, 4))
    model.conv("input", "conv", 3, 4)
    model.node("Twice", ["conv"], "once", domain="local")
    model.node("Twice", ["once"], "twice", domain="local")
    model.gemm(model.node("Flatten", ["twice"], "flat"), "output", 64, 5)
    proto = model.proto()
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    proto.opset_import.append(opsets[1])
    inner = [helper.make_node("LeakyRelu", ["x"], ["y"], alpha=0.1)]
    outer = [helper.make_node("Leaky", ["x"], ["m"], domain="local"), helper.make_node("Add", ["m", "x"], ["y"])]
    proto.functions.append(helper.make_function("local", "Leaky", ["x"], ["y"], inner, opsets))
    proto.functions.append(helper.make_function("local", "Twice", ["x"], ["y"], outer, opsets))
    return _seed(name, proto)


def _quantised(name: str) -> Seed:
    """QuantizeLinear and DequantizeLinear around a convolution and a Gemm."""
    model = Model((1, 3, 4, 4))
    x = _rounded(model, "input", 0.02)
    weight = model.constant("w8", model.random.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8))
    scale, zero = (
        model.constant("w_scale", np.full(4, 0.01, np.float32)),
        model.constant("w_zero", np.zeros(4, np.int8)),
    )
    model.node("DequantizeLinear", [weight, scale, zero], "w", axis=0)
    model.node("Conv", [x, "w", model.weight("bias", 4)], "conv", kernel_shape=[3, 3], pads=[1] * 4)
    x = _rounded(model, model.node("Relu", ["conv"], "relu"), 0.03)
    model.gemm(model.node("Flatten", [x], "flat"), "output", 64, 5)
    return _seed(name, model.proto())


def _rounded(model: Model, x: str, step: float) -> str:
    operands = [model.constant(f"{x}_scale", np.float32(step)), model.constant(f"{x}_zero", np.int8(0))]
    return model.node(
        "DequantizeLinear", [model.node("QuantizeLinear", [x, *operands], f"{x}_q"), *operands], f"{x}_dq"
    )


def _inputs(name: str) -> Seed:
    """Weights are run-time inputs, as in the conformance tests."""
    model = Model((1, 3, 5, 5))
    model.node("Conv", ["input", "w", "b"], "conv", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4, group=1)
    model.node("Relu", ["conv"], "relu")
    model.node("MatMul", ["relu", "m"], "output")
    proto = model.proto()
    for value, shape in (("w", [4, 3, 3, 3]), ("b", [4]), ("m", [3, 2])):
        proto.graph.input.append(helper.make_tensor_value_info(value, TensorProto.FLOAT, shape))
    return _seed(name, proto)


def _general(name: str) -> Seed:
    """Keras and CNTK spellings: the general operators one after the other."""
    model = Model((1, 4, 4, 3))
    x = model.node("Transpose", ["input"], "nchw", perm=[0, 3, 1, 2])
    x = model.node("Pad", [x, model.constant("pads", np.array([0, 0, 1, 1, 0, 0, 1, 1]))], "padded", mode="constant")
    x = model.conv(x, "conv", 3, 4, auto_pad="SAME_UPPER", pads=None)
    x = model.node("Sub", [x, model.weight("shift", 4, 1, 1)], "shifted")
    x = model.node("Mul", [x, model.constant("gain", np.float32(1.5))], "gained")
    x = model.node("Clip", [x, model.constant("low", np.float32(-1)), model.constant("high", np.float32(2))], "clipped")
    bounds = [
        model.constant(key, np.array(value)) for key, value in (("from", [0, 0]), ("to", [4, 9]), ("axes", [2, 3]))
    ]
    x = model.node("Slice", [x, *bounds], "sliced")
    x = model.node("MaxPool", [x], "pooled", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)
    x = model.node("Transpose", [x], "nhwc", perm=[0, 2, 3, 1])
    x = model.node("Reshape", [x, model.constant("shape", np.array([0, -1]))], "flat")
    x = model.node("MatMul", [x, model.weight("matrix", 24, 5)], "product")
    x = model.node("Add", [x, model.weight("offset", 5)], "sum")
    model.node("LogSoftmax", [x], "output", axis=-1)
    return _seed(name, model.proto())


def _alex(name: str) -> Seed:
    """LRN, groups, dilations, an average pool that counts its padding."""
    model = Model((1, 4, 7, 7))
    x = model.node("LRN", [model.node("Relu", ["input"], "relu")], "lrn", size=3, alpha=0.1, beta=0.75, bias=1.0)
    x = model.node("Conv", [x, model.weight("w", 6, 2, 3, 3)], "conv", group=2, dilations=[2, 2], pads=[2, 2, 2, 2])
    x = model.node("AveragePool", [x], "pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4, count_include_pad=1)
    x = model.node(
        "Squeeze", [model.node("GlobalMaxPool", [x], "top"), model.constant("axes", np.array([2, 3]))], "flat"
    )
    model.node("Softmax", [model.gemm(x, "fc", 6, 5)], "output", axis=1)
    return _seed(name, model.proto())


def _half(name: str) -> Seed:
    """float16 weights and values between two casts."""
    model = Model((1, 3, 4, 4))
    x = model.node("Cast", ["input"], "half", to=TensorProto.FLOAT16)
    x, channels = vgg_features(model, (4, "M"), channels=3)
    del x
    model.nodes[1].input[0] = "half"
    model.gemm(model.node("Flatten", ["pool1"], "flat"), "fc", channels * 4, 5)
    for index, tensor in enumerate(model.weights):
        model.weights[index] = numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name)
    model.node("Cast", ["fc"], "output", to=TensorProto.FLOAT)
    return _seed(name, model.proto(), tolerance=5e-3)  # onnxruntime rounds after every node


_SEEDS: Final[Mapping[str, Callable[[str], Seed]]] = {
    "vgg": _vgg,
    "norm": _norm,
    "dropout": _dropout,
    "view": _view,
    "dynamo": _dynamo,
    "branches": _branches,
    "external": _external,
    "functions": _functions,
    "quantised": _quantised,
    "inputs": _inputs,
    "general": _general,
    "alex": _alex,
    "half": _half,
}
