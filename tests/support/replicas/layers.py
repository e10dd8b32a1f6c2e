"""Single forms that are accepted: layers, as one node or a few."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import ModelProto

from tests.support.onnx_models import Model
from tests.support.replicas.base import MAP, Array, Dims, Replica, finish, weight


def item(
    make: Callable[[Model], object], shape: Dims = MAP, size: int | None = None, whole: bool = False, **options: Any
) -> Replica:
    """A few nodes."""

    def build() -> ModelProto:
        model = Model(shape)
        make(model)
        return finish(model, **options)

    return Replica(build, size=size, whole=whole)


def operand(model: Model, name: str, given: Any) -> str:
    """A weight of a shape that is a tuple, a constant from anything else, nothing from None."""
    if given is None:
        return ""
    return weight(model, name, *given) if isinstance(given, tuple) else model.constant(name, given)


def one(
    op: str,
    *given: Any,
    shape: Dims = MAP,
    first: bool = True,
    opset: int = 17,
    whole: bool = False,
    **attributes: Any,
) -> Replica:
    """One node on the input and what is given as further operands; `first`: the input comes first."""

    def make(model: Model) -> None:
        operands = [operand(model, f"w{index}", values) for index, values in enumerate(given)]
        model.node(op, ["input", *operands] if first else [*operands, "input"], "y", "the_node", **attributes)

    return item(make, shape, opset=opset, whole=whole)


def floats(*values: float) -> Array:
    """A vector of float32."""
    return np.array(values, np.float32)


def scalar(value: float) -> Array:
    """A float32 of no dimension."""
    return np.array(value, np.float32)


def integers(*values: int) -> Array:
    """A vector of int64."""
    return np.array(values, np.int64)


def numbers(*shape: int) -> Array:
    """Random float32, none near zero."""
    values = np.random.default_rng(7).uniform(0.5, 1.5, shape)
    return np.asarray(values * np.where(np.indices(shape).sum(0) % 2, 1, -1), np.float32)


CONVOLUTIONS = {
    "defaults": one("Conv", (6, 4, 3, 3)),
    "bias": one("Conv", (6, 4, 3, 3), (6,)),
    "1x1": one("Conv", (6, 4, 1, 1), (6,), kernel_shape=[1, 1]),
    "5x5": one("Conv", (6, 4, 5, 5), (6,), pads=[2, 2, 2, 2]),
    "3x5": one("Conv", (6, 4, 3, 5), (6,), pads=[1, 2, 1, 2]),
    "4x1": one("Conv", (6, 4, 4, 1), (6,)),
    "stride-2": one("Conv", (6, 4, 3, 3), (6,), strides=[2, 2], pads=[1, 1, 1, 1]),
    "strides-1-3": one("Conv", (6, 4, 3, 3), (6,), strides=[1, 3]),
    "dilated": one("Conv", (6, 4, 3, 3), (6,), dilations=[2, 2], pads=[2, 2, 2, 2]),
    "dilations-1-3": one("Conv", (6, 4, 3, 2), dilations=[1, 3], strides=[2, 1]),
    "groups-2": one("Conv", (6, 2, 3, 3), (6,), group=2, pads=[1, 1, 1, 1]),
    "depthwise": one("Conv", (4, 1, 3, 3), (4,), group=4, pads=[1, 1, 1, 1]),
    "depthwise-multiplier": one("Conv", (12, 1, 3, 3), (12,), group=4, strides=[2, 2]),
    "groups-dilated-without-bias": one("Conv", (8, 2, 3, 3), group=2, dilations=[2, 1], pads=[0, 1, 2, 1]),
    "asymmetric-pads": one("Conv", (6, 4, 3, 3), (6,), pads=[0, 1, 2, 3]),
    "same-upper": one("Conv", (6, 4, 4, 4), (6,), auto_pad="SAME_UPPER"),
    "same-lower": one("Conv", (6, 4, 4, 4), (6,), auto_pad="SAME_LOWER"),
    "same-upper-strided": one("Conv", (6, 4, 3, 3), (6,), auto_pad="SAME_UPPER", strides=[2, 2], shape=("n", 4, 10, 9)),
    "same-lower-strided": one("Conv", (6, 4, 3, 3), (6,), auto_pad="SAME_LOWER", strides=[2, 2], shape=("n", 4, 10, 9)),
    "valid": one("Conv", (6, 4, 3, 3), (6,), auto_pad="VALID", strides=[2, 2]),
    "opset-7": one("Conv", (6, 4, 3, 3), (6,), opset=7, group=1, dilations=[1, 1], pads=[1, 1, 1, 1]),
    "opset-22": one("Conv", (6, 4, 3, 3), (6,), opset=22, pads=[1, 1, 1, 1]),
    "one-pixel": one("Conv", (6, 4, 3, 3), (6,), pads=[1, 1, 1, 1], shape=("n", 4, 1, 1)),
}


POOLS = {
    "max-default-stride": one("MaxPool", kernel_shape=[3, 3]),
    "average-default-stride": one("AveragePool", kernel_shape=[3, 2]),
    "max-ceil": one("MaxPool", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
    "max-ceil-pads": one("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1),
    "max-ceil-window-in-pads": one("MaxPool", kernel_shape=[1, 1], strides=[2, 2], ceil_mode=1, shape=("n", 4, 8, 8)),
    "average-ceil": one("AveragePool", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
    "average-ceil-include-pad": one(
        "AveragePool",
        kernel_shape=[3, 3],
        strides=[2, 2],
        pads=[1, 1, 1, 1],
        ceil_mode=1,
        count_include_pad=1,
        opset=19,
    ),
    "average-pads": one("AveragePool", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    "average-pads-included": one("AveragePool", kernel_shape=[3, 3], pads=[1, 0, 2, 1], count_include_pad=1),
    "average-same-upper": one("AveragePool", kernel_shape=[2, 2], auto_pad="SAME_UPPER"),
    "average-same-lower-strided": one("AveragePool", kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_LOWER"),
    "average-dilated": one("AveragePool", kernel_shape=[2, 2], dilations=[2, 3], opset=19),
    "average-opset-7": one("AveragePool", kernel_shape=[3, 3], strides=[3, 3], opset=7),
    "max-same-upper": one("MaxPool", kernel_shape=[2, 2], strides=[2, 2], auto_pad="SAME_UPPER"),
    "max-same-lower": one("MaxPool", kernel_shape=[2, 2], auto_pad="SAME_LOWER"),
    "max-valid": one("MaxPool", kernel_shape=[2, 3], strides=[2, 2], auto_pad="VALID"),
    "max-dilated": one("MaxPool", kernel_shape=[2, 2], dilations=[3, 2], strides=[1, 2], opset=12),
    "max-asymmetric-pads": one("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1]),
    "max-opset-8": one("MaxPool", kernel_shape=[2, 2], strides=[2, 2], storage_order=0, opset=8),
    "global-average": one("GlobalAveragePool"),
    "global-max": one("GlobalMaxPool"),
    "reduce-mean-axes": one("ReduceMean", axes=[-1, -2]),
    "reduce-mean-axes-flat": one("ReduceMean", opset=13, axes=[2, 3], keepdims=0),
    "reduce-mean-operand": one("ReduceMean", integers(-2, -1), opset=18, keepdims=1),
    "reduce-mean-operand-flat": one("ReduceMean", integers(3, -2), opset=20, keepdims=0),
    "reduce-mean-noop": one("ReduceMean", opset=18, noop_with_empty_axes=1),
    "reduce-mean-noop-empty": one("ReduceMean", integers(), opset=18, noop_with_empty_axes=1),
    "reduce-mean-noop-axes": one("ReduceMean", integers(2, 3), opset=18, noop_with_empty_axes=1),
}


MATRIX = ("n", 6)


FULLY_CONNECTED = {
    "gemm-alpha-beta": one("Gemm", (6, 5), (5,), shape=MATRIX, alpha=0.5, beta=-2.0),
    "gemm-beta-zero": one("Gemm", (5, 6), (5,), shape=MATRIX, beta=0.0, transB=1),
    "gemm-without-c": one("Gemm", (5, 6), shape=MATRIX, transB=1, opset=11),
    "gemm-scalar-c": one("Gemm", (5, 6), scalar(0.7), shape=MATRIX, transB=1),
    "gemm-c-of-one": one("Gemm", (5, 6), floats(0.7), shape=MATRIX, transB=1),
    "gemm-c-row": one("Gemm", (5, 6), numbers(1, 5), shape=MATRIX, transB=1),
    "gemm-c-column": one("Gemm", (5, 6), numbers(3, 1), shape=(3, 6), transB=1, whole=True),
    "gemm-c-matrix": one("Gemm", (5, 6), numbers(3, 5), shape=(3, 6), transB=1, beta=0.5, whole=True),
    "gemm-trans-a": one("Gemm", (3, 5), (5,), shape=(3, 6), transA=1, whole=True),
    "gemm-trans-a-b": one(
        "Gemm", (5, 3), numbers(6, 5), shape=(3, 6), transA=1, transB=1, alpha=2.0, beta=0.25, whole=True
    ),
    "gemm-opset-7": one("Gemm", (6, 5), (5,), shape=MATRIX, opset=7),
    "gemm-of-two-paths": item(
        lambda m: m.node("Gemm", [m.gemm("input", "a", 6, 5), m.gemm("input", "b", 6, 5)], "y", transB=1),
        (3, 6),
        whole=True,
    ),
    "matmul": one("MatMul", (6, 5), shape=MATRIX),
    "matmul-constant-first": one("MatMul", (5, 3), shape=(3, 6), first=False, whole=True),
    "matmul-vector": one("MatMul", (6,), shape=MATRIX),
    "matmul-3d": one("MatMul", (6, 5), shape=("n", 3, 6), whole=True),
    "matmul-4d": one("MatMul", numbers(2, 6, 5), shape=("n", 2, 3, 6)),
    "matmul-of-two-paths": item(
        lambda m: m.node("MatMul", ["input", m.node("Transpose", ["input"], "t", perm=[0, 1, 3, 2])], "y")
    ),
}


def chain(*steps: tuple[Any, ...]) -> Callable[[Model], None]:
    """Nodes one behind the other, each an operator, further operands and a dict of attributes in the end perhaps."""

    def make(model: Model) -> None:
        x = "input"
        for index, (op, *given) in enumerate(steps):
            attributes = given.pop() if given and isinstance(given[-1], dict) else {}
            operands = [operand(model, f"w{index}_{place}", values) for place, values in enumerate(given)]
            x = model.node(op, [x, *operands], f"y{index}", f"node{index}", **attributes)

    return make


def two_paths(op: str, **attributes: Any) -> Replica:
    """An operator on two convolutions of the input."""
    return item(lambda m: m.node(op, [m.conv("input", "a", 4, 5), m.conv("input", "b", 4, 5)], "y", **attributes))


ELEMENTWISE = {
    **{f"{op.lower()}-of-two-paths": two_paths(op) for op in ("Add", "Sub", "Mul", "Sum")},
    **{f"{op.lower()}-per-channel": one(op, numbers(4, 1, 1)) for op in ("Add", "Sub", "Mul", "Div")},
    **{f"{op.lower()}-scalar": one(op, scalar(1.7)) for op in ("Add", "Sub", "Mul", "Div")},
    **{f"constant-{op.lower()}": one(op, scalar(1.7), first=False) for op in ("Sub", "Mul")},
    **{f"{op.lower()}-opset-7": one(op, numbers(1, 4, 1, 1), opset=7) for op in ("Add", "Sub", "Mul", "Div")},
    "div-of-two-paths": item(
        lambda m: m.node("Div", ["input", m.node("Clip", ["input", m.constant("l", scalar(0.5))], "c")], "y")
    ),
    "constant-div": item(
        lambda m: m.node(
            "Div",
            [m.constant("k", numbers(4, 1, 1)), m.node("Clip", ["input", m.constant("l", scalar(0.5))], "c")],
            "y",
        )
    ),
    "add-row": one("Add", numbers(9)),
    "add-map": one("Mul", numbers(9, 9)),
    "add-to-more-dimensions": one("Add", numbers(1, 2, 1, 1, 1), shape=(1, 4, 5, 5)),
    "add-widens": one("Add", numbers(1, 4, 5, 7), shape=("n", 4, 1, 7)),
    "sum-of-one": one("Sum"),
    "sum-of-three": item(
        lambda m: m.node("Sum", ["input", m.node("Relu", ["input"], "a"), m.constant("k", numbers(4, 1, 1))], "y")
    ),
    "sum-of-seven": item(
        lambda m: m.node(
            "Sum", ["input", *[m.node("LeakyRelu", ["input"], f"a{i}", alpha=i / 7) for i in range(6)]], "y"
        )
    ),
    "add-to-itself": item(lambda m: m.node("Add", ["input", "input"], "y")),
    "relu": one("Relu"),
    "relu-of-matrix": one("Relu", shape=MATRIX),
    "leaky-relu": one("LeakyRelu"),
    "leaky-relu-alpha": one("LeakyRelu", alpha=0.3),
    "leaky-relu-opset-7": one("LeakyRelu", alpha=-0.2, opset=7),
    "clip-attributes": one("Clip", min=-0.5, max=0.75, opset=7),
    "clip-attribute-max": one("Clip", max=0.75, opset=10),
    "clip-no-attributes": one("Clip", opset=7),
    "clip-operands": one("Clip", scalar(-0.5), scalar(0.75), opset=11),
    "clip-max-only": one("Clip", None, scalar(0.75), opset=13),
    "clip-min-only": one("Clip", scalar(0.0), opset=13),
    "clip-nothing": one("Clip", opset=13),
    "relu6": item(chain(("Conv", (6, 4, 3, 3), (6,)), ("Clip", scalar(0), scalar(0.5)))),
    "exporter-normalisation": item(
        chain(("Sub", numbers(1, 3, 1, 1)), ("Div", numbers(1, 3, 1, 1)), ("Conv", (4, 3, 3, 3), (4,))), ("n", 3, 8, 8)
    ),
}


SOFTMAXES = {
    **{
        f"{op.lower()}{'' if axis is None else f'-axis{axis}'}-rank{len(shape)}-opset{opset}": one(
            op, shape=shape, opset=opset, **({} if axis is None else {"axis": axis})
        )
        for op in ("Softmax", "LogSoftmax")
        for opset in (9, 12, 13, 25)
        for shape, axes in (
            (MATRIX, (None, 1)),
            (("n", 3, 4, 5), (None, 1, 2, 3)),
        )
        for axis in axes
    },
    "softmax-axis-2-rank4-opset11": one("Softmax", shape=("n", 3, 4, 5), opset=11, axis=-2),
    "softmax-axis-3-rank4-opset13": one("Softmax", shape=("n", 3, 4, 5), opset=13, axis=-3),
    "softmax-axis0-opset13": one("Softmax", shape=(3, 6), opset=13, axis=0, whole=True),
    "softmax-axis0-opset9": one("Softmax", shape=(3, 6), opset=9, axis=0, whole=True),
    "softmax-of-large-numbers": item(chain(("Mul", scalar(300)), ("Softmax",)), MATRIX),
}
