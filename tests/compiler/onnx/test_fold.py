"""onnx_fold: constants against onnxruntime, marks of open dimensions, and how much memory it takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from tests.support.onnx_models import random_input
from tests.support.onnx_single import run_onnxruntime, run_time
from vgg16gpu.compiler.onnx.file import parse_onnx
from vgg16gpu.compiler.onnx.folding.budget import BASE_MEMORY, SPREAD, FoldError, FoldingBudget
from vgg16gpu.compiler.onnx.folding.fold import OPEN_BATCH, OPEN_SIZE, fold, shape_of
from vgg16gpu.compiler.onnx.load import load_model


def ints(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


FORMS: list[tuple[str, list[Any], dict[str, Any]]] = [
    *[(op, [ints(7, -7, 9, -9), ints(2, 2, -4, -4)], {}) for op in ("Add", "Sub", "Mul", "Div")],
    *[(op, [random_input((3, 1)), random_input((1, 4), 1)], {}) for op in ("Add", "Sub", "Mul", "Div")],
    ("Div", [np.int32([7, -7]), np.int32([-2])], {}),
    ("Concat", [ints(1, 2), ints(3), ints()], {"axis": 0}),
    ("Concat", [random_input((2, 3)), random_input((2, 1))], {"axis": -1}),
    ("Gather", [ints(5, 6, 7), np.array(-1)], {}),
    ("Gather", [ints(5, 6, 7), ints(0, 2)], {"axis": 0}),
    ("Gather", [random_input((3, 4)), np.array([[0, 1], [3, -1]])], {"axis": 1}),
    ("Slice", [ints(0, 1, 2, 3, 4), ints(1), ints(-1)], {}),
    ("Slice", [ints(0, 1, 2, 3, 4), ints(-1), ints(-(2**63)), ints(0), ints(-2)], {}),
    ("Slice", [random_input((3, 4)), ints(0, 1), ints(9, 3), ints(1, 0)], {}),
    ("Slice", [random_input((3, 4))], {"opset": 9, "starts": [1], "ends": [2], "axes": [1]}),
    ("Slice", [random_input((3, 4))], {"opset": 9, "starts": [1, 1], "ends": [2, 100]}),
    ("Squeeze", [random_input((1, 3, 1))], {}),
    ("Squeeze", [random_input((1, 3, 1)), ints(-1)], {}),
    ("Squeeze", [random_input((1, 3, 1))], {"opset": 11, "axes": [0]}),
    ("Unsqueeze", [np.array(3), ints(0)], {}),
    ("Unsqueeze", [random_input((2, 3)), ints(0, -1)], {}),
    ("Unsqueeze", [random_input((2, 3))], {"opset": 11, "axes": [1]}),
    ("Reshape", [random_input((2, 3, 4)), ints(0, -1)], {}),
    ("Reshape", [random_input((2, 3, 4)), ints(4, 6)], {"allowzero": 1}),
    ("Flatten", [random_input((2, 3, 4))], {"axis": 2}),
    ("Flatten", [random_input((2, 3, 4))], {"axis": -2}),
    ("Flatten", [random_input((2, 3, 4))], {"axis": 0}),
    ("Transpose", [random_input((2, 3, 4))], {"perm": [1, 2, 0]}),
    ("Transpose", [random_input((2, 3, 4))], {}),
    ("Identity", [ints(1, 2)], {}),
    ("Cast", [random_input((3,)) * 10], {"to": TensorProto.INT64}),
    ("Cast", [ints(0, 1, 300)], {"to": TensorProto.FLOAT}),
    ("Cast", [ints(0, 1, 300)], {"to": TensorProto.BOOL}),
    ("Cast", [ints(0, 1, 300)], {"to": TensorProto.INT32}),
    ("Shape", [random_input((2, 3, 4))], {}),
    ("Shape", [random_input((2, 3, 4))], {"start": -2, "end": 10}),
    ("ConstantOfShape", [ints(2, 3)], {}),
    ("ConstantOfShape", [ints()], {}),
    ("Clip", [random_input((2, 3)), np.array(-0.5, np.float32), np.array(0.5, np.float32)], {}),
    ("Clip", [random_input((2, 3)), None, np.array(0.5, np.float32)], {}),
    ("Clip", [random_input((2, 3))], {"opset": 9, "min": -0.25, "max": 0.75}),
    ("Clip", [np.int8([-128, -127, 5, 127]), np.array(-127, np.int8), np.array(7, np.int8)], {}),
    ("Clip", [np.uint8([0, 15, 16, 255]), np.array(0, np.uint8), np.array(15, np.uint8)], {}),
    *[(op, [random_input((2, 3))], {}) for op in ("Abs", "Ceil", "Exp", "Floor", "Neg", "Reciprocal", "Relu", "Sign")],
    *[(op, [np.abs(random_input((2, 3)))], {}) for op in ("Log", "Sqrt")],
    ("Round", [np.float32([-2.5, -1.5, -0.5, 0.5, 1.5, 2.4])], {}),
    ("Pow", [np.abs(random_input((2, 3))), np.array(2, np.float32)], {}),
    *[(op, [random_input((3, 1)), random_input((1, 4), 1)], {}) for op in ("Max", "Min", "Sum")],
    *[(op, [random_input((3, 1)), random_input((1, 4), 1), random_input((4,), 2)], {}) for op in ("Max", "Min", "Sum")],
    *[
        (f"Reduce{kind}", [random_input((2, 3, 4))], {"opset": 11, **options})
        for kind in ("L1", "L2", "Max", "Mean", "Min", "Sum")
        for options in ({}, {"axes": [1, -1]}, {"axes": [0], "keepdims": 0})
    ],
    ("ReduceSum", [random_input((2, 3, 4)), ints(1, 2)], {}),
    ("ReduceL2", [random_input((2, 3, 4)), ints(1, 2)], {"opset": 18}),
    ("ReduceSum", [random_input((2, 3)), ints()], {"noop_with_empty_axes": 1}),
    ("ReduceSum", [random_input((2, 3)), ints()], {"noop_with_empty_axes": 0}),
]


@pytest.mark.parametrize(("op", "operands", "options"), FORMS)
@pytest.mark.every_case
def test_constants(op: str, operands: Sequence[Any], options: dict[str, Any]) -> None:
    named = {f"c{index}": array for index, array in enumerate(operands) if array is not None}
    given = {f"c{index}": array for index, array in enumerate(operands)}
    content = run_time(op, given, **options)
    loaded = load_model(parse_onnx(content), bound=named)
    assert loaded.graph is None
    (expected,) = run_onnxruntime(content, named).values()
    got = loaded.constants["y"]
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_float16_is_rounded() -> None:
    given = np.float32([0.1, 1e-9, 6e4])
    rounded = fold("Cast", {"to": TensorProto.FLOAT16}, [given], FoldingBudget())
    assert rounded.dtype == np.float32
    np.testing.assert_array_equal(rounded, given.astype(np.float16))


@pytest.mark.parametrize(
    ("op", "operands", "attributes", "message"),
    [
        ("Div", [ints(1), ints(0)], {}, "divides by zero"),
        ("Add", [ints(1), np.float32([1])], {}, "element types int64 and float32"),
        ("Add", [ints(1, 2), ints(1, 2, 3)], {}, "do not fit"),
        ("Gather", [ints(1, 2), ints(2)], {}, "do not fit"),
        ("Gather", [ints(1, 2), ints(0)], {"axis": 3}, "do not fit"),
        ("Concat", [ints(1), np.array([[1]])], {"axis": 0}, "do not fit"),
        ("Slice", [ints(1, 2), ints(0), ints(1), ints(5)], {}, "do not fit"),
        ("Slice", [ints(1, 2), ints(0), ints(1), ints(0), ints(0)], {}, "do not fit"),
        ("Slice", [ints(1, 2)], {}, "do not fit"),
        ("Reshape", [ints(1, 2), ints(3)], {}, "do not fit"),
        ("Reshape", [ints(1, 2), ints(1, 1, 0)], {}, "do not fit"),
        ("Flatten", [ints(1, 2)], {"axis": 3}, "axis is 3 for 1 dimensions"),
        ("Transpose", [ints(1, 2)], {"perm": [0, 0]}, "do not fit"),
        ("Squeeze", [ints(1, 2), ints(0)], {}, "do not fit"),
        ("Cast", [ints(1)], {"to": TensorProto.BFLOAT16}, "it casts to BFLOAT16"),
        ("Cast", [ints(1)], {"to": TensorProto.STRING}, "it casts to STRING"),
        ("ConstantOfShape", [ints(-1)], {}, "is not possible"),
        ("ConstantOfShape", [ints(2)], {"value": ints(1, 2)}, "with 2 values is not possible"),
        ("Clip", [np.int8([1]), np.uint8(0)], {}, r"its bound is uint8 of shape \(\) for int8"),
        ("Clip", [np.int8([1]), np.int8([0, 1])], {}, r"its bound is int8 of shape \(2,\)"),
        ("Sqrt", [ints(4)], {}, "it computes with int64"),
        ("Max", [np.float32([1]), ints(4)], {}, "it computes with float32, int64"),
        ("Max", [np.float32([1, 2]), np.float32([1, 2, 3])], {}, "do not fit"),
        ("ReduceSum", [np.float32([1]), ints(3)], {}, "do not fit"),
    ],
)
@pytest.mark.every_case
def test_constants_that_are_refused(op: str, operands: Sequence[Any], attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(FoldError, match=message):
        fold(op, attributes, operands, FoldingBudget())


# Marks


MARKS = shape_of({}, (None, 4, None))


@pytest.mark.parametrize(
    ("op", "operands", "attributes", "kept"),
    [
        ("Gather", [MARKS, ints(2, 0)], {}, [OPEN_SIZE, OPEN_BATCH]),
        ("Slice", [MARKS, ints(0), ints(2)], {}, [OPEN_BATCH, 4]),
        ("Concat", [MARKS, ints(-1)], {"axis": 0}, [OPEN_BATCH, 4, OPEN_SIZE, -1]),
        ("Cast", [MARKS], {"to": TensorProto.INT32}, [OPEN_BATCH, 4, OPEN_SIZE]),
        ("Cast", [MARKS], {"to": TensorProto.UINT64}, [OPEN_BATCH, 4, OPEN_SIZE]),
        ("Mul", [MARKS, ints(1, 3, 1)], {}, [OPEN_BATCH, 12, OPEN_SIZE]),
        ("Mul", [ints(1, 3, 1), MARKS], {}, [OPEN_BATCH, 12, OPEN_SIZE]),
        ("Div", [MARKS, ints(1, 2, 1)], {}, [OPEN_BATCH, 2, OPEN_SIZE]),
        ("Add", [ints(0, 5, 0), MARKS], {}, [OPEN_BATCH, 9, OPEN_SIZE]),
        ("Sub", [MARKS, ints(0, 5, 0)], {}, [OPEN_BATCH, -1, OPEN_SIZE]),
    ],
)
@pytest.mark.every_case
def test_marks_are_carried(op: str, operands: Sequence[Any], attributes: dict[str, Any], kept: list[int]) -> None:
    assert fold(op, attributes, operands, FoldingBudget()).tolist() == kept


@pytest.mark.parametrize(
    ("op", "operands", "attributes"),
    [
        ("Mul", [MARKS, ints(2)], {}),
        ("Mul", [MARKS, ints(0)], {}),
        ("Add", [MARKS, ints(1)], {}),
        ("Sub", [ints(0), MARKS], {}),
        ("Sub", [MARKS, MARKS], {}),
        ("Div", [ints(1), MARKS], {}),
        ("Div", [MARKS, MARKS], {}),
        ("Cast", [MARKS], {"to": TensorProto.FLOAT}),
        ("Cast", [MARKS], {"to": TensorProto.INT8}),
        ("Cast", [MARKS], {"to": TensorProto.BOOL}),
        ("ConstantOfShape", [MARKS], {}),
    ],
)
@pytest.mark.every_case
def test_computing_with_marks_is_refused(op: str, operands: Sequence[Any], attributes: dict[str, Any]) -> None:
    with pytest.raises(FoldError, match="open"):
        fold(op, attributes, operands, FoldingBudget())


@pytest.mark.parametrize("number", [OPEN_BATCH, OPEN_SIZE])
def test_no_sum_becomes_a_mark(number: int) -> None:
    with pytest.raises(FoldError, match="out of range"):
        fold("Add", {}, [ints(number + 2), ints(-2)], FoldingBudget())


# Memory


@pytest.mark.parametrize(
    ("op", "operands"),
    [
        ("ConstantOfShape", [ints(1 << 31)]),
        ("ConstantOfShape", [ints(1 << 40, 1 << 40)]),
        ("Mul", [np.zeros((1 << 15, 1), np.float32), np.zeros((1, 1 << 15), np.float32)]),
        ("Gather", [np.zeros((1, 1 << 15), np.float32), np.zeros(1 << 15, np.int64)]),
        ("Max", [np.zeros((1 << 15, 1), np.float32), np.zeros((1, 1 << 15), np.float32)]),
        ("Exp", [np.broadcast_to(np.float32(1), (1 << 15, 1 << 15))]),
        ("Clip", [np.broadcast_to(np.float32(1), (1 << 15, 1 << 15))]),
    ],
)
@pytest.mark.every_case
def test_small_constants_do_not_become_large(op: str, operands: Sequence[Any]) -> None:
    with pytest.raises(FoldError, match="takes too much memory"):
        fold(op, {}, operands, FoldingBudget())


def test_room_is_for_all_nodes_together() -> None:
    memory, array = FoldingBudget(), np.zeros(1 << 20, np.float32)
    for _ in range(BASE_MEMORY // (2 * array.nbytes)):
        fold("Concat", {"axis": 0}, [array, array], memory)
    with pytest.raises(FoldError, match="takes too much memory"):
        fold("Concat", {"axis": 0}, [array, array], memory)
    memory.allow(array)
    memory.allow(array)
    assert fold("Concat", {"axis": 0}, [array, array], memory).size == 2 << 20


def test_one_number_repeated_needs_no_room_up_to_a_limit() -> None:
    """As the light models of onnx have weights; whoever copies one needs room again."""
    memory = FoldingBudget()
    value = {"value": np.array([0.5], np.float32)}
    weight = fold("ConstantOfShape", value, [ints(4096, 25088)], memory)
    assert weight.strides == (0, 0)
    assert memory.left == BASE_MEMORY
    with pytest.raises(FoldError, match="takes too much memory"):
        fold("Reshape", {}, [weight, ints(-1)], memory)
    memory = FoldingBudget()
    for _ in range(SPREAD >> 28):
        fold("ConstantOfShape", value, [ints(1 << 26)], memory)
    with pytest.raises(FoldError, match="takes too much memory"):
        fold("ConstantOfShape", value, [ints(1)], memory)
