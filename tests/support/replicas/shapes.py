"""Single forms that are accepted: what moves values, and shape arithmetic."""

from __future__ import annotations

import numpy as np
from onnx import numpy_helper

from tests.support.onnx_models import Model
from tests.support.replicas.base import FLOAT, INT64
from tests.support.replicas.layers import MATRIX, chain, floats, integers, item, numbers, one, scalar, two_paths

SHAPES = {
    **{
        f"flatten-axis{axis}": one("Flatten", shape=(2, 3, 4, 5), axis=axis, whole=axis not in (1, -3))
        for axis in (0, 1, 2, 3, 4, -1, -3)
    },
    "flatten-default": one("Flatten", opset=7),
    "flatten-axis2-inside": item(
        chain(
            ("Conv", (6, 4, 3, 3)),
            ("Flatten", {"axis": 2}),
            ("Gemm", (3, 49), {"transB": 1}),
            ("Reshape", integers(-1, 18)),
        )
    ),
    "flatten-axis2-opset-7": one("Flatten", shape=(2, 3, 4, 5), axis=2, opset=7, whole=True),
    "reshape-0--1": one("Reshape", integers(0, -1)),
    "reshape--1": one("Reshape", integers(-1, 4 * 81)),
    "reshape-fixed": one("Reshape", integers(2, 4 * 81), shape=(2, 4, 9, 9)),
    "reshape-0-0--1": one("Reshape", integers(0, 0, -1)),
    "reshape-0--1-9": one("Reshape", integers(0, -1, 9), opset=7),
    "reshape-allowzero": one("Reshape", integers(-1, 4 * 81), allowzero=1),
    "reshape-to-map": item(
        chain(("Flatten",), ("Reshape", integers(0, 9, 6, 6)), ("Conv", (5, 9, 3, 3), (5,), {"pads": [1] * 4}))
    ),
    "reshape-same": item(chain(("Conv", (6, 4, 3, 3)), ("Reshape", integers(0, 0, 0, 0)), ("Relu",))),
    "transpose": one("Transpose", perm=[0, 2, 3, 1]),
    "transpose-default": one("Transpose", shape=(2, 3, 4, 5), whole=True),
    "transpose-matrix": one("Transpose", shape=(3, 6), perm=[1, 0], whole=True),
    "transpose-there-and-back": item(
        chain(
            ("Conv", (6, 4, 3, 3), (6,)),
            ("Transpose", {"perm": [0, 2, 3, 1]}),
            ("Relu",),
            ("Transpose", {"perm": [0, 3, 1, 2]}),
            ("Conv", (5, 6, 3, 3), (5,)),
        )
    ),
    "shuffle": item(
        chain(
            ("Conv", (6, 4, 1, 1), (6,)),
            ("Reshape", integers(0, 2, 3, 9, 9)),
            ("Transpose", {"perm": [0, 2, 1, 3, 4]}),
            ("Reshape", integers(0, 6, 9, 9)),
            ("Conv", (6, 3, 3, 3), {"group": 2}),
        )
    ),
    "concat-channels": two_paths("Concat", axis=1),
    "concat-negative-axis": two_paths("Concat", axis=-1),
    "concat-rows-opset-7": item(
        lambda m: (
            m.node("Concat", [m.conv("input", "a", 4, 5), "k"], "y", axis=2)
            if m.constant("k", numbers(2, 5, 3, 9))
            else ""
        ),
        (2, 4, 9, 9),
        opset=7,
    ),
    "concat-of-itself": item(lambda m: m.node("Concat", ["input", "input", "input"], "y", axis=1)),
    "concat-of-one": item(lambda m: m.node("Concat", ["input"], "y", axis=1)),
    "concat-matrices": item(lambda m: m.node("Concat", [m.gemm("input", "a", 6, 3), "input"], "y", axis=1), MATRIX),
    "identity": one("Identity"),
    "identity-between": item(chain(("Conv", (6, 4, 3, 3)), ("Identity",), ("Relu",), ("Identity",))),
    "pad-attribute": one("Pad", pads=[0, 0, 1, 2, 0, 0, 3, 0], value=0.5, opset=7),
    "pad-operand": one("Pad", integers(0, 0, 1, 2, 0, 0, 3, 0), scalar(0.5), opset=11, mode="constant"),
    "pad-default-value": one("Pad", integers(0, 0, 1, 1, 0, 0, 1, 1), opset=13),
    "pad-negative": one("Pad", integers(0, 0, -1, 2, 0, 0, 1, -3), scalar(-1.5), opset=13),
    "pad-channels": one("Pad", integers(0, 1, 0, 0, 0, 3, 0, 0), opset=13),
    "pad-axes": one("Pad", integers(1, 2, 0, 1), scalar(0.25), integers(2, -1), opset=18),
    "pad-before-conv": item(
        chain(("Pad", integers(0, 0, 1, 1, 0, 0, 1, 1)), ("Conv", (6, 4, 3, 3), (6,)), ("Relu",)), opset=13
    ),
    "reduce-mean-of-open-maps": item(
        chain(("Conv", (6, 4, 3, 3)), ("ReduceMean", {"axes": [2, 3], "keepdims": 0}), ("Gemm", (6, 5))),
        ("n", 4, None, None),
        size=9,
    ),
    "cast-to-the-same": item(chain(("Conv", (6, 4, 3, 3)), ("Cast", {"to": FLOAT}), ("Relu",))),
}


def slope(model: Model, training: str = "") -> None:
    """Gemm, Dropout with ratio (and mode) as operands, Gemm."""
    operands = [model.gemm("input", "a", 6, 5), model.constant("ratio", scalar(0.5))]
    operands += [model.constant(training, np.array(False))] if training else []
    model.gemm(model.node("Dropout", operands, "d"), "y", 5, 4)


def cast_there_and_back(model: Model) -> None:
    """float16 weights that a float32 model casts when it runs."""
    names = [
        model.constant("w16", numbers(6, 4, 3, 3).astype(np.float16)),
        model.constant("b16", numbers(6).astype(np.float16)),
    ]
    casts = [model.node("Cast", [name], f"{name}_32", to=FLOAT) for name in names]
    model.node("Relu", [model.node("Conv", ["input", *casts], "c")], "y")


def folded_shape(model: Model) -> None:
    """Every operator that exporters compute shapes with."""
    n, c = model.node, model.constant
    maps = model.conv("input", "a", 4, 6)
    dims = n("Shape", [maps], "dims")  # n, 6, 9, 9
    batch = n("Slice", [dims, c("0", integers(0)), c("1", integers(1))], "batch")
    sides = n("Slice", [dims, c("-2", integers(-2)), c("9999", integers(9999)), "0", "1"], "sides")
    row = n("Squeeze", [n("Gather", [sides, "0"], "row_"), "0"], "row")
    column = n("Gather", [sides, c("one", np.array(1))], "column", axis=0)
    area = n("Mul", [n("Unsqueeze", [row, "0"], "rows"), n("Unsqueeze", [column, "0"], "columns")], "area")
    features = n("Mul", [area, n("Cast", [n("Gather", [dims, "1"], "c_")], "c64", to=INT64)], "features")
    half = n("Div", [features, c("2", integers(2))], "half")
    two = n("ConstantOfShape", ["1"], "two", value=numpy_helper.from_array(np.array([2])))
    rest = n("Sub", [n("Add", [half, two], "more"), n("Constant", [], "k", value_ints=[2])], "rest")
    shape = n("Concat", [batch, two, rest], "shape", axis=0)
    n("Reshape", [maps, shape], "y")


def legacy_shape(model: Model) -> None:
    """The same with attributes, before opset 10 to 13."""
    n = model.node
    maps = model.conv("input", "a", 4, 6)
    dims = n("Shape", [maps], "dims")
    batch = n("Slice", [dims], "batch", starts=[0], ends=[1], axes=[0])
    scalar_batch = n("Squeeze", [batch], "b", axes=[0])
    rest = n("Constant", [], "k", value=numpy_helper.from_array(np.array([-1])))
    shape = n("Concat", [n("Unsqueeze", [scalar_batch], "u", axes=[0]), rest], "shape", axis=0)
    n("Reshape", [maps, shape], "y")


def floating_shape(model: Model) -> None:
    """Sizes computed in float32 and cast back, as old exporters of interpolations and pools do."""
    n, c = model.node, model.constant
    maps = model.conv("input", "a", 4, 6)
    channels = n("Gather", [n("Shape", [maps], "dims"), c("i", integers(1))], "channels")
    as_float = n("Cast", [channels], "f", to=FLOAT)
    half = n(
        "Cast", [n("Div", [n("Mul", [as_float, c("three", floats(3))], "m"), c("six", floats(6))], "d")], "h", to=INT64
    )
    n("Reshape", [maps, n("Concat", [c("z", integers(0)), half, c("r", integers(-1))], "shape", axis=0)], "y")


def constant_of_shape(model: Model) -> None:
    """A bias of zeros and weights of one value that the file does not hold."""
    n, c = model.node, model.constant
    zeros = n("ConstantOfShape", [c("6", integers(6))], "zeros")
    value = numpy_helper.from_array(floats(0.25))
    ones = n("ConstantOfShape", [c("shape", integers(6, 4, 3, 3))], "w", value=value)
    n("Relu", [n("Conv", ["input", ones, zeros], "a")], "y")


LAYERS_AND_FOLDS = {
    "dropout-opset-7": item(
        lambda m: m.gemm(m.node("Dropout", [m.gemm("input", "a", 6, 5)], "d", ratio=0.5), "y", 5, 4), MATRIX, opset=7
    ),
    "dropout-ratio-operand": item(slope, MATRIX, opset=12),
    "dropout-training-false": item(lambda m: slope(m, "training"), MATRIX, opset=13),
    "dropout-opset-22": item(lambda m: slope(m, "training"), MATRIX, opset=22),
    "dropout-mask-as-dead-end": item(
        lambda m: m.gemm(m.node("Dropout", [m.node("Relu", ["input"], "a")], ["d", "mask"]), "y", 6, 4),
        MATRIX,
        opset=10,
    ),
    **{
        f"norm-first-opset-{opset}": item(lambda m: m.batch_norm("input", "y", 4, epsilon=1e-3), opset=opset)
        for opset in (7, 9, 14, 15)
    },
    "norm-of-matrix": item(lambda m: m.batch_norm(m.gemm("input", "a", 6, 5), "y", 5), MATRIX),
    "norm-after-relu": item(lambda m: m.batch_norm(m.node("Relu", [m.conv("input", "a", 4, 5)], "r"), "y", 5)),
    "norm-after-pool": item(lambda m: m.batch_norm(m.node("MaxPool", ["input"], "p", kernel_shape=[2, 2]), "y", 4)),
    "norm-spatial-1": item(lambda m: m.batch_norm(m.conv("input", "a", 4, 5), "y", 5, spatial=1), opset=7),
    "lrn": one("LRN", size=5, alpha=0.5, beta=0.6, bias=2.0),
    "lrn-defaults": one("LRN", size=3),
    "lrn-wider-than-channels": one("LRN", size=11, alpha=1.5),
    "shape-arithmetic": item(folded_shape),
    "shape-arithmetic-by-attributes": item(legacy_shape, opset=9, ir=4, outputs={"y": ("n", 486)}),
    "shape-arithmetic-in-floats": item(floating_shape),
    "constant-of-shape": item(constant_of_shape),
}
