"""Single forms that are accepted: where weights are, versions, functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.external_data_helper import set_external_data

from tests.support.onnx_models import Model
from tests.support.replicas.base import (
    FLOAT,
    HALF,
    SHORT,
    SIZE,
    Replica,
    edited,
    finish,
    in_float32,
    retyped,
    tensors,
    weight,
    write,
)
from tests.support.replicas.layers import item
from tests.support.replicas.shapes import cast_there_and_back
from tests.support.replicas.torch_files import torch_file
from tests.support.replicas.writer import Writer, legacy_style


def typed_fields(proto: ModelProto) -> None:
    """Weights in float_data and int64_data in place of raw_data."""
    for tensor in tensors(proto):
        values = numpy_helper.to_array(tensor)
        tensor.CopyFrom(helper.make_tensor(tensor.name, tensor.data_type, values.shape, values.ravel().tolist()))
        assert not tensor.raw_data


def into_constants(proto: ModelProto) -> None:
    """Weights as Constant nodes, between the nodes that read them."""
    nodes = []
    known = {tensor.name: tensor for tensor in proto.graph.initializer}
    for node in proto.graph.node:
        read = [(name, known.pop(name)) for name in node.input if name in known]
        nodes += [helper.make_node("Constant", [], [name], f"Constant_{name}", value=tensor) for name, tensor in read]
        nodes.append(node)
    del proto.graph.initializer[:], proto.graph.node[:]
    proto.graph.node.extend(nodes)


def behind_identities(proto: ModelProto) -> None:
    """Every weight handed on by two Identity nodes."""
    hops = []
    for tensor in proto.graph.initializer:
        name, tensor.name = tensor.name, f"{tensor.name}_stored"
        hops.append(helper.make_node("Identity", [tensor.name], [f"{name}_hop"], f"hop_{name}"))
        hops.append(helper.make_node("Identity", [f"{name}_hop"], [name], f"last_{name}"))
    nodes = [*hops, *proto.graph.node]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)


def with_metadata(proto: ModelProto) -> None:
    """What else files carry: value_info, doc strings, metadata, weights that nobody reads, an unused domain."""
    proto.CopyFrom(onnx.shape_inference.infer_shapes(proto))
    proto.graph.node[0].doc_string = "File: vgg.py\nline 66"
    proto.metadata_props.add(key="author", value="somebody")
    proto.graph.initializer.append(numpy_helper.from_array(np.arange(3), "num_batches_tracked"))
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))


def unnamed(proto: ModelProto) -> None:
    """Nodes without names, and an open batch without one."""
    for node in proto.graph.node:
        node.name = ""
    proto.graph.input[0].type.tensor_type.shape.dim[0].Clear()


def explicit_domain(proto: ModelProto) -> None:
    """ai.onnx in place of the empty default domain."""
    proto.opset_import[0].domain = "ai.onnx"


def short_vgg(opset: int = 17, ir: int = 8, **options: Any) -> ModelProto:
    """Two convolutions and three fully connected layers, by torch's legacy exporter."""
    model = Model(("batch", 3, SIZE // 4, SIZE // 4))
    w = Writer(model, legacy_style(opset))
    x, features = w.features("input", SHORT)
    return torch_file(model, w.classifier(w.add("Flatten", x), features // 16), opset, ir, **options)


def with_functions(*, nested: bool) -> ModelProto:
    """Local functions with attributes of the caller's; `nested`: one calls another."""
    model = Model(("n", 3, 8, 8))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    pool = helper.make_node("MaxPool", ["x"], ["y"], "pool")
    for name in ("kernel_shape", "strides"):
        pool.attribute.append(onnx.AttributeProto(name=name, ref_attr_name="window", type=onnx.AttributeProto.INTS))
    shrink = helper.make_function("local", "Shrink", ["x"], ["y"], [pool], opsets, ["window"])
    conv = helper.make_node("Conv", ["x", "w", "b"], ["c"], "conv", pads=[1, 1, 1, 1])
    relu = helper.make_node("Relu", ["c"], ["r"], "relu")
    last = helper.make_node("Shrink", ["r"], ["y"], "last", domain="local", window=[2, 2])
    body = [conv, relu, last] if nested else [conv, helper.make_node("Relu", ["c"], ["y"], "relu")]
    block = helper.make_function("local", "Block", ["x", "w", "b"], ["y"], body, opsets)
    x, channels = "input", 3
    for index, filters in enumerate((4, 6)):
        weights = [weight(model, f"w{index}", filters, channels, 3, 3), weight(model, f"b{index}", filters)]
        x, channels = model.node("Block", [x, *weights], f"block{index}", domain="local"), filters
        if not nested:
            x = model.node("Shrink", [x], f"pool{index}", domain="local", window=[2, 2])
    model.gemm(model.node("Flatten", [x], "flat"), "y", 24, 5)
    return finish(model, {"y": ("n", 5)}, domains={"local": 1}, functions=[block, shrink])


def fully_convolutional(model: Model) -> None:
    """A network that takes images of any size."""
    x = model.node("Relu", [model.conv("input", "a", 3, 6)], "r")
    x = model.node("GlobalAveragePool", [model.node("MaxPool", [x], "p", kernel_shape=[2, 2], strides=[2, 2])], "g")
    model.gemm(model.node("Flatten", [x], "f"), "y", 6, 5)


def external_everything(folder: Path) -> Path:
    """Every tensor outside, in a file of each one's own, one of them in a folder."""
    proto = short_vgg()
    (folder / "weights").mkdir()
    for tensor in proto.graph.initializer:
        location = f"weights/{tensor.name}" if tensor.name.startswith("features") else tensor.name
        (folder / location).write_bytes(tensor.raw_data)
        set_external_data(tensor, location)
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
    return write(proto, folder)


FILES = {
    "typed-fields": Replica(edited(short_vgg, typed_fields)),
    "half-typed-fields": Replica(edited(lambda: retyped(short_vgg(), FLOAT, HALF), typed_fields), in_float32, 2e-3),
    "constant-nodes": Replica(edited(short_vgg, into_constants)),
    "identities": Replica(edited(short_vgg, behind_identities)),
    "weights-as-inputs": Replica(lambda: short_vgg(weights_as_inputs=True)),
    "metadata": Replica(edited(short_vgg, with_metadata)),
    "unnamed": Replica(edited(short_vgg, unnamed)),
    "domain-ai-onnx": Replica(edited(short_vgg, explicit_domain)),
    "external-mixed": Replica(short_vgg, external=True),
    "half-weights-cast": item(cast_there_and_back),
    "functions": Replica(lambda: with_functions(nested=False)),
    "functions-nested": Replica(lambda: with_functions(nested=True)),
    "any-size": item(fully_convolutional, ("n", 3, "h", "w"), 20),
    **{
        f"opset{opset}": Replica(lambda opset=opset: short_vgg(opset, 4 if opset < 9 else 10)) for opset in range(7, 26)
    },
    "ir3": Replica(lambda: short_vgg(8, 3, weights_as_inputs=True)),
    **{f"ir{ir}": Replica(lambda ir=ir: short_vgg(15, ir)) for ir in range(4, 14)},
    "ir14": Replica(lambda: short_vgg(15, 14), lambda _: short_vgg(15, 13), runs=False),
}
