"""SqueezeNets and ResNets: Concat, and Add of two paths."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto, helper

from tests.support.onnx_models import Model
from tests.support.replicas.base import CLASSES, finish, norm_weights, weight
from tests.support.replicas.torch_files import torch_file
from tests.support.replicas.writer import NORM_PARTS, SQUARE


def norm(model: Model, x: str, place: str, channels: int, epsilon: float) -> str:
    """BatchNormalization that follows a convolution and is not folded into it."""
    names = norm_weights(model, *(f"{place}.{part}" for part in NORM_PARTS), channels=channels)
    return model.node("BatchNormalization", [x, *names], place, epsilon=epsilon, momentum=0.9)


def squeezenet(opset: int = 9) -> ModelProto:
    """The zoo's squeezenet in small: fire modules, a convolution as classifier, Softmax by default over rank 4."""
    model = Model((1, 3, 35, 35), "data_0")

    def conv(x: str, name: str, channels: int, filters: int, kernel: int, stride: int = 1) -> str:
        weights = [
            weight(model, f"{name}_w_0", filters, channels, kernel, kernel),
            weight(model, f"{name}_b_0", filters),
        ]
        pads = [1 if kernel == 3 and stride == 1 else 0] * 4
        geometry = {"strides": [stride] * 2, "pads": pads, "kernel_shape": [kernel] * 2}
        return model.node("Relu", [model.node("Conv", [x, *weights], f"{name}_1", **geometry)], f"{name}_2")

    def fire(x: str, name: str, channels: int, squeeze: int, expand: int) -> str:
        x = conv(x, f"{name}/squeeze1x1", channels, squeeze, 1)
        wide = [conv(x, f"{name}/expand{k}x{k}", squeeze, expand, k) for k in (1, 3)]
        return model.node("Concat", wide, f"{name}/concat_1", axis=1)

    def pool(x: str, name: str) -> str:
        return model.node("MaxPool", [x], name, strides=[2, 2], pads=[0] * 4, kernel_shape=[3, 3])

    x = pool(conv("data_0", "conv1", 3, 8, 3, 2), "pool1_1")
    x = fire(fire(x, "fire2", 8, 3, 8), "fire3", 16, 3, 8)
    x = fire(pool(x, "pool3_1"), "fire4", 16, 5, 10)
    model.nodes.append(helper.make_node("Dropout", [x], ["fire4/concat_2", "_fire4/concat_mask_1"], ratio=0.5))
    x = model.node("GlobalAveragePool", [conv("fire4/concat_2", "conv10", 20, CLASSES, 1)], "pool10_1")
    model.node("Softmax", [x], "softmaxout_1")
    return finish(model, {"softmaxout_1": (1, CLASSES, 1, 1)}, opset=opset, ir=3, weights_as_inputs=True)


def torch_squeezenet() -> ModelProto:
    """torchvision's squeezenet1_1 in small: pools that round up, an open batch, Flatten at the end."""
    model = Model(("batch", 3, 38, 38))

    def relu_conv(x: str, place: str, channels: int, filters: int, kernel: int, **more: Any) -> str:
        return model.node("Relu", [model.conv(x, place, channels, filters, kernel, **more)], f"{place}/Relu")

    def pool(x: str, place: str) -> str:
        window = {"ceil_mode": 1, "dilations": [1, 1], "kernel_shape": [3, 3], "pads": [0] * 4, "strides": [2, 2]}
        return model.node("MaxPool", [x], place, **window)

    def fire(x: str, place: str, channels: int, squeeze: int, expand: int) -> str:
        x = relu_conv(x, f"{place}/squeeze", channels, squeeze, 1)
        wide = [relu_conv(x, f"{place}/expand{k}x{k}", squeeze, expand, k) for k in (1, 3)]
        return model.node("Concat", wide, f"{place}/Concat", axis=1)

    x = relu_conv("input", "/features/features.0", 3, 8, 3, strides=[2, 2], pads=[0] * 4)
    x = fire(pool(x, "/features/features.2"), "/features/features.3", 8, 3, 8)
    x = fire(pool(x, "/features/features.5"), "/features/features.6", 16, 5, 12)
    x = relu_conv(x, "/classifier/classifier.1", 24, CLASSES, 1)
    x = model.node("GlobalAveragePool", [x], "/classifier/classifier.3")
    return torch_file(model, model.node("Flatten", [x], "/Flatten", axis=1), 17, 8)


def resnet(opset: int = 17, *, bottleneck: bool = False) -> ModelProto:
    """torchvision's resnet in small, normalisations not folded: strided 1x1 projections, Add of two paths."""
    model = Model(("batch", 3, 32, 32))

    def conv(x: str, place: str, channels: int, filters: int, kernel: int, stride: int = 1) -> str:
        filters_name = weight(model, f"{place}.weight", filters, channels, kernel, kernel)
        geometry = {**SQUARE, "kernel_shape": [kernel] * 2, "pads": [kernel // 2] * 4, "strides": [stride] * 2}
        x = model.node("Conv", [x, filters_name], f"{place}/Conv", **geometry)
        return norm(model, x, f"{place}/bn", filters, 1e-5)

    def block(x: str, place: str, channels: int, filters: int, stride: int) -> str:
        kernels = (1, 3, 1) if bottleneck else (3, 3)
        y, inner = x, channels
        for number, kernel in enumerate(kernels, 1):
            last = number == len(kernels)
            width = filters if last or not bottleneck else filters // 2
            y = conv(y, f"{place}.conv{number}", inner, width, kernel, stride if number == len(kernels) - 1 else 1)
            y, inner = y if last else model.node("Relu", [y], f"{place}/relu{number}"), width
        if stride > 1 or channels != filters:
            x = conv(x, f"{place}.downsample.0", channels, filters, 1, stride)
        return model.node("Relu", [model.node("Add", [y, x], f"{place}/Add")], f"{place}/relu")

    x = model.node("Relu", [conv("input", "conv1", 3, 8, 7, 2)], "/relu")
    x = model.node("MaxPool", [x], "/maxpool", kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])
    for number, (channels, filters, stride) in enumerate([(8, 8, 1), (8, 16, 2), (16, 16, 1), (16, 24, 2)]):
        x = block(x, f"layer{number}", channels, filters, stride)
    x = model.node("GlobalAveragePool", [x], "/avgpool/GlobalAveragePool_output_0")
    x = model.node("Flatten", [x], "/Flatten_output_0", axis=1)
    return torch_file(
        model, model.gemm(x, "fc", 24, CLASSES), opset, 8 if opset > 8 else 3, weights_as_inputs=opset < 9
    )


def caffe2_resnet() -> ModelProto:
    """The zoo's resnet50 in small: Sum of two paths, AveragePool of the whole map, Reshape, names with slashes."""
    model = Model((1, 3, 32, 32), "gpu_0/data_0")

    def conv(x: str, name: str, channels: int, filters: int, kernel: int, stride: int = 1) -> str:
        name = f"gpu_0/{name}"
        filters_name = weight(model, f"{name}_w_0", filters, channels, kernel, kernel)
        geometry = {"strides": [stride] * 2, "pads": [kernel // 2] * 4, "kernel_shape": [kernel] * 2}
        x = model.node("Conv", [x, filters_name], f"{name}_1", **geometry)
        return norm(model, x, f"{name}_bn", filters, 9.999999747378752e-06)

    x = model.node("Relu", [conv("gpu_0/data_0", "conv1", 3, 8, 7, 2)], "gpu_0/res_conv1_bn_2")
    x = model.node("MaxPool", [x], "gpu_0/pool1_1", strides=[2, 2], pads=[1, 1, 1, 1], kernel_shape=[3, 3])
    a = model.node("Relu", [conv(x, "res2_0_branch2a", 8, 4, 1)], "gpu_0/res2_0_branch2a_bn_2")
    b = model.node("Relu", [conv(a, "res2_0_branch2b", 4, 4, 3)], "gpu_0/res2_0_branch2b_bn_2")
    paths = [conv(b, "res2_0_branch2c", 4, 12, 1), conv(x, "res2_0_branch1", 8, 12, 1)]
    x = model.node("Relu", [model.node("Sum", paths, "gpu_0/res2_0_branch2c_bn_2")], "gpu_0/res2_0_branch2c_bn_3")
    x = model.node("AveragePool", [x], "gpu_0/pool5_1", strides=[1, 1], pads=[0] * 4, kernel_shape=[8, 8])
    x = model.node("Reshape", [x, model.constant("OC2_DUMMY_1", np.array([1, 12]))], "OC2_DUMMY_0")
    model.node("Softmax", [model.gemm(x, "gpu_0/pred", 12, CLASSES)], "gpu_0/softmax_1")
    return finish(model, {"gpu_0/softmax_1": (1, CLASSES)}, opset=9, ir=3, weights_as_inputs=True)
