"""onnx_rules: every spelling of every operator, against onnxruntime or refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.graph_reference import compute
from tests.support.onnx_models import Model, onnxruntime_values, random_input
from tests.support.onnx_single import (
    FIXED,
    MAP,
    MATRIX,
    OPEN_SIZE,
    accept,
    norm_parameters,
    refuse,
    run_onnxruntime,
    single,
    weights,
)
from vgg16gpu.compiler.graph.ops import Conv, Gemm, MatMul
from vgg16gpu.compiler.onnx.file import open_onnx
from vgg16gpu.compiler.onnx.load import load


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pads": [1, 1, 1, 1]},
        {"pads": [0, 1, 2, 3]},
        {"strides": [2, 3]},
        {"strides": [2, 2], "pads": [2, 0, 1, 1]},
        {"kernel_shape": [3, 2], "group": 1, "dilations": [1, 1]},
        {"auto_pad": "NOTSET", "pads": [1, 0, 0, 0]},
        {"auto_pad": "VALID", "strides": [2, 1]},
        {"auto_pad": "SAME_UPPER"},
        {"auto_pad": "SAME_LOWER"},
    ],
)
@pytest.mark.parametrize("bias", [True, False])
def test_conv(tmp_path: Path, options: dict[str, Any], bias: bool) -> None:
    constants = [weights(5, 4, 3, 2), weights(5)] if bias else [weights(5, 4, 3, 2)]
    op = accept(single(tmp_path, "Conv", MAP, constants, **options))
    assert isinstance(op, Conv)
    assert (op.bias is not None) == bias


def test_computed_weights_of_an_open_shape_are_refused(tmp_path: Path) -> None:
    model = Model(("n", 2, 3, 3))
    model.node("Conv", ["input", "input"], "y", name="it")
    refuse(model.save(tmp_path / "m.onnx"), "its weight 'input' has an open shape; export it with a fixed one")


def test_computed_lists_are_refused(tmp_path: Path) -> None:
    model = Model((2, 3))
    model.node("Reshape", ["input", "input"], "y", name="it")
    refuse(model.save(tmp_path / "m.onnx"), "its operands 'input' are computed at run time; they must be constants")


def test_computed_axes_of_a_mean_are_refused(tmp_path: Path) -> None:
    model = Model((2, 3, 4, 4))
    model.node("ReduceMean", ["input", "input"], "y", name="it")
    refuse(model.save(tmp_path / "m.onnx", opset=18), "its operands 'input' are computed at run time")


def test_used_indices_and_masks_are_refused(tmp_path: Path) -> None:
    for op, options, message in (
        ("MaxPool", {"kernel_shape": [2, 2]}, "its indices 'extra' are used"),
        ("Dropout", {}, "its mask 'extra' is used"),
    ):
        model = Model()
        model.node(op, ["input"], ["y", "extra"], name="it", **options)
        refuse(model.save(tmp_path / "m.onnx", ["extra"]), message)


@pytest.mark.parametrize("options", [{}, {"alpha": 0.5}, {"beta": 2.0}, {"alpha": -1.5, "beta": 0.25}, {"beta": 0.0}])
@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("bias", [(5,), (1, 5), (1,), (), (1, 1), None])
def test_gemm(tmp_path: Path, options: dict[str, Any], transposed: int, bias: tuple[int, ...] | None) -> None:
    constants = [weights(5, 6) if transposed else weights(6, 5)]
    constants += [] if bias is None else [random_input(bias)]
    op = accept(single(tmp_path, "Gemm", MATRIX, constants, transB=transposed, **options))
    assert isinstance(op, Gemm)
    assert op.weight.shape == (5, 6)
    assert op.weight.flags.c_contiguous


@pytest.mark.parametrize("options", [{"alpha": 1e20}, {"beta": -1e20}, {"alpha": 1e-30}, {"alpha": 0.0}], ids=str)
def test_factors_that_could_leave_float32_stay_out_of_the_weights(tmp_path: Path, options: dict[str, float]) -> None:
    op = accept(single(tmp_path, "Gemm", MATRIX, [weights(6, 5), weights(5)], **options))
    assert isinstance(op, MatMul)
    assert (op.alpha, op.beta) == pytest.approx((options.get("alpha", 1.0), options.get("beta", 1.0)))


def test_batch_norm_of_mxnet_is_per_channel(tmp_path: Path) -> None:
    spatial = single(tmp_path, "BatchNormalization", MAP, norm_parameters(), opset=7)
    x = random_input((2, 4, 9, 7))
    expected = onnxruntime_values(spatial, x)["y"]
    graph = load(single(tmp_path, "BatchNormalization", MAP, norm_parameters(), opset=7, spatial=0))
    np.testing.assert_allclose(compute(graph, {"input": x})["y"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "target", "options"),
    [
        (MAP, [1, 252], {}),  # right for one image only
        (MAP, [1, -1], {}),
        (MAP, [2, 252], {}),
        (MAP, [-1, 126], {}),  # two rows per image
        (MAP, [0, 0], {}),
        (MAP, [0, -1], {"allowzero": 1}),
        (MAP, [-1, -1], {}),
        (MAP, [-1], {}),
        (MAP, [0, 5, -1], {}),
        (MAP, [0, 3, 0, 0], {}),
        (MAP, [0, 4, 9, 7, 0], {}),
        (MAP, [0, -2], {}),
        (OPEN_SIZE, [-1, 252], {}),  # mixes images at any size but one
        (OPEN_SIZE, [0, 252], {}),
    ],
)
@pytest.mark.every_case
def test_reshape_refused(
    tmp_path: Path, shape: Sequence[int | str | None], target: list[int], options: dict[str, Any]
) -> None:
    path = single(tmp_path, "Reshape", shape, [np.array(target)], **options)
    shown = str(tuple(target)).replace(",)", ")")
    refuse(path, f"into {shown}, which is not one row per image; use torch.flatten(x, 1)")


def test_a_constant_of_text_is_refused(tmp_path: Path) -> None:
    model = Model(MAP)
    model.node("Constant", [], "c", name="it", value_string="x")
    model.node("Reshape", ["input", "c"], "y")
    refuse(model.save(tmp_path / "m.onnx"), "it holds no numbers")


def test_other_dimensions_are_not_the_batch(tmp_path: Path) -> None:
    model = Model(("n", 4, "h", "w"))
    model.node("Shape", ["input"], "dims")
    for name, picked, message in (("height", [2, 1], "into (open, 4)"), ("swapped", [1, 0], "into (4, batch)")):
        model.node("Gather", ["dims", model.constant(f"{name}.index", np.array(picked))], name)
        model.node("Reshape", ["input", name], f"{name}.y", name="it")
        refuse(model.save(tmp_path / "m.onnx", [f"{name}.y"]), message)


@pytest.mark.parametrize("op", ["Conv", "MaxPool", "AveragePool"])
@pytest.mark.parametrize("auto", ["VALID", "SAME_UPPER"])
def test_q10_pads_beside_auto_pad_are_not_used_and_that_is_said(
    tmp_path: Path, op: str, auto: str, caplog: pytest.LogCaptureFixture
) -> None:
    constants = [weights(6, 4, 3, 3)] if op == "Conv" else []
    without = single(tmp_path, op, FIXED, constants, kernel_shape=[3, 3], auto_pad=auto).read_bytes()
    path = single(tmp_path, op, FIXED, constants, kernel_shape=[3, 3], auto_pad=auto, pads=[1, 0, 2, 1])
    if op == "Conv":  # onnxruntime refuses this one, so it judges the file without pads
        graph, x = load(path), random_input(FIXED)
        (expected,) = run_onnxruntime(without, {"input": x}).values()
        np.testing.assert_allclose(compute(graph, {"input": x})["y"], expected, rtol=1e-4, atol=1e-5)
    else:
        accept(path)
    opened = open_onnx(path)
    caplog.clear()
    for _ in range(2):
        load(opened)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert f"{op} 'it': its auto_pad {auto} takes the place of its pads [1, 0, 2, 1]" in record.getMessage()
