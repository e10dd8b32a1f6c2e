"""QuantizeLinear and DequantizeLinear: what the loader makes of them, against onnxruntime; and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.support.graph_reference import compute
from tests.support.onnx_models import Model, random_input
from tests.support.onnx_single import MAP, MATRIX, compare, refuse, run_onnxruntime
from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.graph.ops import Conv, FakeQuantize, Gemm, Identity
from vgg16gpu.compiler.onnx.folding.budget import FoldError, FoldingBudget
from vgg16gpu.compiler.onnx.folding.qdq import dequantise, quantise
from vgg16gpu.compiler.onnx.load import load
from vgg16gpu.errors import ModelError
from vgg16gpu.runtime.session import Session

SCALE, ZERO = np.float32(0.03), np.uint8(120)
ONE: Any = np.float32(1)


def integers(*shape: int, low: int = -128, high: int = 127) -> Any:
    return np.random.default_rng(len(shape)).integers(low, high + 1, shape)


def quantised(model: Model, x: str = "input", scale: Any = SCALE, zero: Any = ZERO, **options: Any) -> tuple[str, ...]:
    """QuantizeLinear; its result, and the two operands behind it."""
    operands = [model.constant(f"{x}_scale", np.asarray(scale))]
    operands += [] if zero is None else [model.constant(f"{x}_zero", np.asarray(zero))]
    return model.node("QuantizeLinear", [x, *operands], f"{x}_q", "it", **options), *operands


def checked(model: Model, path: Path) -> Graph:
    """Loaded, and the same as in onnxruntime."""
    saved = model.save(path / "m.onnx", opset=17, ir_version=10)
    graph = load(saved)
    x = random_input([2, *(dim for dim in graph.input.shape[1:] if dim)])
    compare(run_onnxruntime(saved, {graph.input.name: x}), compute(graph, {graph.input.name: x}))
    return graph


def kernels(path: Path, x: Any) -> Any:
    """What the kernels compute, rounding included."""
    with Session(path, "cpu") as session:
        return session.run({"input": x})[0]


# ---- Run-time values


@pytest.mark.parametrize("opset", [10, 13, 19, 21, 23])
@pytest.mark.parametrize(
    ("zero", "limits"),
    [
        (ZERO, (-120, 135)),
        (np.uint8(0), (0, 255)),
        (np.int8(0), (-128, 127)),
        (np.int8(-128), (0, 255)),
        (None, (0, 255)),
        (np.uint8([128]), (-128, 127)),
    ],
)
def test_rounding_of_a_run_time_value(tmp_path: Path, opset: int, zero: Any, limits: tuple[float, float]) -> None:
    """Exactly what onnxruntime says, beyond the limits and halfway between two integers too."""
    model = Model(MAP)
    q, *operands = quantised(model, scale=np.float32(0.0078125), zero=zero)
    model.node("DequantizeLinear", [q, *operands], "y")
    saved = model.save(tmp_path / "m.onnx", opset=opset, ir_version=10)
    graph = load(saved)
    rounding, back = graph.ops
    assert isinstance(rounding, FakeQuantize)
    assert (rounding.scale, rounding.low, rounding.high) == (0.0078125, *limits)
    assert isinstance(back, Identity)
    x = random_input((2, 4, 9, 7))
    x[0, 0] = (np.arange(63).reshape(9, 7) - 30.5) * 0.0078125
    expected = run_onnxruntime(saved, {"input": x})["y"]
    assert np.array_equal(kernels(saved, x), expected)
    assert np.unique(expected).size > 100


def test_integers_pass_through_what_moves_them(tmp_path: Path) -> None:
    model = Model(MAP)
    q, *operands = quantised(model, zero=np.int8(3))
    x = model.node("MaxPool", [q], "pooled", kernel_shape=[2, 2], strides=[2, 2], pads=[0, 0, 1, 1])
    x = model.node("Transpose", [model.node("Identity", [x], "same")], "turned", perm=[0, 2, 3, 1])
    x = model.node("Unsqueeze", [x, model.constant("axes", np.array([1]))], "more")
    x = model.node("Squeeze", [x, "axes"], "fewer")
    x = model.node("Reshape", [x, model.constant("shape", np.array([0, -1, 2]))], "shaped")
    model.node("DequantizeLinear", [model.node("Flatten", [x], "flat"), *operands], "y")
    saved = model.save(tmp_path / "m.onnx")
    assert sum(isinstance(op, FakeQuantize) for op in load(saved).ops) == 1
    x = random_input((2, 4, 9, 7))
    assert np.array_equal(kernels(saved, x), run_onnxruntime(saved, {"input": x})["y"])


@pytest.mark.parametrize(
    ("scale", "zero", "options", "message"),
    [
        (np.float32([1, 2, 3, 4]), np.uint8([0] * 4), {}, "its scale has shape (4,)"),
        (np.float32(0), ZERO, {}, "its scale is 0.0"),
        (np.float32(np.nan), ZERO, {}, "its scale is nan"),
        (np.float64(1), ZERO, {}, "its scale has element type float64; export the model in float32"),
        (SCALE, np.int32(0), {}, "its zero point has element type int32; quantise run-time values to int8 or uint8"),
        (SCALE, None, {"output_dtype": TensorProto.INT4}, "it rounds to INT4; quantise"),
        (SCALE, None, {"output_dtype": TensorProto.FLOAT8E4M3FN}, "it rounds to FLOAT8E4M3FN; quantise"),
        (SCALE, ZERO, {"output_dtype": TensorProto.INT8}, "its zero point has element type uint8"),
        (SCALE, ZERO, {"block_size": 2}, "its scales are for blocks of 2 elements; quantise"),
    ],
)
@pytest.mark.every_case
def test_refused_rounding(tmp_path: Path, scale: Any, zero: Any, options: dict[str, int], message: str) -> None:
    model = Model(MAP)
    q, *operands = quantised(model, scale=scale, zero=zero, **options)
    model.node("DequantizeLinear", [q, *operands], "y")
    refuse(model.save(tmp_path / "m.onnx", opset=23, ir_version=10), message)


@pytest.mark.parametrize("kind", ["INT4", "INT16", "FLOAT8E4M3FN", "UINT16"])
def test_a_zero_point_of_another_type(tmp_path: Path, kind: str) -> None:
    model = Model(MAP)
    model.constant("scale", SCALE)
    model.weights.append(helper.make_tensor("zero", TensorProto.DataType.Value(kind), [], [0]))
    model.node("DequantizeLinear", [model.node("QuantizeLinear", ["input", "scale", "zero"], "q", "it"), "scale"], "y")
    refuse(model.save(tmp_path / "m.onnx", opset=21, ir_version=10), f"its tensor 'zero' has element type {kind}; ")


def test_a_scale_that_is_computed(tmp_path: Path) -> None:
    model = Model(MATRIX)
    model.node("QuantizeLinear", ["input", "input"], "q", "it")
    model.node("DequantizeLinear", ["q", "input"], "y")
    refuse(model.save(tmp_path / "m.onnx"), "computed at run time; they must be constants")


def test_another_scale_behind(tmp_path: Path) -> None:
    model = Model(MAP)
    q, _, zero = quantised(model)
    model.node("DequantizeLinear", [q, model.constant("other", np.float32(0.5)), zero], "y", "other_scale")
    with pytest.raises(ModelError, match=r"'other_scale' .*is not that with which 'input_q' is quantised; export"):
        load(model.save(tmp_path / "m.onnx"))


def test_what_was_never_quantised(tmp_path: Path) -> None:
    model = Model(MAP)
    model.node("DequantizeLinear", ["input", model.constant("scale", SCALE)], "y", "it")
    refuse(model.save(tmp_path / "m.onnx"), "its operand 'input' is float32")


def test_who_computes_with_integers_is_refused_and_so_are_outputs_of_integers(tmp_path: Path) -> None:
    model = Model(MAP)
    q, *operands = quantised(model)
    model.node("Concat", [q, q], "both", "reader", axis=1)
    model.node("Flatten", [q], "flat", "outside")
    model.node("DequantizeLinear", ["both", *operands], "y")
    with pytest.raises(ModelError) as caught:
        load(model.save(tmp_path / "m.onnx", ["flat", "y"]))
    _, first, second = str(caught.value).splitlines()
    assert first.startswith("  Concat 'reader' (opset 17): it computes with integers, 'input_q'; export the Quantize")
    assert second.startswith("  Flatten 'outside' (opset 17): its result 'flat' is integers, and an output; ask for")


@pytest.mark.parametrize(
    "op", ["QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger", "DynamicQuantizeLinear"]
)
def test_operators_on_integers(tmp_path: Path, op: str) -> None:
    model = Model(MAP)
    q, *operands = quantised(model)
    model.node(op, [q, *operands], "r", "reader")
    model.node("DequantizeLinear", ["r", *operands], "y")
    with pytest.raises(ModelError) as caught:
        load(model.save(tmp_path / "m.onnx"))
    (line,) = str(caught.value).partition("; supported")[0].splitlines()
    assert line.endswith(
        f"{op} 'reader' (opset 17): it computes with integers; "
        "export the QuantizeLinear/DequantizeLinear (QDQ) form of the model, or the float32 model"
    )


# ---- Weights


def integer_weight(model: Model, values: Any, scale: Any, zero: Any, name: str = "w", **options: Any) -> str:
    operands = [model.constant(f"{name}_q", values), model.constant(f"{name}_s", np.asarray(scale, np.float32))]
    operands += [] if zero is None else [model.constant(f"{name}_z", np.asarray(zero, values.dtype))]
    return model.node("DequantizeLinear", operands, name, **options)


def scales(count: int) -> Any:
    return np.linspace(0.01, 0.02, count, dtype=np.float32)


@pytest.mark.parametrize(
    ("values", "scale", "zero", "axis", "steps"),
    [
        (integers(5, 4, 3, 3).astype(np.int8), 0.01, 0, 1, [0.01] * 5),
        (integers(5, 4, 3, 3).astype(np.int8), [0.01], None, 1, [0.01] * 5),
        (integers(5, 4, 3, 3).astype(np.int8), scales(5), [0] * 5, 0, scales(5)),
        (integers(5, 4, 3, 3).astype(np.int8), scales(5), [0] * 5, -4, scales(5)),
        (integers(5, 4, 3, 3, low=0, high=255).astype(np.uint8), scales(5), [128] * 5, 0, scales(5)),
        (integers(5, 4, 3, 3, low=0, high=255).astype(np.uint8), 0.01, 127, 0, None),  # 128 is no signed byte
        (integers(5, 4, 3, 3, low=0, high=127).astype(np.uint8), 0.01, None, 0, [0.01] * 5),
        (integers(5, 4, 3, 3).astype(np.int8), scales(4), [0] * 4, 1, None),  # of input channels
        (integers(5, 4, 3, 3).astype(np.int32), 0.01, 0, 1, None),
        (integers(5, 4, 3, 3).astype(np.int8), -0.01, 0, 1, None),
    ],
)
def test_weights_of_a_convolution(
    tmp_path: Path, values: Any, scale: Any, zero: Any, axis: int, steps: Sequence[float] | None
) -> None:
    model = Model(MAP)
    weight = integer_weight(model, values, scale, zero, axis=axis)
    bias = integer_weight(
        model, integers(5, low=-99999, high=99999).astype(np.int32), scales(5) / 1e4, [0] * 5, "b", axis=0
    )
    model.node("Conv", ["input", weight, bias], "y")
    (op,) = checked(model, tmp_path).ops
    assert isinstance(op, Conv)
    if steps is None:
        assert op.weight_steps is None
        return
    assert op.weight_steps is not None
    assert op.weight_steps.tolist() == np.float32(steps).tolist()
    exact = values.astype(np.int32) - np.asarray(0 if zero is None else zero, np.int32).flat[0]
    assert np.array_equal(np.rint(op.weight / op.weight_steps[:, None, None, None]), exact)


@pytest.mark.parametrize(
    ("form", "axis", "known"),
    [("Gemm", 1, True), ("Gemm", 0, False), ("transB", 0, True), ("transB", 1, False), ("alpha", 0, False),
     ("MatMul", 1, True), ("MatMul", 0, False), ("Transpose", 0, True), ("Transpose", 1, False)],
)  # fmt: skip
def test_weights_of_a_fully_connected_layer(tmp_path: Path, form: str, axis: int, known: bool) -> None:
    model = Model(MATRIX)
    shape = (6, 5) if form in ("Gemm", "MatMul") else (5, 6)
    weight = integer_weight(model, integers(*shape).astype(np.int8), scales(shape[axis]), None, axis=axis)
    if form == "Transpose":
        weight = model.node("Transpose", [weight], "turned")
    options = {} if form in ("MatMul", "Transpose") else {"transB": int(form != "Gemm")}
    options |= {"alpha": 0.5} if form == "alpha" else {}
    model.node("Gemm" if options else "MatMul", ["input", weight], "y", **options)
    (op,) = checked(model, tmp_path).ops
    assert isinstance(op, Gemm)
    assert (op.weight_steps is not None) == known
    if op.weight_steps is not None:
        assert op.weight_steps.tolist() == scales(5).tolist()
        whole = op.weight / op.weight_steps[:, None]
        assert np.abs(whole - np.rint(whole)).max() < 1e-4


@pytest.mark.parametrize("zero", [None, np.int8([0] * 5), np.uint8([128] * 5)])
def test_float_weights_that_the_file_rounds(tmp_path: Path, zero: Any) -> None:
    """As training with quantisation in mind writes them; half of them beyond the limits."""
    model = Model(MAP)
    operands = [model.constant("s", scales(5))] + ([] if zero is None else [model.constant("z", zero)])
    model.constant("w", 1.5 * random_input((5, 4, 3, 3)))
    model.node("QuantizeLinear", ["w", *operands], "w_q", axis=0)
    model.node("Conv", ["input", model.node("DequantizeLinear", ["w_q", *operands], "w_dq", axis=0)], "y")
    (op,) = checked(model, tmp_path).ops
    assert isinstance(op, Conv)
    assert (op.weight_steps is None) == (zero is None)


@pytest.mark.parametrize(("low", "high"), [(-127, 127), (-8, 7), (None, 7), (-4, None)])
@pytest.mark.parametrize("axis", [None, 0])
def test_q9_weights_as_brevitas_writes_them(
    tmp_path: Path, low: int | None, high: int | None, axis: int | None
) -> None:
    """QuantizeLinear, Clip to fewer bits, DequantizeLinear, all of constants."""
    model = Model(MAP)
    scale = model.constant("s", np.float32(0.1) if axis is None else scales(5) * 20)
    operands = [scale, model.constant("z", np.int8(0) if axis is None else np.int8([0] * 5))]
    bounds = ["" if bound is None else model.constant(f"b{i}", np.int8(bound)) for i, bound in enumerate((low, high))]
    model.constant("w", 5 * random_input((5, 4, 3, 3)))
    options = {} if axis is None else {"axis": axis}
    model.node("QuantizeLinear", ["w", *operands], "w_q", **options)
    model.node("Clip", ["w_q", *bounds], "w_c")
    model.node("DequantizeLinear", ["w_c", *operands], "w_dq", **options)
    model.node("Conv", ["input", "w_dq"], "y")
    (op,) = checked(model, tmp_path).ops
    assert isinstance(op, Conv)
    assert op.weight_steps is not None


@pytest.mark.parametrize(
    ("zero", "low", "high"),
    [(np.int8(0), -127, 127), (np.int8(0), -8, 7), (np.uint8(0), 0, 15), (np.uint8(120), 100, None), (None, None, 3)],
)
def test_q9_activations_as_brevitas_writes_them(tmp_path: Path, zero: Any, low: int | None, high: int | None) -> None:
    """The same of run-time values: the integers keep their scale, and have fewer values."""
    model = Model(MAP)
    kind = np.uint8 if zero is None else zero.dtype.type
    q, *operands = quantised(model, zero=zero)
    bounds = ["" if bound is None else model.constant(f"b{i}", kind(bound)) for i, bound in enumerate((low, high))]
    model.node("Clip", [q, *bounds], "c")
    model.node("MaxPool", ["c"], "p", kernel_shape=[2, 2])
    model.node("DequantizeLinear", ["p", *operands], "y")
    checked(model, tmp_path)
    x = random_input((2, 4, 9, 7), seed=3)
    (expected,) = run_onnxruntime(tmp_path / "m.onnx", {"input": x}).values()
    np.testing.assert_allclose(kernels(tmp_path / "m.onnx", x), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("bound", [np.float32(3), np.int8([3, 4]), np.uint8(3)])
def test_q9_bounds_of_another_kind_are_refused(tmp_path: Path, bound: Any) -> None:
    model = Model(MAP)
    q, *operands = quantised(model, zero=np.int8(0))
    model.node("Clip", [q, "", model.constant("b", bound)], "c", "clip")
    model.node("DequantizeLinear", ["c", *operands], "y")
    with pytest.raises(ModelError, match=r"Clip 'clip' .*"):
        load(model.save(tmp_path / "m.onnx"))


@pytest.mark.parametrize(
    ("function", "operands", "attributes", "message"),
    [
        (quantise, [np.int32([1]), ONE], {}, "something else than float32"),
        (quantise, [np.float32([1]), ONE, np.int32(0)], {}, "zero point has element type int32"),
        (quantise, [np.float32([1, 2]), np.float32([1, 2, 3])], {"axis": 0}, r"shape \(3,\) for axis 0 of \(2,\)"),
        (dequantise, [np.int64([1]), ONE], {}, "it reads int64"),
        (dequantise, [np.int8([1]), ONE, np.uint8(0)], {}, "zero point is uint8 for int8"),
        (dequantise, [np.int32([1]), ONE, np.int32(1)], {}, "not 0 for int32"),
        (dequantise, [np.int8([1, 2]), np.float32([1, 2])], {}, r"for axis 1 of \(2,\)"),
        (dequantise, [np.int8([1]), ONE], {"block_size": 2}, "blocks of 2"),
        (dequantise, [np.int8([1]), ONE], {"output_dtype": TensorProto.BFLOAT16}, "result is BFLOAT16"),
        (quantise, [np.float32([1]), ONE], {"precision": TensorProto.DOUBLE}, "divides in DOUBLE"),
    ],
)
@pytest.mark.every_case
def test_constants_that_cannot_be(function: Any, operands: list[Any], attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(FoldError, match=message):
        function(attributes, operands, FoldingBudget())


def test_memory_of_integers_is_bounded() -> None:
    """Four bytes for each one that is read."""
    data = np.zeros(1 << 20, np.int8)
    memory = FoldingBudget(left=0)
    memory.allow(data)
    dequantise({}, [data, ONE], memory)
    dequantise({}, [data, ONE], memory)
    with pytest.raises(FoldError, match="too much memory"):
        dequantise({}, [data, ONE], memory)
