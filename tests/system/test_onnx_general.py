"""Rules of general operators: which op each spelling becomes, and that it means what onnxruntime computes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from tests.support.onnx_models import Model, random_input
from tests.support.onnx_single import (
    FIXED,
    MAP,
    MATRIX,
    OPEN_SIZE,
    Shaped,
    accept,
    accept_run_time,
    ints,
    load_run_time,
    norm_parameters,
    refuse,
    run_time,
    single,
    weights,
)
from vgg16gpu.compiler.graph.ops import (
    Arithmetic,
    AxisSoftmax,
    BatchNorm,
    Clip,
    Concat,
    Conv,
    Flatten,
    Gemm,
    GeneralBatchNorm,
    GeneralConv,
    GlobalPool,
    Identity,
    LocalResponseNorm,
    MatMul,
    Op,
    Pool,
    Softmax,
)
from vgg16gpu.compiler.onnx.load import load
from vgg16gpu.errors import ModelError

FLOAT32 = np.float32


# Windows


@pytest.mark.parametrize(
    ("shape", "weight", "options", "kind"),
    [
        (MAP, (6, 2, 3, 3), {"group": 2}, GeneralConv),
        (MAP, (4, 1, 3, 3), {"group": 4, "pads": [1, 1, 1, 1]}, GeneralConv),
        (MAP, (5, 4, 3, 3), {"dilations": [2, 1]}, GeneralConv),
        (MAP, (5, 4, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, Conv),
        (MAP, (5, 4, 2, 2), {"auto_pad": "SAME_LOWER", "strides": [2, 3]}, Conv),
        (MAP, (5, 4, 1, 1), {"auto_pad": "SAME_UPPER", "strides": [2, 3]}, Conv),
        (MAP, (5, 4, 2, 1), {"auto_pad": "SAME_LOWER", "strides": [5, 4]}, Conv),
        (OPEN_SIZE, (5, 4, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, GeneralConv),
        (OPEN_SIZE, (5, 4, 2, 4), {"auto_pad": "SAME_LOWER"}, Conv),
        (OPEN_SIZE, (4, 2, 3, 3), {"group": 2, "dilations": [1, 2]}, GeneralConv),
        (("n", None, 9, 7), (4, 2, 3, 3), {"group": 2}, GeneralConv),
    ],
)
def test_conv(tmp_path: Path, shape: Shaped, weight: Sequence[int], options: dict[str, Any], kind: type[Op]) -> None:
    if shape[1] is None:
        graph = load(single(tmp_path, "Conv", shape, [weights(*weight)], **options))
        assert isinstance(graph.ops[0], kind)
        return
    op = accept(single(tmp_path, "Conv", shape, [weights(*weight), weights(weight[0])], **options))
    assert isinstance(op, kind)


def test_weights_at_run_time() -> None:
    operands = {"x": weights(2, 4, 9, 7), "w": random_input((6, 4, 3, 2), 1), "b": weights(6)}
    graph = accept_run_time("Conv", operands, strides=[2, 1])
    assert [value.name for value in graph.inputs] == ["x", "w", "b"]
    assert not graph.constants
    assert isinstance(graph.ops[0], GeneralConv)
    accept_run_time("Conv", {"x": operands["x"], "w": operands["w"]}, pads=[1, 0, 0, 1])


@pytest.mark.parametrize(
    ("op", "options"),
    [
        ("MaxPool", {"ceil_mode": 1, "strides": [2, 2]}),
        ("MaxPool", {"ceil_mode": 1, "strides": [3, 3], "pads": [1, 1, 1, 1]}),
        ("MaxPool", {"dilations": [2, 3]}),
        ("MaxPool", {"dilations": [2, 2], "pads": [1, 1, 1, 1], "strides": [2, 2], "ceil_mode": 1}),
        ("MaxPool", {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
        ("MaxPool", {"auto_pad": "SAME_LOWER", "strides": [2, 3]}),
        ("AveragePool", {"ceil_mode": 1, "strides": [2, 2]}),
        ("AveragePool", {"ceil_mode": 1, "strides": [3, 2], "pads": [1, 1, 0, 1]}),
        ("AveragePool", {"ceil_mode": 1, "strides": [3, 2], "pads": [1, 1, 0, 1], "count_include_pad": 1}),
        ("AveragePool", {"dilations": [2, 2], "opset": 19}),
        ("AveragePool", {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
        ("AveragePool", {"auto_pad": "SAME_LOWER", "strides": [2, 2], "count_include_pad": 1}),
        ("AveragePool", {"auto_pad": "VALID", "strides": [2, 2], "ceil_mode": 1, "opset": 19}),
    ],
)
@pytest.mark.parametrize("shape", [MAP, OPEN_SIZE])
def test_pools(tmp_path: Path, op: str, options: dict[str, Any], shape: Shaped) -> None:
    options = {"kernel_shape": [3, 3], **options}
    path = single(tmp_path, op, shape, [], **options)
    assert isinstance(load(path).ops[0], Pool)
    if shape == MAP:
        accept(path)


def test_rounding_up_is_dropped_where_it_changes_nothing(tmp_path: Path) -> None:
    def window(shape: Shaped, **options: Any) -> Any:
        pool = load(single(tmp_path, "MaxPool", shape, [], kernel_shape=[2, 2], ceil_mode=1, **options)).ops[0]
        assert isinstance(pool, Pool)
        return pool.window

    assert not window(("n", 4, 8, 6), strides=[2, 2]).ceil
    assert window(("n", 4, 9, 6), strides=[2, 2]).ceil
    assert window(OPEN_SIZE, strides=[2, 2]).ceil
    assert not window(OPEN_SIZE).ceil


@pytest.mark.parametrize("options", [{"size": 3}, {"size": 5, "alpha": 0.5, "beta": 0.6, "bias": 2.0}])
def test_lrn(tmp_path: Path, options: dict[str, Any]) -> None:
    assert isinstance(accept(single(tmp_path, "LRN", MAP, [], **options)), LocalResponseNorm)


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 5), (2, 4, 3, 2), (2, 4, 3, 2, 2)])
def test_batch_norm_of_any_rank(shape: tuple[int, ...]) -> None:
    names = ("scale", "shift", "mean", "var")
    operands = {"x": random_input(shape), **dict(zip(names, norm_parameters(4), strict=True))}
    op = accept_run_time("BatchNormalization", operands, epsilon=0.01).ops[0]
    assert isinstance(op, GeneralBatchNorm)
    assert op.operands == ("x", *names)


def test_batch_norm_of_a_matrix(tmp_path: Path) -> None:
    assert isinstance(accept(single(tmp_path, "BatchNormalization", MATRIX, norm_parameters(6))), GeneralBatchNorm)
    assert isinstance(accept(single(tmp_path, "BatchNormalization", MAP, norm_parameters(4))), BatchNorm)


# Products


@pytest.mark.parametrize(
    ("a", "b", "c", "options"),
    [
        ((3, 5), (5, 4), (1, 4), {}),
        ((3, 5), (5, 4), None, {}),
        ((3, 5), (5, 4), (), {}),
        ((3, 5), (5, 4), (3, 1), {}),
        ((3, 5), (5, 4), (3, 4), {"alpha": 0.5, "beta": 0.25}),
        ((6, 3), (4, 6), (4,), {"transA": 1, "transB": 1, "alpha": 2.0}),
        ((6, 3), (4, 6), (4,), {"transA": 1, "transB": 1, "beta": 0.0}),
    ],
)
def test_gemm(
    tmp_path: Path, a: Sequence[int], b: Sequence[int], c: Sequence[int] | None, options: dict[str, Any]
) -> None:
    operands = {"a": random_input(a), "b": random_input(b, 1), "c": None if c is None else random_input(c, 2)}
    assert isinstance(accept_run_time("Gemm", operands, **options).ops[0], MatMul)
    op = accept(single(tmp_path, "Gemm", a, [operands["b"], operands["c"]], **options))
    is_layer = not options.get("transA") and (c is None or math.prod(c[:-1]) == 1)
    assert isinstance(op, Gemm if is_layer else MatMul)


@pytest.mark.parametrize(
    ("b", "message"), [((4, 5), "5 columns meet 4 rows"), ((2, 5, 4), "its operands have 2 and 3 dimensions")]
)
def test_gemm_that_does_not_fit(b: Sequence[int], message: str) -> None:
    operands = {"a": random_input((3, 5)), "b": random_input(b)}
    with pytest.raises(ModelError, match=message):
        load_run_time(run_time("Gemm", operands), operands)


@pytest.mark.parametrize(
    ("a", "b"),
    [((3, 4), (4, 2)), ((4,), (2, 4, 3)), ((2, 1, 3, 4), (5, 4, 2)), ((2, 3, 4), (4,)), ((4,), (4,)), ((4,), (4, 3))],
)
def test_matmul(a: Sequence[int], b: Sequence[int]) -> None:
    assert isinstance(accept_run_time("MatMul", {"a": random_input(a), "b": random_input(b, 1)}).ops[0], MatMul)


def test_matmul_by_a_constant(tmp_path: Path) -> None:
    op = accept(single(tmp_path, "MatMul", MATRIX, [weights(6, 5)]))
    assert isinstance(op, Gemm)
    assert op.weight.shape == (5, 6)
    assert op.weight.flags.c_contiguous
    assert isinstance(accept(single(tmp_path, "MatMul", MAP, [weights(7, 5)])), MatMul)
    assert isinstance(accept(single(tmp_path, "MatMul", MATRIX, [weights(6)])), MatMul)


# Elements


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
@pytest.mark.parametrize("constant", [(), (7,), (4, 1, 1), (1, 4, 9, 1)])
@pytest.mark.parametrize("opset", [7, 13, 14])
def test_arithmetic_with_a_constant(tmp_path: Path, op: str, constant: Sequence[int], opset: int) -> None:
    made = accept(single(tmp_path, op, MAP, [random_input(constant, 1) + 2], opset=opset))
    assert isinstance(made, Arithmetic)
    assert made.function == op.lower()
    assert made.operands == ("input", "c0")


@pytest.mark.parametrize("count", [1, 2, 5, 6, 11])
def test_sum(count: int) -> None:
    operands = {f"x{index}": random_input((3, 4)[index % 2 :], index) for index in range(count)}
    ops = accept_run_time("Sum", operands).ops
    assert len(ops) == {1: 1, 2: 1, 5: 1, 6: 2, 11: 3}[count]
    assert isinstance(ops[-1], Identity if count == 1 else Arithmetic)
    assert all(len(op.operands) <= 5 for op in ops)
    assert [op.y for op in ops][-1] == "y"


@pytest.mark.parametrize(
    ("constants", "options", "numbers"),
    [
        ([], {"opset": 7, "min": -0.5, "max": 0.5}, (-0.5, 0.5)),
        ([], {"opset": 10, "max": 0.5}, (-math.inf, 0.5)),
        ([], {"opset": 13}, (-math.inf, math.inf)),
        ([FLOAT32(-0.5), FLOAT32(6)], {"opset": 11}, (-0.5, 6)),
        ([None, FLOAT32(0.5)], {"opset": 13}, (-math.inf, 0.5)),
        ([np.array([-0.5], FLOAT32)], {"opset": 13}, (-0.5, math.inf)),
    ],
)
def test_clip(tmp_path: Path, constants: Sequence[Any], options: dict[str, Any], numbers: tuple[float, float]) -> None:
    path = single(tmp_path, "Clip", MAP, constants, **options)
    op = load(path).ops[0] if any(np.ndim(value) for value in constants) else accept(path)
    assert isinstance(op, Clip)
    assert (op.low, op.high, op.operands) == (*numbers, ("input",))


def test_clip_with_bounds_at_run_time() -> None:
    x, low, high = random_input((3, 4)), np.array(-0.5, FLOAT32), np.array(0.5, FLOAT32)
    assert accept_run_time("Clip", {"x": x, "low": low, "high": high}).ops[0].operands == ("x", "low", "high")
    graph = accept_run_time("Clip", {"x": x, "low": low})
    assert [float(array) for array in graph.constants.values()] == [math.inf]
    graph = accept_run_time("Clip", {"x": x, "low": None, "high": high})
    assert graph.ops[0].operands == ("x", "y.0", "high")
    assert float(graph.constants["y.0"]) == -math.inf
    operands = {"x": x, "low": weights(3)}
    with pytest.raises(ModelError, match=r"its bound 'low' has shape .*; one number is needed"):
        load_run_time(run_time("Clip", operands), operands)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize(
    ("shape", "options", "span"),
    [
        (MAP, {"opset": 12}, (1, 3)),
        (MAP, {"opset": 11, "axis": 2}, (2, 3)),
        (MAP, {"opset": 9, "axis": -1}, (3, 3)),
        (MAP, {"opset": 13}, (3, 3)),
        (MAP, {"opset": 13, "axis": 1}, (1, 1)),
        (FIXED, {"opset": 13, "axis": 0}, (0, 0)),
        (FIXED, {"opset": 11, "axis": 0}, (0, 3)),
        (OPEN_SIZE, {"opset": 13, "axis": 1}, (1, 1)),
        (MATRIX, {"opset": 13}, None),
        (MATRIX, {"opset": 8}, None),
    ],
)
def test_softmax(tmp_path: Path, op: str, shape: Shaped, options: dict[str, Any], span: tuple[int, int] | None) -> None:
    made = accept(single(tmp_path, op, shape, [], **options))
    if span is None and op == "Softmax":
        assert isinstance(made, Softmax)
    else:
        assert isinstance(made, AxisSoftmax)
        assert (made.axis, made.last, made.log) == (*(span or (1, 1)), op == "LogSoftmax")


def test_masks_of_dropout_are_ones() -> None:
    for opset, operands in ((12, {"ratio": np.array(0.5, FLOAT32)}), (22, {})):
        given = {"x": random_input((3, 4, 5)), **operands}
        loaded = load_run_time(run_time("Dropout", given, ("y", "mask"), opset=opset), given)
        assert loaded.outputs == ("y", "mask")
        assert loaded.graph is not None
        assert loaded.graph.outputs == ("y",)
        assert [value.name for value in loaded.graph.inputs] == ["x"]  # the ratio is read by nobody
        mask = loaded.constants["mask"]
        assert mask.shape == (3, 4, 5)
        assert mask.all()
        assert mask.dtype == np.bool_
    given = {"x": random_input((3, 4, 5))}
    with pytest.raises(ModelError, match=r"its mask 'mask' is used; .* opset 12 or later"):  # before, nothing says what
        load_run_time(run_time("Dropout", given, ("y", "mask"), opset=9), given)


@pytest.mark.parametrize(("kind", "is_fine"), [("FLOAT", True), ("FLOAT16", True), ("DOUBLE", False), ("INT64", False)])
def test_casts(tmp_path: Path, kind: str, is_fine: bool) -> None:
    path = single(tmp_path, "Cast", MAP, [], to=TensorProto.DataType.Value(kind))
    if is_fine:
        assert isinstance(load(path).ops[0], Identity)
    else:
        refuse(path, f"it casts to {kind}; export the model in float32")


# What other nodes say of open sizes


def test_images_of_an_open_batch_are_not_mixed(tmp_path: Path) -> None:
    model = Model(MATRIX)
    model.node("Gemm", ["input", "input"], "y", name="it", transB=1)
    refuse(model.save(tmp_path / "m.onnx"), "it mixes the images of an open batch; export with a fixed batch")
    model = Model(("n", 1))
    model.node("MatMul", ["input", model.constant("one", weights(1))], "list")
    model.node("Add", ["input", "list"], "y", name="it")
    refuse(model.save(tmp_path / "m.onnx"), "it mixes the images of an open batch")


def test_branches_of_open_sizes(tmp_path: Path) -> None:
    model = Model(OPEN_SIZE)
    x = model.conv("input", "left", 4, 5)
    model.node("Add", [x, model.conv("input", "right", 4, 5)], "sum")
    model.node("Concat", ["sum", "input"], "both", axis=1)
    model.node("GlobalAveragePool", ["both"], "pool")
    model.node("Flatten", ["pool"], "flat")
    model.gemm("flat", "y", 9, 3)
    graph = load(model.save(tmp_path / "m.onnx"))
    assert [type(op) for op in graph.ops] == [Conv, Conv, Arithmetic, Concat, GlobalPool, Flatten, Gemm]
    accept(model.save(tmp_path / "m.onnx"))


# ---- Flatten of an open batch to several rows for each image


def in_rows(path: Path, *nodes: tuple[str, Sequence[Any], dict[str, Any]]) -> Path:
    """Flatten with axis 2, then these nodes one behind the other, their constants given."""
    model = Model(MAP)
    x = model.node("Flatten", ["input"], "rows", "flatten", axis=2)
    for index, (op, constants, options) in enumerate(nodes):
        names = [model.constant(f"c{index}_{place}", value) for place, value in enumerate(constants)]
        x = model.node(op, [x, *names], f"v{index}", "it" if index == len(nodes) - 1 else "", **options)
    return model.save(path / "m.onnx")


@pytest.mark.parametrize(
    "nodes",
    [
        [],
        [("Gemm", [weights(63, 5), weights(5)], {})],
        [("Gemm", [weights(5, 63), weights(1, 5)], {"transB": 1, "alpha": 0.5, "beta": 2.0})],
        [("Gemm", [weights(63, 5)], {}), ("Relu", [], {}), ("Identity", [], {}), ("Gemm", [weights(5, 3)], {})],
        [("MatMul", [weights(63, 5)], {}), ("LeakyRelu", [], {}), ("Clip", [np.float32(-0.1), np.float32(1)], {})],
    ],
)
@pytest.mark.parametrize("rest", [1, 2])
def test_rows_that_are_joined_again(tmp_path: Path, nodes: list[Any], rest: int) -> None:
    features = nodes[-1][1][0].shape if nodes and nodes[-1][0] in ("Gemm", "MatMul") else (63, 5)[: 2 if nodes else 1]
    count = features[0] if nodes and nodes[-1][2].get("transB") else features[-1]
    target = ints(-1, 4 * count) if rest == 1 else ints(-1, 2, 2 * count)
    accept(in_rows(tmp_path, *nodes, ("Reshape", [target], {})))


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (
            [("Softmax", [], {})],
            "'rows' has several rows for each image of an open batch; use Flatten with axis 1",
        ),
        ([("Shape", [], {})], "'rows' has several rows for each image"),
        ([("Relu", [], {})], "'v0' has several rows for each image of an open batch; export with a fixed batch"),
        ([("Reshape", [ints(-1, 63)], {})], "it turns 4 rows for each image into (-1, 63), which is not one row"),
        ([("Reshape", [ints(1, -1)], {})], "it turns 4 rows for each image into (1, -1)"),
        ([("Gemm", [weights(63, 5)], {"transA": 1})], "transA is 1"),
        ([("Gemm", [weights(62, 5)], {})], "62"),
        ([("MatMul", [weights(63)], {})], "it multiplies rows of images with (63,)"),
        ([("MatMul", [weights(2, 63, 5)], {})], "it multiplies rows of images with (2, 63, 5)"),
        ([("Add", [weights(63)], {})], "'rows' has several rows for each image"),
    ],
)
@pytest.mark.every_case
def test_rows_that_are_refused(tmp_path: Path, nodes: list[Any], message: str) -> None:
    refuse(in_rows(tmp_path, *nodes), message)
