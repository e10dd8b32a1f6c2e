"""checks/quantised_file.py: rounding taken out of a file, and noise put in, as onnxruntime computes both."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.support.onnx_models import Model
from vgg16gpu.checks import quantised_file
from vgg16gpu.checks.onnxruntime_session import open_session
from vgg16gpu.checks.quantised_file import add_noise, rounds_values, without_rounding
from vgg16gpu.errors import ModelError

STEP = 2.0**-4
X = np.linspace(-20, 20, 2561, dtype=np.float32).reshape(1, -1)  # quarters of STEP


def quantised(
    zero: Any,
    *between: Callable[[Model, str], str],
    scale: Any = STEP,
    operands: int = 3,
    **options: Any,
) -> Model:
    """X through QuantizeLinear, what stands between, and DequantizeLinear."""
    model = Model(("n", X.shape[1]))
    constants = [model.constant("s", np.float32(scale)), model.constant("z", np.asarray(zero))][: operands - 1]
    x = model.node("QuantizeLinear", ["input", *constants], "q", **options)
    for make in between:
        x = make(model, x)
    model.node("DequantizeLinear", [x, *constants], "y")
    return model


def run(model: onnx.ModelProto) -> Any:
    return open_session(model.SerializeToString()).run(None, {"input": X})[0]


def edited(model: Model, edit: Callable[..., None], **options: Any) -> onnx.ModelProto:
    proto = model.proto(**options)
    edit(proto, numpy_helper.to_array)
    return proto


KINDS = (np.uint8(0), np.uint8(100), np.uint8(255), np.int8(0), np.int8(-128), np.int8(37))


@pytest.mark.parametrize("opset", [10, 13, 17, 21])
@pytest.mark.parametrize("zero", KINDS, ids=lambda zero: f"{zero.dtype}-{zero}")
def test_saturation_stays_and_rounding_goes(zero: Any, opset: int) -> None:
    model = quantised(zero)
    stands, found = run(model.proto(opset=opset)), run(edited(model, without_rounding, opset=opset))
    limits = np.iinfo(zero.dtype)
    low, high = ((limit - int(zero)) * STEP for limit in (limits.min, limits.max))
    np.testing.assert_array_equal(found, X.clip(low, high))
    assert 0 < np.abs(found - stands).max() <= STEP / 2
    assert (found.min(), found.max()) == (stands.min(), stands.max())


@pytest.mark.parametrize(
    ("options", "limits"), [({}, (0, 255 * STEP)), ({"output_dtype": onnx.TensorProto.INT8}, (-128 * STEP, 127 * STEP))]
)
def test_without_a_zero_point(options: dict[str, Any], limits: tuple[float, float]) -> None:
    model = quantised(0, operands=2, **options)
    found = run(edited(model, without_rounding, opset=21))
    np.testing.assert_array_equal(found, X.clip(*limits))


def clip(low: int | None, high: int | None) -> Callable[[Model, str], str]:
    def make(model: Model, x: str) -> str:
        names = [model.constant(f"c{limit}", np.uint8(limit)) if limit is not None else "" for limit in (low, high)]
        return model.node("Clip", [x, *names], "c")

    return make


def test_operators_that_integers_pass_through() -> None:
    def shaped(model: Model, x: str) -> str:
        x = model.node("Reshape", [x, model.constant("shape", np.array([1, 1, -1, 1]))], "r")
        x = model.node("MaxPool", [x], "p", kernel_shape=[1, 1])
        return model.node("Flatten", [model.node("Identity", [x], "i")], "f")

    model = quantised(np.uint8(100), shaped)
    np.testing.assert_array_equal(run(edited(model, without_rounding)), X.clip(-100 * STEP, 155 * STEP))


@pytest.mark.parametrize(("low", "high"), [(90, 110), (None, 110), (90, None)])
def test_a_clip_of_integers(low: int | None, high: int | None) -> None:
    model = quantised(np.uint8(100), clip(low, high))
    stands, found = run(model.proto()), run(edited(model, without_rounding))
    least, most = -100 if low is None else low - 100, 155 if high is None else high - 100
    np.testing.assert_array_equal(found, X.clip(least * STEP, most * STEP))
    assert (found.min(), found.max()) == (stands.min(), stands.max())


def test_weights_stay_as_the_integers_make_them() -> None:
    model = Model(("n", X.shape[1]))
    integers = model.constant("w", model.random.integers(-127, 128, (3, X.shape[1])).astype(np.int8))
    scales = model.constant("ws", np.array([0.5, 0.25, 0.125], np.float32))
    weight = model.node("DequantizeLinear", [integers, scales], "dw", axis=0)
    s, z = model.constant("s", np.float32(STEP)), model.constant("z", np.uint8(9))
    kept = model.node("QuantizeLinear", [model.constant("f", np.array([0.3], np.float32)), s, z], "qf")
    constant = model.node("DequantizeLinear", [kept, s, z], "df")
    model.node("Gemm", ["input", weight, constant], "y", transB=1)
    proto = model.proto()
    assert not rounds_values(proto)
    before = proto.SerializeToString()
    without_rounding(proto, numpy_helper.to_array)
    assert proto.SerializeToString() == before


def test_constants_behind_copies_and_in_nodes() -> None:
    model = Model(("n", X.shape[1]))
    scale = model.node("Identity", [model.node("Identity", [model.constant("s", np.float32(STEP))], "i")], "j")
    zero = model.node("Constant", [], "z", value=numpy_helper.from_array(np.array([100], np.uint8)))
    x = model.node("QuantizeLinear", ["input", scale, zero], "q")
    model.node("DequantizeLinear", [x, scale, zero], "y")
    assert rounds_values(model.proto())
    np.testing.assert_array_equal(run(edited(model, without_rounding)), X.clip(-100 * STEP, 155 * STEP))


def test_noise_is_of_the_size_of_rounding() -> None:
    model = quantised(np.uint8(100))
    stands, noisy = run(model.proto()), run(edited(model, add_noise))
    noise = noisy - stands
    assert 0.45 * STEP < np.abs(noise).max() <= STEP / 2
    assert np.std(noise) == pytest.approx(STEP / 12**0.5, rel=0.1)
    assert abs(noise.mean()) < 0.05 * STEP
    np.testing.assert_array_equal(run(edited(model, add_noise)), noisy)  # the same in every run


def refused(model: Model, words: str, edits: Sequence[Callable[..., None]] = (without_rounding, add_noise)) -> None:
    for edit in edits:
        with pytest.raises(ModelError, match=words):
            edit(model.proto(), numpy_helper.to_array)


def test_what_is_not_known_is_said() -> None:
    channels = Model(("n", 3, 4, 4))
    operands = [channels.constant("s", np.array([1, 2, 3], np.float32)), channels.constant("z", np.zeros(3, np.uint8))]
    channels.node("DequantizeLinear", [channels.node("QuantizeLinear", ["input", *operands], "q"), *operands], "y")
    refused(channels, r"scales or zero points of shape \(3,\).*--references")
    computed = Model(("n", 4))
    scale = computed.node("ReduceMax", ["input"], "s", keepdims=0)
    computed.node("DequantizeLinear", [computed.node("QuantizeLinear", ["input", scale], "q"), scale], "y")
    refused(computed, "reads 's', which is no constant")
    other = Model(("n", 4))
    first, second = (other.constant(name, np.float32(value)) for name, value in (("s", 1), ("t", 2)))
    other.node("DequantizeLinear", [other.node("QuantizeLinear", ["input", first], "q"), second], "y")
    refused(other, "another scale or zero point", [without_rounding])


def test_it_shares_nothing_with_the_compiler() -> None:
    """Else a mistake could be made on both sides, as it once was."""
    tree = ast.parse(Path(quantised_file.__file__).read_text(encoding="utf-8"))
    named = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name for name in named if name and name.startswith("vgg16gpu")} == {"vgg16gpu.errors"}
