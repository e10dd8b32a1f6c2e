"""onnx_rules: every spelling of every operator, against onnxruntime or refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.graph_reference import compute
from tests.support.onnx_models import Model, onnxruntime_values, random_input
from tests.support.onnx_single import FIXED, MAP, MATRIX, OPEN_SIZE, accept, refuse, run_onnxruntime, single, weights
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


@pytest.mark.parametrize(
    ("shape", "constants", "options", "message"),
    [
        (MAP, [weights(5, 4, 3)], {}, "its weight has shape (5, 4, 3), only 2-D convolution"),
        (MAP, [weights(5, 4, 3, 3, 3)], {}, "only 2-D convolution"),
        (MAP, [weights(5, 2, 3, 3)], {"group": 2}, "group is 2 for 5 output channels"),
        (MAP, [weights(4, 4, 3, 3)], {"group": 2}, "weights for 8 channels, input has 4"),
        (MAP, [weights(4, 4, 3, 3)], {"group": 0}, "group is 0"),
        (MAP, [weights(5, 4, 3, 3)], {"dilations": [2, 0]}, "dilations is [2, 0]"),
        (MAP, [weights(5, 4, 3, 3)], {"dilations": [5, 1]}, "a 3x3 window does not fit a 9x7 map"),
        (MAP, [weights(5, 4, 3, 3)], {"kernel_shape": [3, 4]}, "kernel_shape [3, 4] differs from its weight's"),
        (MAP, [weights(5, 4, 3, 3)], {"auto_pad": "OTHER"}, "auto_pad is 'OTHER'"),
        (MAP, [weights(5, 4, 3, 3)], {"pads": [1, 1]}, "pads are [1, 1]"),
        (MAP, [weights(5, 4, 3, 3)], {"pads": [-1, 0, 0, 0]}, "pads are [-1, 0, 0, 0]"),
        (MAP, [weights(5, 4, 3, 3)], {"strides": [0, 1]}, "strides is [0, 1]"),
        (MAP, [weights(5, 4, 3, 3)], {"strides": [1]}, "strides is [1]"),
        (MAP, [weights(5, 4, 3, 3), weights(4)], {}, "its bias has shape (4,) for 5 output channels"),
        (MAP, [weights(5, 4, 3, 3).astype(np.float64)], {}, "element type float64; export the model in float32"),
        (MAP, [weights(5, 4, 3, 3), weights(5).astype(np.float64)], {}, "its bias has element type float64"),
        (MAP, [weights(0, 4, 3, 3)], {}, "its weight of shape (0, 4, 3, 3) is empty"),
        (MAP, [weights(5, 3, 3, 3)], {}, "weights for 3 channels, input has 4"),
        (("n", 4, "h", "w"), [weights(5, 3, 3, 3)], {}, "weights for 3 channels, input has 4"),
        (("n", 4, 2, 2), [weights(5, 4, 3, 3)], {}, "a 3x3 window does not fit a 2x2 map"),
        (MATRIX, [weights(5, 4, 3, 3)], {}, "it needs (N, C, H, W)"),
        (("n", None), [weights(5, 4, 3, 3)], {}, "its input has 2 dimensions, it needs 4"),
        (MAP, [weights(5, 4, 3, 3)], {"unheard_of": 1}, "Unrecognized attribute: unheard_of"),
        (MAP, [weights(5, 4, 3, 3)], {"group": 1.0}, "group"),
        (MAP, [], {}, "has input size 1 not in range [min=2, max=3]"),
    ],
)
@pytest.mark.every_case
def test_conv_refused(
    tmp_path: Path, shape: Sequence[int | str | None], constants: Sequence[Any], options: dict[str, Any], message: str
) -> None:
    refuse(single(tmp_path, "Conv", shape, constants, **options), message)


def test_computed_weights_of_an_open_shape_are_refused(tmp_path: Path) -> None:
    model = Model(("n", 2, 3, 3))
    model.node("Conv", ["input", "input"], "y", name="it")
    refuse(model.save(tmp_path / "m.onnx"), "its weight 'input' has an open shape; export it with a fixed one")


def test_computed_lists_are_refused(tmp_path: Path) -> None:
    model = Model((2, 3))
    model.node("Reshape", ["input", "input"], "y", name="it")
    refuse(model.save(tmp_path / "m.onnx"), "its operands 'input' are computed at run time; they must be constants")


@pytest.mark.parametrize(
    ("shape", "constants", "options", "message"),
    [
        (MAP, [], {"axes": [1]}, "it takes the mean over axes [1] of 4 dimensions; only that over height and width of"),
        (MAP, [], {"axes": [1, 2]}, "over axes [1, 2] of 4 dimensions"),
        (MAP, [], {"axes": [2, 3, -1]}, "over axes [2, 3, 3] of 4 dimensions"),
        (MAP, [], {}, "over axes [0, 1, 2, 3] of 4 dimensions"),
        (MAP, [], {"axes": [2, 4]}, "axis is 4 for 4 dimensions"),
        (MAP, [np.array([2])], {"opset": 18}, "over axes [2] of 4 dimensions"),
        (MAP, [np.array([], np.int64)], {"opset": 18}, "over axes [0, 1, 2, 3] of 4 dimensions"),
        (MAP, [], {"opset": 18, "noop_with_empty_axes": 2}, "noop_with_empty_axes is 2"),
        (MATRIX, [], {"axes": [1]}, "over axes [1] of 2 dimensions"),
    ],
)
@pytest.mark.every_case
def test_means_over_other_axes_are_refused(
    tmp_path: Path, shape: Sequence[int | str | None], constants: Sequence[Any], options: dict[str, Any], message: str
) -> None:
    refuse(single(tmp_path, "ReduceMean", shape, constants, **options), message)


def test_computed_axes_of_a_mean_are_refused(tmp_path: Path) -> None:
    model = Model((2, 3, 4, 4))
    model.node("ReduceMean", ["input", "input"], "y", name="it")
    refuse(model.save(tmp_path / "m.onnx", opset=18), "its operands 'input' are computed at run time")


@pytest.mark.parametrize(
    ("op", "options", "message"),
    [
        ("MaxPool", {"kernel_shape": [2**31, 2]}, "kernel_shape is [2147483648, 2]"),
        ("MaxPool", {"strides": [1, 2**40]}, "strides is [1, 1099511627776]"),
        ("MaxPool", {"pads": [0, 0, 0, 2**40]}, "pads are [0, 0, 0, 1099511627776]"),
        ("MaxPool", {"ceil_mode": 2}, "ceil_mode is 2; 0 or 1 is needed"),
        ("MaxPool", {"auto_pad": "SAME_UPPER", "strides": [2, 3]}, "strides (2, 3) leap over elements"),
        ("MaxPool", {"dilations": [2, -2]}, "dilations is [2, -2]"),
        ("MaxPool", {"auto_pad": "SAME_LOWER", "dilations": [1, 2]}, "dilations (1, 2) and auto_pad mean other pads"),
        ("MaxPool", {"kernel_shape": [2]}, "kernel_shape is [2]; two positive numbers"),
        ("MaxPool", {"kernel_shape": [2, 2, 2]}, "kernel_shape is [2, 2, 2]"),
        ("MaxPool", {"pads": [0, 2, 0, 0]}, "pads (0, 2, 0, 0) are not smaller than its kernel (2, 2)"),
        ("GlobalLpPool", {"kernel_shape": None}, "this operator is not supported"),
    ],
)
@pytest.mark.every_case
def test_pools_refused(tmp_path: Path, op: str, options: dict[str, Any], message: str) -> None:
    settings = {key: value for key, value in ({"kernel_shape": [2, 2]} | options).items() if value is not None}
    refuse(single(tmp_path, op, MAP, [], **settings), message)


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


@pytest.mark.parametrize(
    ("shape", "constants", "options", "message"),
    [
        (MATRIX, [weights(5, 6), weights(5)], {"transA": 1}, "transA is 1, only 0 is supported"),
        (MATRIX, [weights(2, 5, 6)], {}, "its weight has shape (2, 5, 6); only matrices"),
        (MATRIX, [weights(5, 6), weights(4)], {}, "its bias has shape (4,) for 5 outputs"),
        (MATRIX, [weights(5, 6), weights(2, 5)], {}, "its bias has shape (2, 5) for 5 outputs"),
        (MATRIX, [weights(5, 6), weights(5, 1)], {}, "its bias has shape (5, 1) for 5 outputs"),
        (MATRIX, [weights(5, 7)], {}, "weights for 7 features, its input (1, 6) has 6"),
        (MAP, [weights(5, 6)], {}, "weights for 6 features"),
        (("n", 4, "h", "w"), [weights(5, 6)], {}, "its input has 4 dimensions, it needs 2"),
        (MATRIX, [weights(5, 6).astype(np.float64)], {}, "element type float64"),
    ],
)
@pytest.mark.every_case
def test_gemm_refused(
    tmp_path: Path, shape: Sequence[int | str | None], constants: Sequence[Any], options: dict[str, Any], message: str
) -> None:
    refuse(single(tmp_path, "Gemm", shape, constants, transB=1, **options), message)


def norm_parameters(channels: int = 4) -> list[Any]:
    return [random_input((channels,), seed) for seed in range(3)] + [np.abs(random_input((channels,), 3)) + 0.5]


def test_batch_norm_of_mxnet_is_per_channel(tmp_path: Path) -> None:
    spatial = single(tmp_path, "BatchNormalization", MAP, norm_parameters(), opset=7)
    x = random_input((2, 4, 9, 7))
    expected = onnxruntime_values(spatial, x)["y"]
    graph = load(single(tmp_path, "BatchNormalization", MAP, norm_parameters(), opset=7, spatial=0))
    np.testing.assert_allclose(compute(graph, {"input": x})["y"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "parameters", "options", "message"),
    [
        (MAP, norm_parameters(), {"training_mode": 1, "outputs": ["y", "m", "v"]}, "training_mode is 1"),
        (MAP, norm_parameters(3), {}, "3 scales for 4 channels"),
        (("n", 4, "h", "w"), norm_parameters(3), {}, "3 scales for 4 channels"),
        (MAP, [*norm_parameters()[:3], weights(5)], {}, "its parameters have shapes [(4,), (5,)]"),
        (MAP, [weights(4, 9, 7)] * 4, {"opset": 7, "spatial": 0}, "only one value per channel is supported"),
        (
            MAP,
            norm_parameters(),
            {"opset": 9, "outputs": ["y", "m", "v", "a", "b"]},
            "it has 'm', an output that only training_mode computes",
        ),
    ],
)
@pytest.mark.every_case
def test_batch_norm_refused(
    tmp_path: Path, shape: Sequence[int | str | None], parameters: Sequence[Any], options: dict[str, Any], message: str
) -> None:
    refuse(single(tmp_path, "BatchNormalization", shape, parameters, **options), message)


def test_dropout_in_training_is_refused(tmp_path: Path) -> None:
    path = single(tmp_path, "Dropout", MAP, [np.float32(0.5), np.array(True)])
    refuse(path, "training_mode is true; export with model.eval()")


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        (MATRIX, {"axis": 0}, "axis is 0"),
        (MATRIX, {"axis": 0, "opset": 7}, "axis is 0"),
        (MAP, {"axis": 4}, "axis is 4 for 4 dimensions"),
    ],
)
@pytest.mark.every_case
def test_softmax_refused(
    tmp_path: Path, shape: Sequence[int | str | None], options: dict[str, Any], message: str
) -> None:
    refuse(single(tmp_path, "Softmax", shape, [], **options), message)


@pytest.mark.parametrize(
    ("axis", "message"),
    [
        (0, "axis is 0; only axis 1, which keeps the batch"),
        (-4, "axis is -4; only axis 1, which keeps the batch"),
        (2, "'y' has several rows for each image of an open batch; export with a fixed batch"),
        (4, "'y' has several rows for each image"),
        (-1, "'y' has several rows for each image"),
    ],
)
@pytest.mark.every_case
def test_flatten_refused(tmp_path: Path, axis: int, message: str) -> None:
    refuse(single(tmp_path, "Flatten", MAP, [], axis=axis), message)


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


@pytest.mark.parametrize("target", [np.array([0.0, -1.0], np.float32), np.array([[0, -1]]), np.array(0)])
def test_reshape_needs_a_list(tmp_path: Path, target: Any) -> None:
    refuse(single(tmp_path, "Reshape", MAP, [target]), "its shape operand is not a list of int64")


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
