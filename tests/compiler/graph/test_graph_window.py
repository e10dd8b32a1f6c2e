"""graph.Window: how many windows there are and what padding they need, as onnx infers and onnxruntime computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.support.kernel_harness import seeded
from tests.support.onnx_models import Model, onnxruntime_values
from vgg16gpu.compiler.graph.window import Pads, Window

Case: TypeAlias = tuple[Window, tuple[int, int]]  # and a map

SAME: tuple[Literal["", "upper", "lower"], ...] = ("", "", "upper", "lower")


def random_case(random: np.random.Generator) -> Case:
    kernel, strides, dilations = (tuple(map(int, random.integers(1, most, 2))) for most in (6, 5, 4))
    pads = Pads(*(int(random.integers(0, kernel[axis % 2])) for axis in range(4)))
    same, ceil = SAME[random.integers(4)], bool(random.integers(2))
    window = Window(kernel, strides, pads, dilations, same, ceil)  # type: ignore[arg-type]
    return window, (int(random.integers(1, 16)), int(random.integers(1, 16)))


def as_convolution(case: Case) -> Case:
    """The window as onnxruntime's Conv takes it."""
    window, size = case
    window = replace(window, ceil=False)  # which a Conv does not have
    if window.same:  # onnxruntime refuses dilations then, and crops the map where strides are longer than the kernel
        strides = min(window.strides[0], window.kernel[0]), min(window.strides[1], window.kernel[1])
        window = replace(window, dilations=(1, 1), strides=strides)
    return window, size


def fitting_cases(count: int, form: Callable[[Case], Case] = lambda case: case) -> list[Case]:
    random = seeded("windows")
    cases = (form(random_case(random)) for _ in iter(int, 1))
    fitting = (case for case in cases if min(case[0].output_size(*case[1])) > 0)
    return [next(fitting) for _ in range(count)]


def attributes(window: Window) -> dict[str, Any]:
    """As a node of ONNX has them."""
    padding = {"auto_pad": f"SAME_{window.same.upper()}"} if window.same else {"pads": list(window.pads)}
    return {"kernel_shape": window.kernel, "strides": window.strides, "dilations": window.dilations, **padding}


def sizes_inferred_by_onnx(cases: list[Case]) -> list[tuple[int, int]]:
    nodes = [
        helper.make_node("MaxPool", [f"x{i}"], [f"y{i}"], ceil_mode=int(window.ceil), **attributes(window))
        for i, (window, _) in enumerate(cases)
    ]
    inputs = [
        helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, (1, 1, *size)) for i, (_, size) in enumerate(cases)
    ]
    outputs = [helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, None) for i in range(len(cases))]
    graph = helper.make_graph(nodes, "pools", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])
    shapes = [value.type.tensor_type.shape.dim for value in onnx.shape_inference.infer_shapes(model).graph.output]
    return [(shape[2].dim_value, shape[3].dim_value) for shape in shapes]


def test_there_are_as_many_windows_as_onnx_infers() -> None:
    cases = fitting_cases(500)
    for (window, size), expected in zip(cases, sizes_inferred_by_onnx(cases), strict=True):
        assert window.output_size(*size) == expected, (window, size)


@pytest.mark.parametrize(("window", "size"), fitting_cases(150, as_convolution), ids=str)
def test_windows_lie_where_onnxruntime_has_them(tmp_path: Path, window: Window, size: tuple[int, int]) -> None:
    """A convolution that takes the first, or the last, element of each window alone."""
    count = window.output_size(*size)
    x = 1 + np.arange(size[0] * size[1], dtype=np.float32).reshape(1, 1, *size)
    top, left, bottom, right = window.padding(*size)
    padded = np.pad(x[0, 0], ((top, bottom), (left, right)))
    for corner in (0, -1):
        weight = np.zeros((1, 1, *window.kernel), np.float32)
        weight[0, 0, corner, corner] = 1
        model = Model(x.shape)
        model.node("Conv", ["input", model.constant("weight", weight)], "y", **attributes(window))
        y = onnxruntime_values(model.save(tmp_path / "m.onnx"), x)["y"]
        first = [0 if corner == 0 else extent - 1 for extent in window.extent]
        taken = padded[first[0] :: window.strides[0], first[1] :: window.strides[1]]
        np.testing.assert_array_equal(y[0, 0], taken[: count[0], : count[1]])
