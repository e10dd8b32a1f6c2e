"""Rules of operators that move values: which op each spelling becomes, and that it means what onnxruntime computes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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
    refuse,
    single,
    weights,
)
from vgg16gpu.compiler.graph.ops import Concat, Flatten, Gather, Identity, Op, Pad, Reshape, Slice, Transpose
from vgg16gpu.compiler.onnx.load import load
from vgg16gpu.errors import ModelError

# Moves


def test_flatten_of_other_ranks() -> None:
    assert accept_run_time("Flatten", {"x": weights(2, 3, 4)}).ops[0].target == (0, -1)  # type: ignore[attr-defined]
    assert isinstance(accept_run_time("Flatten", {"x": weights(3)}).ops[0], Reshape)
    accept_run_time("Flatten", {"x": weights(3)}, axis=0)


@pytest.mark.parametrize(
    ("shape", "target", "options", "made"),
    [
        (MAP, [0, 4, 63], {}, (0, 4, 63)),
        (MAP, [0, 4, -1], {}, (0, 4, -1)),
        (MAP, [-1, 2, 2, 9, 7], {}, (0, 2, 2, 9, 7)),
        (MAP, [0, 2, -1, 9, 7], {}, (0, 2, -1, 9, 7)),
        (OPEN_SIZE, [0, 4, -1], {}, (0, 4, -1)),
        (OPEN_SIZE, [0, 0, -1], {}, (0, 0, -1)),
        (FIXED, [1, -1], {}, (1, 504)),
        (FIXED, [4, 126], {}, (4, 126)),
        (FIXED, [-1], {}, (504,)),
        (FIXED, [0, 0, -1, 7], {}, (2, 4, 9, 7)),
        (FIXED, [7, 8, 9, 1], {"allowzero": 1}, (7, 8, 9, 1)),
    ],
)
def test_reshape(tmp_path: Path, shape: Shaped, target: list[int], options: dict[str, Any], made: Any) -> None:
    op = accept(single(tmp_path, "Reshape", shape, [ints(*target)], **options))
    assert isinstance(op, Reshape)
    assert op.target == made


@pytest.mark.parametrize(
    ("target", "options"),
    [([3, 7], {}), ([-1, 100], {}), ([-1, -1], {}), ([0, 0], {"allowzero": 1}), ([-2, 252], {}), ([0, 4, 9, 7, 0], {})],
)
def test_reshape_to_another_number_of_elements(tmp_path: Path, target: list[int], options: dict[str, Any]) -> None:
    refuse(
        single(tmp_path, "Reshape", FIXED, [ints(*target)], **options),
        f"it turns (2, 4, 9, 7) into ({', '.join(map(str, target))}), which has another number of elements",
    )


def test_too_many_dimensions() -> None:
    with pytest.raises(ModelError, match="input 'x' has 9 dimensions; at most 8 are supported"):
        accept_run_time("Relu", {"x": random_input((1,) * 9)})


@pytest.mark.parametrize(
    ("shape", "axes", "kind", "target"),
    [
        (("n", 4, 1, 1), (2, 3), Flatten, None),
        (("n", 4, 1, 1), (-1, -2), Flatten, None),
        (("n", 4, 1, 5), (2,), Reshape, (0, 4, 5)),
        (("n", 1, "h", 5), (1,), Reshape, (0, -1, 5)),
        (("n", "c", 1, 1), (3,), Reshape, (0, 0, 1)),
        ((2, 1, 1, 5), None, Flatten, None),
        ((1, 4, 1, 5), None, Reshape, (4, 5)),
    ],
)
@pytest.mark.parametrize("opset", [11, 13])
def test_squeeze(
    tmp_path: Path, shape: Shaped, axes: tuple[int, ...] | None, kind: type[Op], target: Any, opset: int
) -> None:
    if axes is None:
        path = single(tmp_path, "Squeeze", shape, [], opset=opset)
    elif opset < 13:
        path = single(tmp_path, "Squeeze", shape, [], opset=opset, axes=list(axes))
    else:
        path = single(tmp_path, "Squeeze", shape, [ints(*axes)], opset=opset)
    op = accept(path) if "c" not in shape and "h" not in shape else load(path).ops[0]
    assert isinstance(op, kind)
    assert target is None or (isinstance(op, Reshape) and op.target == target)


@pytest.mark.parametrize(
    ("shape", "axes", "target"),
    [
        (MATRIX, (2, 3), (0, 6, 1, 1)),
        (MATRIX, (-1,), (0, 6, 1)),
        (MAP, (1, 4), (0, 1, 4, 9, 1, 7)),
        ((2, 6), (0,), (1, 2, 6)),
    ],
)
@pytest.mark.parametrize("opset", [11, 13])
def test_unsqueeze(tmp_path: Path, shape: Shaped, axes: tuple[int, ...], target: Any, opset: int) -> None:
    options: dict[str, Any] = {"axes": list(axes)} if opset < 13 else {}
    op = accept(single(tmp_path, "Unsqueeze", shape, [] if options else [ints(*axes)], opset=opset, **options))
    assert isinstance(op, Reshape)
    assert op.target == target


@pytest.mark.parametrize(
    ("shape", "options", "permutation"),
    [
        (MAP, {"perm": [0, 2, 3, 1]}, (0, 2, 3, 1)),
        (OPEN_SIZE, {"perm": [0, 3, 1, 2]}, (0, 3, 1, 2)),
        (FIXED, {}, (3, 2, 1, 0)),
    ],
)
def test_transpose(tmp_path: Path, shape: Shaped, options: dict[str, Any], permutation: tuple[int, ...]) -> None:
    op = accept(single(tmp_path, "Transpose", shape, [], **options))
    assert isinstance(op, Transpose)
    assert op.permutation == permutation


@pytest.mark.parametrize(("axis", "opset"), [(1, 7), (-3, 13), (3, 13)])
def test_concat(tmp_path: Path, axis: int, opset: int) -> None:
    model = Model(MAP)
    model.node("Relu", ["input"], "left")
    model.node("Concat", ["left", "input", "left"], "y", axis=axis)
    op = accept(model.save(tmp_path / "m.onnx", opset=opset))
    assert isinstance(op, Concat)
    assert (op.axis, op.operands) == (axis % 4, ("left", "input", "left"))


def test_concat_details(tmp_path: Path) -> None:
    constant = weights(3, 2, 9, 7)
    op = accept(single(tmp_path, "Concat", (3, 4, 9, 7), [constant], axis=1))
    assert op.operands == ("input", "c0")
    assert isinstance(accept(single(tmp_path, "Concat", MAP, [], axis=1)), Identity)


SLICES: list[tuple[Shaped, Mapping[str, Any], tuple[Any, Any, Any]]] = [
    (MAP, {"starts": [1], "ends": [3], "axes": [1]}, ((0, 1, 0, 0), (1,) * 4, (None, 2, None, None))),
    (MAP, {"starts": [-3], "ends": [100], "axes": [-1]}, ((0, 0, 0, 4), (1,) * 4, (None, None, None, 3))),
    (MAP, {"starts": [0, 2], "ends": [2**31 - 1, -1], "axes": [0, 2]}, ((0, 0, 2, 0), (1,) * 4, (None, None, 6, None))),
    (FIXED, {"starts": [1, 0], "ends": [2, 3]}, ((1, 0, 0, 0), (1,) * 4, (1, 3, None, None))),
    (OPEN_SIZE, {"starts": [0], "ends": [2**63 - 1], "axes": [2]}, ((0,) * 4, (1,) * 4, (None,) * 4)),
]


@pytest.mark.parametrize(("shape", "lists", "made"), SLICES)
@pytest.mark.parametrize("opset", [9, 10, 13])
def test_slice(tmp_path: Path, shape: Shaped, lists: Mapping[str, Any], made: Any, opset: int) -> None:
    if opset < 10:
        op = accept(single(tmp_path, "Slice", shape, [], opset=opset, **lists))
    else:
        op = accept(single(tmp_path, "Slice", shape, [ints(*numbers) for numbers in lists.values()], opset=opset))
    assert isinstance(op, Slice)
    assert (op.starts, op.steps, op.sizes) == made


@pytest.mark.parametrize(
    ("start", "end", "step", "made"),
    [
        (0, 9, 2, (0, 2, 5)),
        (-1, -100, -1, (8, -1, 9)),
        (100, -(2**63), -3, (8, -3, 3)),
        (7, 2, -2, (7, -2, 3)),
        (20, 30, 1, (0, 1, 0)),
    ],
)
def test_slice_with_steps(tmp_path: Path, start: int, end: int, step: int, made: tuple[int, int, int]) -> None:
    op = accept(single(tmp_path, "Slice", MAP, [ints(start), ints(end), ints(2), ints(step)]))
    assert isinstance(op, Slice)
    assert (op.starts[2], op.steps[2], op.sizes[2]) == made


@pytest.mark.parametrize("indices", [ints(0, 3, -1), np.array([[1, 2], [0, -4]]), np.array(2), np.int32([3, 1])])
def test_gather(tmp_path: Path, indices: Any) -> None:
    op = accept(single(tmp_path, "Gather", MAP, [indices], axis=1))
    assert isinstance(op, Gather)
    assert op.axis == 1
    assert op.indices.dtype == np.int64
    np.testing.assert_array_equal(op.indices, np.asarray(indices) % 4)


@pytest.mark.parametrize(
    ("constants", "options"),
    [
        ([], {"opset": 7, "pads": [0, 0, 1, 2, 0, 0, 3, 0], "value": 1.5}),
        ([], {"opset": 10, "pads": [0, 0, 1, 2, 0, 0, 3, 0], "mode": "constant"}),
        ([ints(0, 0, 1, 2, 0, 0, 3, 0)], {"opset": 11}),
        ([ints(0, 1, -1, 2, 0, 0, 3, -2), np.float32(2.5)], {"opset": 13}),
        ([ints(1, 2, 3, 4), None, ints(-1, 1)], {"opset": 18}),
    ],
)
def test_pad(tmp_path: Path, constants: Sequence[Any], options: dict[str, Any]) -> None:
    assert isinstance(accept(single(tmp_path, "Pad", MAP, constants, **options)), Pad)


@pytest.mark.parametrize("pads", [(0, 1, 2, 3), (1, -1, 0, 2), (-1, 0, -1, -1)])
@pytest.mark.parametrize("value", [2.5, math.inf])
def test_pad_with_a_value_at_run_time(pads: Sequence[int], value: float) -> None:
    operands = {"x": random_input((3, 4)), "pads": ints(*pads), "value": np.array(value, np.float32)}
    graph = accept_run_time("Pad", operands)
    assert [type(op) for op in graph.ops] == [Reshape, Reshape, Concat, Gather]
    assert [value.name for value in graph.inputs] == ["x", "value"]
