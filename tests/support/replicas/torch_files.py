"""What torch's exporters write."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto, helper, numpy_helper

from tests.support.onnx_models import Model
from tests.support.replicas.base import CLASSES, FLOAT, HALF, SHORT, SIZE, finish, retyped, set_integer
from tests.support.replicas.writer import DYNAMO_STYLE, Style, Writer, legacy_style


def torch_legacy(
    opset: int = 17,
    ir: int = 8,
    *,
    batch: int | str = "batch",
    size: int = SIZE,
    norm: bool = False,
    style: Style | None = None,
    **options: Any,
) -> ModelProto:
    """torch's legacy exporter; at twice the size the average pool is a real one."""
    model = Model((batch, 3, size, size))
    w = Writer(model, style or legacy_style(opset))
    x, features = w.features("input", norm=norm)
    pool = [size // SIZE] * 2
    x = w.add("Flatten", w.add("AveragePool", x, kernel_shape=pool, strides=pool))
    return torch_file(model, w.classifier(x, features), opset, ir, **options)


def torch_file(model: Model, last: str, opset: int, ir: int, **options: Any) -> ModelProto:
    """The file, with `last`, the value of the last node, called as the caller of torch.onnx.export wants it."""
    assert model.nodes[-1].output[0] == last
    model.nodes[-1].output[0] = "output"
    shape = (model.input_shape[0], CLASSES)
    return finish(model, {"output": shape}, opset=opset, ir=ir, producer=("pytorch", "2.13.0"), **options)


def equal_biases() -> ModelProto:
    """Zero biases, written once for each length: Identity nodes hand them on."""
    proto = torch_legacy()
    kept: dict[int, str] = {}
    identities = []
    for tensor in list(proto.graph.initializer):
        if not tensor.name.endswith("bias"):
            continue
        length = tensor.dims[0]
        if length in kept:
            node = f"Identity_{len(identities)}"
            identities.append(helper.make_node("Identity", [kept[length]], [tensor.name], node))
            proto.graph.initializer.remove(tensor)
        else:
            kept[length] = tensor.name
            tensor.CopyFrom(numpy_helper.from_array(np.zeros(length, np.float32), tensor.name))
    nodes = [*identities[::-1], *proto.graph.node]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    return proto


def view(opset: int, ir: int) -> ModelProto:
    """x.view(x.size(0), -1) with an open batch by the legacy exporter."""
    model = Model(("batch", 3, SIZE, SIZE))
    w = Writer(model, legacy_style(opset))
    x, features = w.features("input")
    x = w.add("AveragePool", x)
    model.node("Shape", [x], "/Shape_output_0")
    model.node("Constant", [], "/Constant_output_0", value=numpy_helper.from_array(np.array(0)))
    model.node("Gather", ["/Shape_output_0", "/Constant_output_0"], "/Gather_output_0", axis=0)
    axes: dict[str, Any] = {"axes": [0]}
    operands = ["/Gather_output_0"]
    if opset >= 13:
        axes = {}
        operands.append(model.node("Constant", [], "onnx::Unsqueeze_49", value=numpy_helper.from_array(np.array([0]))))
    model.node("Unsqueeze", operands, "/Unsqueeze_output_0", **axes)
    model.node("Constant", [], "/Constant_1_output_0", value=numpy_helper.from_array(np.array([-1])))
    model.node("Concat", ["/Unsqueeze_output_0", "/Constant_1_output_0"], "/Concat_output_0", axis=0)
    allowzero = {"allowzero": 0} if opset >= 14 else {}
    x = model.node("Reshape", [x, "/Concat_output_0"], "/Reshape_output_0", **allowzero)
    return torch_file(model, w.classifier(x, features), opset, ir)


def dynamo(
    opset: int = 18, *, batch: int | str = 1, folded: bool = True, norm: bool = False, half: bool = False
) -> ModelProto:
    """torch's dynamo exporter; not `folded`: optimize=False. In half precision the average pool has casts around it."""
    model = Model((batch, 3, SIZE, SIZE))
    w = Writer(model, DYNAMO_STYLE)
    x, features = w.features("input", norm=norm)
    x = w.add("Cast", w.add("AveragePool", w.add("Cast", x, to=FLOAT)), to=HALF) if half else w.add("AveragePool", x)
    x = w.add("Reshape", x, dynamo_shape(model, batch, features, folded))
    x = w.classifier(x, features, dropout=None if folded else lambda y: w.add("Identity", y))
    proto = torch_file(model, x, opset, 10)
    return retyped_but(proto, {"AveragePool"}) if half else proto


def dynamo_shape(model: Model, batch: int | str, features: int, folded: bool) -> str:
    """What a dynamo export reshapes to: a constant, or Constant and Concat, with an open batch from Shape."""
    if folded:
        return model.constant("val_8", np.array([-1 if batch == "batch" else batch, features]))
    if batch == "batch":
        model.node("Shape", ["input"], "val_0", "node_Shape_0", start=0, end=1)
        model.node("Squeeze", ["val_0"], "sym_size_int_1", "node_sym_size_int_1")
        model.node("Constant", [], "val_6", "node_Constant_1", value_ints=[-1])
        model.node("Reshape", ["sym_size_int_1", "val_6"], "val_7", "node_Reshape_2", allowzero=0)
    else:
        model.node("Constant", [], "val_7", "node_Constant_52", value_ints=[batch])
    model.node("Constant", [], "val_57", "node_Constant_51", value_ints=[features])
    return model.node("Concat", ["val_7", "val_57"], "val_58", "node_Concat_53", axis=0)


def retyped_but(proto: ModelProto, kept: set[str]) -> ModelProto:
    """In float16, casts as they are; the nodes of the `kept` operators have none but run-time operands."""
    casts = [
        (attribute, attribute.i) for node in proto.graph.node for attribute in node.attribute if node.op_type == "Cast"
    ]
    assert not any(len(node.input) > 1 for node in proto.graph.node if node.op_type in kept)
    half = retyped(proto, FLOAT, HALF)
    after = [attribute for node in half.graph.node for attribute in node.attribute if node.op_type == "Cast"]
    for attribute, (_, to) in zip(after, casts, strict=True):
        attribute.i = to
    return half


def training_legacy(opset: int) -> ModelProto:
    """training=TrainingMode.TRAINING: normalisations with running outputs, Dropout with a mask."""
    model = Model((1, 3, SIZE, SIZE))
    w = Writer(model, legacy_style(opset))
    x, features = w.features("input", SHORT, norm=True)
    x = w.add("Flatten", w.add("AveragePool", x))

    def dropout(x: str) -> str:
        place = f"/classifier/classifier.{w.index}"
        if opset < 12:
            return w.add("Dropout", x, extra=[f"{place}/Dropout_output_1"], ratio=0.5)
        ratio, training = f"{place}/Constant_output_0", f"{place}/Constant_1_output_0"
        model.node("Constant", [], ratio, f"{place}/Constant", value=numpy_helper.from_array(np.array(0.5, np.float32)))
        model.node("Constant", [], training, f"{place}/Constant_1", value=numpy_helper.from_array(np.array(True)))
        return w.add("Dropout", x, ratio, training, extra=[f"{place}/Dropout_output_1"])

    proto = torch_file(model, w.classifier(x, features, dropout=dropout), opset, 8 if opset >= 15 else 4)
    for node in proto.graph.node:
        if node.op_type == "BatchNormalization":
            more = range(1, 3 if opset >= 14 else 5)
            node.output.extend(node.output[0].replace("output_0", f"output_{number}") for number in more)
            set_integer(node, "training_mode", 1)
    return proto


def training_dynamo() -> ModelProto:
    """dynamo=True of a network in training mode: Dropout takes ratio and mode from initializers."""
    model = Model((1, 3, SIZE, SIZE))
    w = Writer(model, DYNAMO_STYLE)
    x, features = w.features("input", SHORT)
    x = w.add("Reshape", w.add("AveragePool", x), dynamo_shape(model, 1, features, True))
    mode = [model.constant("val_44", np.array(0.5, np.float32)), model.constant("val_45", np.array(True))]
    return torch_file(model, w.classifier(x, features, dropout=lambda y: w.add("Dropout", y, *mode)), 18, 10)
