"""What MXNet, Caffe2, Keras, timm and CNTK have written."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import ModelProto

from tests.support.onnx_models import Model
from tests.support.replicas.base import (
    CLASSES,
    HIDDEN,
    INT32,
    INT64,
    SHORT,
    SIZE,
    VGG16,
    VGG19,
    finish,
    set_integer,
    weight,
)
from tests.support.replicas.torch_files import torch_file
from tests.support.replicas.writer import CAFFE2_STYLE, MXNET_STYLE, SQUARE, Writer, legacy_style


def mxnet(opset: int = 7, ir: int = 3, *, norm: bool = False) -> ModelProto:
    """The zoo's vgg16-7, -12 and vgg16-bn-7: Flatten before every Gemm, Dropout, no AveragePool, no Softmax."""
    model = Model((1, 3, SIZE, SIZE) if opset < 12 else ("N", 3, SIZE, SIZE), "data")
    w = Writer(model, MXNET_STYLE)
    x, features = w.features("data", norm=norm)
    x = w.classifier(x, features, "Flatten", dropout=lambda y: w.add("Dropout", y))
    if opset >= 12:  # the ratio has become an operand
        half = model.constant("ratio", np.array(0.5, np.float32))
        for node in model.nodes:
            if node.op_type == "Dropout":
                del node.attribute[:]
                node.input.append(half)
    return finish(model, {x: (model.input_shape[0], CLASSES)}, opset=opset, ir=ir, weights_as_inputs=True)


def spatial(proto: ModelProto) -> ModelProto:
    """The default of `spatial`: onnxruntime takes parameters per channel only with it."""
    proto = copy.deepcopy(proto)
    for node in proto.graph.node:
        set_integer(node, "spatial", 1)
    return proto


def caffe2_vgg19() -> ModelProto:
    """The zoo's vgg19-caffe2: weights first among the inputs, Reshape to a constant, masks, Softmax by default."""
    model = Model((1, 3, SIZE, SIZE), "data_0")
    w = Writer(model, CAFFE2_STYLE)
    x, features = w.features("data_0", VGG19)
    return caffe2_tail(w, x, features)


def caffe2_tail(w: Writer, x: str, features: int) -> ModelProto:
    """From the maps to probabilities."""
    model = w.model
    x = w.add("Reshape", x, model.constant("OC2_DUMMY_1", np.array([1, features])))
    x = w.classifier(x, features, dropout=lambda y: w.add("Dropout", y, extra=["_{value}_mask"]))
    x = w.add("Softmax", x)
    producer = ("onnx-caffe2", "")
    return finish(model, {x: (1, CLASSES)}, opset=9, ir=3, weights_as_inputs=True, producer=producer)


def caffe2_alexnet() -> ModelProto:
    """The zoo's bvlc_alexnet: LRN, two groups, kernels of 11 and 5, pads behind the map only."""
    model = Model((1, 3, 99, 99), "data_0")
    w = Writer(model, CAFFE2_STYLE)
    window, x, channels = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [0, 0, 0, 0]}, "data_0", 3
    for block, (filters, kernel, stride, pad, group) in enumerate(
        [(8, 11, 4, 0, 1), (12, 5, 1, 2, 2), (16, 3, 1, 1, 1), (16, 3, 1, 1, 2), (12, 3, 1, 1, 2)], 1
    ):
        w.block = block
        more = {"strides": [stride] * 2, "pads": [pad] * 4, "kernel_shape": [kernel] * 2}
        more |= {"group": group} if group > 1 else {}
        x = w.weighted("Conv", x, (filters, channels // group, kernel, kernel), (filters,), **more)
        x, channels = w.add("Relu", x), filters
        if block < 3:
            x = w.add("LRN", x, size=5, alpha=9.999999747378752e-05, beta=0.75, bias=1.0)
        if block in (1, 2, 5):
            x = w.add("MaxPool", x, **{**window, "pads": [0, 0, 1, 1] if block == 5 else [0, 0, 0, 0]})
    w.room = "classifier"
    return caffe2_tail(w, x, channels * 2 * 2)


def keras(opset: int = 13) -> ModelProto:
    """tf2onnx of a Keras VGG: NHWC at the edges, shape arithmetic in int32, MatMul and Add."""
    model = Model(("unk__1", SIZE, SIZE, 3), "input_1")
    root = "StatefulPartitionedCall/vgg16"
    first = f"{root}/block1_conv1/Conv2D"
    x = model.node("Transpose", ["input_1"], f"{first}__6:0", f"{first}__6", perm=[0, 3, 1, 2])
    x, channels = keras_features(model, root, x)
    features = channels * (SIZE >> 5) ** 2
    back = f"{root}/block5_pool/MaxPool__70"
    y = model.node("Transpose", [x], f"{back}:0", back, perm=[0, 2, 3, 1])
    shape = keras_shape(model, f"{root}/flatten", x, features)
    x = model.node("Reshape", [y, shape], f"{root}/flatten/Reshape:0", f"{root}/flatten/Reshape")
    for layer, inputs, outputs in (
        ("fc1", features, HIDDEN),
        ("fc2", HIDDEN, HIDDEN),
        ("predictions", HIDDEN, CLASSES),
    ):
        place = f"{root}/{layer}"
        matrix = weight(model, f"{place}/MatMul/ReadVariableOp:0", inputs, outputs, sums=0)
        x = model.node("MatMul", [x, matrix], f"{place}/MatMul:0", f"{place}/MatMul")
        bias = weight(model, f"{place}/BiasAdd/ReadVariableOp:0", outputs)
        x = model.node("Add", [x, bias], f"{place}/BiasAdd:0", f"{place}/BiasAdd")
        if layer != "predictions":
            x = model.node("Relu", [x], f"{place}/Relu:0", f"{place}/Relu")
    axis = {"axis": 1} if opset < 13 else {}
    model.node("Softmax", [x], "predictions", f"{root}/predictions/Softmax", **axis)
    return finish(model, {"predictions": ("unk__2", CLASSES)}, opset=opset, ir=7, producer=("tf2onnx", "1.16.1"))


def keras_features(model: Model, root: str, x: str) -> tuple[str, int]:
    """The convolutions: bias and activation are nodes of TensorFlow's, the values keep their names."""
    channels, block, layer = 3, 1, 1
    for filters in VGG16:
        if isinstance(filters, str):
            place, block, layer = f"{root}/block{block}_pool/MaxPool", block + 1, 1
            window = {"auto_pad": "VALID", "kernel_shape": [2, 2], "strides": [2, 2]}
            x = model.node("MaxPool", [x], f"{place}:0", place, **window)
            continue
        place, layer = f"{root}/block{block}_conv{layer}", layer + 1
        weights = [
            weight(model, f"{place}/Conv2D/ReadVariableOp:0", filters, channels, 3, 3),
            weight(model, f"{place}/BiasAdd/ReadVariableOp:0", filters),
        ]
        x = model.node("Conv", [x, *weights], f"{place}/BiasAdd:0", f"{place}/Conv2D", **SQUARE)
        x, channels = model.node("Relu", [x], f"{place}/Relu:0", f"{place}/Relu"), filters
    return x, channels


def keras_shape(model: Model, place: str, x: str, features: int) -> str:
    """[batch, features] from the shape of an NCHW value: that of the NHWC one by Gather, in int32."""

    def node(op: str, inputs: Sequence[str], part: str, **attributes: Any) -> str:
        return model.node(op, inputs, f"{place}/{part}:0", f"{place}/{part}", **attributes)

    order = model.constant(f"{place}/const_fold_opt__89", np.array([0, 2, 3, 1]))
    zero, one = (model.constant(f"{place}/const_{n}", np.array([n])) for n in (0, 1))
    shape = node(
        "Cast", [node("Gather", [node("Shape", [x], "Shape"), order], "Gather__91", axis=0)], "Cast__72", to=INT32
    )
    batch = node("Slice", [shape, zero, one, zero], "strided_slice")
    width = model.constant(f"{place}/Const:0", np.array([features], np.int32))
    return node("Cast", [node("Concat", [batch, width], "Concat__75", axis=0)], "Reshape__76", to=INT64)


def timm() -> ModelProto:
    """timm's vgg16: fully connected layers as convolutions of 7 and 1, global pool, one Gemm; 8x8 maps before them."""
    model = Model(("batch", 3, 32, 32))
    w = Writer(model, legacy_style(17))
    x, _ = w.features("input", SHORT)

    def conv(x: str, layer: str, filters: int, channels: int, kernel: int) -> str:
        weights = [weight(model, f"pre_logits.{layer}.weight", filters, channels, kernel, kernel)]
        weights.append(weight(model, f"pre_logits.{layer}.bias", filters))
        place = f"/pre_logits/{layer}/Conv"
        geometry = {**SQUARE, "kernel_shape": [kernel] * 2, "pads": [0] * 4}
        x = model.node("Conv", [x, *weights], f"{place}_output_0", place, **geometry)
        number = layer.removeprefix("fc")
        return model.node("Relu", [x], f"/pre_logits/act{number}/Relu_output_0", f"/pre_logits/act{number}/Relu")

    x = conv(conv(x, "fc1", HIDDEN, 8, 7), "fc2", HIDDEN, HIDDEN, 1)
    place = "/head/global_pool/pool/GlobalAveragePool"
    x = model.node("GlobalAveragePool", [x], f"{place}_output_0", place)
    place = "/head/global_pool/flatten/Flatten"
    x = model.node("Flatten", [x], f"{place}_output_0", place, axis=1)
    weights = [weight(model, "head.fc.weight", CLASSES, HIDDEN), weight(model, "head.fc.bias", CLASSES)]
    place = "/head/fc/Gemm"
    x = model.node("Gemm", [x, *weights], f"{place}_output_0", place, alpha=1.0, beta=1.0, transB=1)
    return torch_file(model, x, 17, 8)


def cntk_mnist() -> ModelProto:
    """The zoo's mnist-8, in its own size: auto_pad, biases of [C, 1, 1], a constant weight that is reshaped first."""
    model = Model((1, 1, 28, 28), "Input3")
    model.constant("Parameter193", (model.random.uniform(-1, 1, (16, 4, 4, 10)) / 6).astype(np.float32))
    model.constant("Parameter193_reshape1_shape", np.array([256, 10]))
    operands = ["Parameter193", "Parameter193_reshape1_shape"]
    model.node("Reshape", operands, "Parameter193_reshape1", "Times212_reshape1")
    x = cntk_block(model, "Input3", ("Convolution28", "Plus30", "ReLU32", "Pooling66"), ("5", "6"), (8, 1), 2)
    x = cntk_block(model, x, ("Convolution110", "Plus112", "ReLU114", "Pooling160"), ("87", "88"), (16, 8), 3)
    shape = model.constant(f"{x}_reshape0_shape", np.array([1, 256]))
    x = model.node("Reshape", [x, shape], f"{x}_reshape0", "Times212_reshape0")
    x = model.node("MatMul", [x, "Parameter193_reshape1"], "Times212_Output_0", "Times212")
    x = model.node("Add", [x, model.weight("Parameter194", 1, 10)], "Plus214_Output_0", "Plus214")
    producer = ("CNTK", "2.5.1")
    return finish(model, {x: (1, 10)}, opset=8, ir=3, weights_as_inputs=True, producer=producer)


def cntk_block(
    model: Model, x: str, nodes: Sequence[str], parameters: Sequence[str], filters: tuple[int, int], pool: int
) -> str:
    """Conv without bias, Add, Relu, MaxPool."""
    filter_name, bias = (f"Parameter{number}" for number in parameters)
    geometry = {"kernel_shape": [5, 5], "strides": [1, 1], "auto_pad": "SAME_UPPER", "group": 1, "dilations": [1, 1]}
    x = model.node(
        "Conv", [x, weight(model, filter_name, *filters, 5, 5)], f"{nodes[0]}_Output_0", nodes[0], **geometry
    )
    x = model.node("Add", [x, model.weight(bias, filters[0], 1, 1)], f"{nodes[1]}_Output_0", nodes[1])
    x = model.node("Relu", [x], f"{nodes[2]}_Output_0", nodes[2])
    window = {"kernel_shape": [pool, pool], "strides": [pool, pool], "pads": [0] * 4, "auto_pad": "NOTSET"}
    return model.node("MaxPool", [x], f"{nodes[3]}_Output_0", nodes[3], **window)
