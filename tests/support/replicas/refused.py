"""Models that are refused, and the nodes to blame."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper

from tests.support.onnx_models import Model
from tests.support.replicas.base import (
    DOUBLE,
    EXPORT,
    FLOAT,
    INT64,
    MAP,
    Refused,
    edited,
    finish,
    norm_weights,
    retyped,
)
from tests.support.replicas.layers import MATRIX, chain, integers, item, numbers, one, scalar
from tests.support.replicas.quantised import qlinear
from tests.support.replicas.storage import short_vgg
from tests.support.replicas.torch_files import torch_legacy, training_dynamo, training_legacy


def named(*names: str) -> Callable[[NodeProto], bool]:
    """The nodes of these names."""
    return lambda node: node.name in names


def of_op(*ops: str) -> Callable[[NodeProto], bool]:
    """The nodes of these operators."""
    return lambda node: node.op_type in ops


def refused(
    make: Callable[[Model], object], offends: Callable[[NodeProto], bool], *words: str, **options: Any
) -> Refused:
    """A few nodes; `options` of Refused and of `finish`, and the shape of the input."""
    about = {name: options.pop(name) for name in ("also", "valid") if name in options}
    return Refused(item(make, options.pop("shape", MAP), **options).build, offends, words or (EXPORT,), **about)


def foreign_domains(model: Model) -> None:
    """Two domains at once, with good nodes before, between and behind."""
    x = model.node("Relu", [model.conv("input", "a", 4, 6)], "r")
    x = model.node("Gelu", [x], "g", "gelu_1", domain="com.microsoft")
    x = model.conv(x, "b", 6, 6)
    x = model.node("Swish", [x], "s", "swish_2", domain="my.ops")
    model.node("Flatten", [x], "y")


def branch(model: Model) -> None:
    """If with a subgraph on each side."""
    value = helper.make_tensor_value_info("o", FLOAT, None)
    sides = [
        helper.make_graph([helper.make_node(op, ["input"], ["o"], f"{op}_inside")], op, [], [value])
        for op in ("Relu", "Abs")
    ]
    total = model.node("ReduceSum", ["input"], "total", "total", keepdims=0)
    positive = model.node("Greater", [total, model.constant("zero", scalar(0))], "positive", "greater")
    model.node("If", [positive], "y", "if_1", then_branch=sides[0], else_branch=sides[1])


def loop(model: Model) -> None:
    """Loop over a Relu."""
    infos = [
        helper.make_tensor_value_info("i", INT64, ()),
        helper.make_tensor_value_info("go", TensorProto.BOOL, ()),
        helper.make_tensor_value_info("v", FLOAT, ("n", 4, 9, 9)),
    ]
    body = [helper.make_node("Relu", ["v"], ["v2"], "inside"), helper.make_node("Identity", ["go"], ["go2"], "go_on")]
    results = [
        helper.make_tensor_value_info("go2", TensorProto.BOOL, ()),
        helper.make_tensor_value_info("v2", FLOAT, ("n", 4, 9, 9)),
    ]
    graph = helper.make_graph(body, "body", infos, results)
    operands = [model.constant("trips", np.array(3)), model.constant("cond", np.array(True)), "input"]
    model.node("Loop", operands, "y", "loop_1", body=graph)


def sequences(model: Model) -> None:
    """A sequence made and taken apart."""
    model.node("SequenceConstruct", ["input", "input"], "list", "make_list")
    model.node("ConcatFromSequence", ["list"], "y", "join_list", axis=1)


def unknown_operators(model: Model) -> None:
    """Operators of ONNX itself that no VGG needs, in two branches."""
    a = model.node("Erf", [model.conv("input", "a", 4, 6)], "e", "erf_1")
    b = model.node("Hardmax", [model.conv("input", "b", 4, 6)], "h", "hardmax_1")
    model.node("Add", [a, b], "y")


def in_double(*, weights_only: bool = False) -> ModelProto:
    """float64 throughout, or a float64 matrix between casts."""
    if not weights_only:
        return retyped(short_vgg(), FLOAT, DOUBLE)
    model = Model(MATRIX)
    x = model.node("Cast", [model.node("Relu", ["input"], "r")], "d", "to_double", to=DOUBLE)
    x = model.node("MatMul", [x, model.constant("w", numbers(6, 5).astype(np.float64))], "m", "product")
    model.node("Cast", [x], "y", "to_float", to=FLOAT)
    return finish(model, {"y": ("n", 5)})


def drop(*names: str) -> Callable[[ModelProto], None]:
    """Take initializers away."""

    def edit(proto: ModelProto) -> None:
        kept = [tensor for tensor in proto.graph.initializer if tensor.name not in names]
        del proto.graph.initializer[:]
        proto.graph.initializer.extend(kept)

    return edit


def resize(*shape: int) -> Callable[[ModelProto], None]:
    """Declare another input, and nothing about what follows from it."""

    def edit(proto: ModelProto) -> None:
        for dim, size in zip(proto.graph.input[0].type.tensor_type.shape.dim, shape, strict=True):
            dim.dim_value = size

    return edit


def close_a_cycle(proto: ModelProto) -> None:
    """The first node reads what the third computes."""
    proto.graph.node[0].input[0] = proto.graph.node[2].output[0]


def opset(version: int) -> Callable[[ModelProto], None]:
    """Claim another version of the operators."""
    return lambda proto: proto.opset_import[0].__setattr__("version", version)


def ir_version(version: int) -> Callable[[ModelProto], None]:
    """Claim another version of the format."""
    return lambda proto: proto.__setattr__("ir_version", version)


FIRST_CONV = "/features/features.0/Conv"


FIRST_GEMM = "/classifier/classifier.0/Gemm"


EVAL = r"\beval\(\)"


REFUSED: dict[str, Refused] = {
    "training-legacy-opset17": Refused(lambda: training_legacy(17), of_op("BatchNormalization", "Dropout"), (EVAL,)),
    "training-legacy-opset9": Refused(lambda: training_legacy(9), of_op("BatchNormalization"), (EVAL,)),
    "training-dynamo": Refused(training_dynamo, of_op("Dropout"), (EVAL,)),
    "zoo-vgg16-12-int8": Refused(
        qlinear,
        of_op("QLinearConv", "QGemm"),
        ("com.microsoft", r"QuantizeLinear/DequantizeLinear|QDQ|float32"),
        also=("QuantizeLinear", "DequantizeLinear", "MaxPool", "Flatten"),
    ),
    "other-domains": refused(
        foreign_domains,
        named("gelu_1", "swish_2"),
        EXPORT,
        r"com\.microsoft",
        r"my\.ops",
        outputs={"y": ("n", 486)},
        domains={"com.microsoft": 1, "my.ops": 1},
    ),
    "if": refused(branch, of_op("If"), outputs={"y": ("n", 4, 9, 9)}, also=("ReduceSum", "Greater")),
    "loop": refused(loop, of_op("Loop"), outputs={"y": ("n", 4, 9, 9)}),
    "sequence": refused(sequences, named("make_list"), also=("ConcatFromSequence",), outputs={"y": ("n", 8, 9, 9)}),
    "unknown-operators": refused(unknown_operators, of_op("Erf", "Hardmax")),
    "conv-1d": Refused(one("Conv", (6, 4, 3), shape=("n", 4, 9)).build, of_op("Conv"), ("2-D", EXPORT)),
    "conv-3d": Refused(one("Conv", (6, 4, 3, 3, 3), shape=("n", 4, 9, 9, 9)).build, of_op("Conv"), ("2-D", EXPORT)),
    "conv-1d-inside": refused(
        chain(("Relu",), ("Reshape", integers(0, 4, 81)), ("Conv", (6, 4, 3)), ("Flatten",)),
        named("node2"),
        "2-D",
        EXPORT,
    ),
    "conv-3d-inside": refused(
        chain(("Relu",), ("Reshape", integers(0, 4, 9, 3, 3)), ("Conv", (6, 4, 3, 3, 3)), ("Flatten",)),
        named("node2"),
        "2-D",
        EXPORT,
    ),
    "float64": Refused(in_double, lambda _: False, ("DOUBLE|float64", "'input'", "export the model in float32")),
    "float64-inside": Refused(
        lambda: in_double(weights_only=True), named("to_double"), ("float64|DOUBLE", "float32"), also=("MatMul", "Cast")
    ),
    "dropout-training": refused(
        lambda m: m.node(
            "Dropout", ["input", m.constant("r", scalar(0.5)), m.constant("t", np.array(True))], "y", "drop_1"
        ),
        of_op("Dropout"),
        "training_mode",
        EVAL,
    ),
    "norm-training": refused(
        lambda m: m.node("BatchNormalization", ["input", *four(m)], ["y", "mean", "var"], "norm_1", training_mode=1),
        of_op("BatchNormalization"),
        "training_mode",
        EVAL,
        outputs={"y": MAP},
    ),
    "missing-weights": Refused(
        edited(short_vgg, drop("features.0.weight", "classifier.3.bias")),
        named(FIRST_CONV, "/classifier/classifier.3/Gemm"),
        ("'features.0.weight'", "'classifier.3.bias'", "with its weights"),
        valid=False,
    ),
    "image-too-large": Refused(
        edited(torch_legacy, resize(1, 3, 128, 128)), named(FIRST_GEMM), ("512", "128", r"64 ?x ?64|64, 64")
    ),
    "image-too-small": Refused(
        edited(torch_legacy, resize(1, 3, 16, 16)),
        named("/features/features.30/MaxPool"),
        (r"64 ?x ?64|64, 64",),
    ),
    "channels-last": Refused(
        edited(short_vgg, resize(1, 16, 16, 3)),
        named(FIRST_CONV),
        ("3 channels", "16", "NHWC|N, H, W, C|layout|channels first"),
    ),
    "grey-images": Refused(
        edited(short_vgg, resize(1, 1, 16, 16)),
        named(FIRST_CONV),
        ("3 channels",),
    ),
    "wrong-rank": Refused(
        one("Conv", (6, 4, 3, 3), shape=("n", 36)).build,
        of_op("Conv"),
        ("N, C, H, W", r"\(1, 36\)|2 dimensions"),
        valid=False,
    ),
    "cycle": Refused(
        edited(short_vgg, close_a_cycle),
        named(FIRST_CONV),
        ("cycle", "/features/features.2/MaxPool"),
        valid=False,
    ),
    **{
        f"opset-{version}": Refused(
            edited(lambda: short_vgg(7, 4), opset(version)),
            lambda _: False,
            (f"opset {version}", "7 to 25", "version_converter"),
            valid=version > 0,
        )
        for version in (0, 6, 26, 99)
    },
    **{
        f"ir-{version}": Refused(
            edited(lambda: short_vgg(8, 4), ir_version(version)),
            lambda _: False,
            (f"IR version {version}", EXPORT),
            valid=False,
        )
        for version in (2, 99)
    },
}


def four(model: Model) -> list[str]:
    """The parameters of a normalisation of four channels."""
    return norm_weights(model, "scale", "shift", "mean_in", "var_in", channels=4)
