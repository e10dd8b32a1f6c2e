"""Quantised files in precisions that do not round, beside onnxruntime on the file as it stands and without rounding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import QuantType

from tests.support.onnx_models import Model, random_input
from tests.support.quantised_nets import ACTIVATIONS, SHAPE, inputs, quantised, vgg
from vgg16gpu import Engine
from vgg16gpu.checks.accuracy import SCORE_TOLERANCES, score_error
from vgg16gpu.checks.onnxruntime_oracle import Oracle
from vgg16gpu.checks.quantised_file import add_noise, without_rounding
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.compiler.model import Model as OnnxModel

OPTIONS: Final = MappingProxyType(
    {
        "defaults": {},
        "signed": {"activation_type": QuantType.QInt8, "per_channel": True},
        "symmetric": {"activation_type": QuantType.QInt8, "extra_options": {"ActivationSymmetric": True}},
    }
)
LOUD: Final = 3.0  # of inputs: values of every layer leave the limits of their activation
LEFT_OUT: Final = ("relu", "relu6", "hardtanh", "unit")  # by the tool's defaults, as integers end where these do


def made(activation: str, options: str, folder: Path) -> Path:
    return quantised(vgg(activation), folder / "m.onnx", scale=LOUD, **OPTIONS[options])


def run(path: Path, x: Array, precision: str, **options: Any) -> Any:
    with Engine(path, device="cpu", batch=len(x), precision=precision, **options) as engine:
        return engine.run(x)


def launches(path: Path, **options: Any) -> list[str]:
    with Engine(path, device="cpu", **options) as engine:
        return [step.label for step in engine.program.steps]


def check(path: Path, x: Array) -> None:
    """The fp32 scores are near the file without rounding by float32, near the file as it stands by its rounding."""
    scores = run(path, x, "fp32")
    stands, unrounded, noisy = (Oracle(path, edit=edit).scores(x) for edit in (None, without_rounding, add_noise))
    assert score_error(scores, unrounded).max() <= SCORE_TOLERANCES["fp32"]
    assert (scores.argmax(axis=1) == unrounded.argmax(axis=1)).all()
    rounding = score_error(noisy, stands).mean()
    assert 0 < rounding < 0.15
    assert score_error(scores, stands).mean() <= 2 * rounding
    best = np.sort(stands, axis=1)[:, :-3:-1]
    is_clear = best[:, 0] - best[:, 1] > 4 * rounding * np.abs(stands).max(axis=1)
    assert (scores.argmax(axis=1) == stands.argmax(axis=1))[is_clear].all()


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_fp32_means_the_file(tmp_path: Path, activation: str, options: str) -> None:
    path, x = made(activation, options, tmp_path), inputs(16, 99, LOUD)
    kinds = {node.op_type for node in onnx.load(path).graph.node}
    if options == "defaults" and activation in LEFT_OUT:
        assert kinds.isdisjoint({"Clip", "Relu"})
    check(path, x)
    check(path, x * np.float32(4))  # far outside of what was calibrated with: the file saturates
    before = Oracle(path.with_suffix(".float.onnx")).scores(x)
    assert score_error(run(path, x, "fp32"), before).mean() < 0.06


def test_clips_cost_no_launch(tmp_path: Path) -> None:
    """They are limits of the layers before them, that of the input of what takes it in."""
    path = made("hardtanh", "defaults", tmp_path)
    found, before = (launches(file) for file in (path, path.with_suffix(".float.onnx")))
    assert not any(label.startswith("clip") for label in found)
    assert len(found) <= len(before)


# ---- Files in forms that other tools write


def rounded(model: Model, x: str, step: float, zero: Any, name: str = "") -> str:
    """X through QuantizeLinear and DequantizeLinear."""
    name = name or x
    operands = [model.constant(f"{name}_s", np.float32(step)), model.constant(f"{name}_z", np.asarray(zero))]
    q = model.node("QuantizeLinear", [x, *operands], f"{name}_q")
    return model.node("DequantizeLinear", [q, *operands], f"{name}_dq")


def residual(model: Model) -> None:
    """A value that is rounded in two ways, and added as it is, too; a sum with a ReLU behind it."""
    x = model.conv(rounded(model, "input", 0.03, np.uint8(120)), "a", 3, 8)
    b = model.conv(rounded(model, x, 0.02, np.uint8(30)), "b", 8, 8)
    c = model.conv(rounded(model, x, 0.01, np.int8(-100), "again"), "c", 8, 8)
    total = model.node("Add", [model.node("Add", [b, c], "bc"), x], "sum")
    total = rounded(model, model.node("Relu", [total], "relu"), 0.03, np.int8(-128))
    model.node("GlobalAveragePool", [total], "mean")
    model.gemm(model.node("Flatten", [rounded(model, "mean", 0.004, np.uint8(0))], "flat"), "y", 8, 10)


def twice(model: Model) -> None:
    """Rounded with one scale, then with another one, narrower at one end; alike for two who read it."""
    x = model.conv(rounded(model, "input", 0.03, np.int8(0)), "a", 3, 8)
    x = rounded(model, rounded(model, x, 0.02, np.uint8(128)), 0.015, np.uint8(20), "narrow")
    left = model.conv(rounded(model, x, 0.01, np.uint8(0), "left"), "l", 8, 4)
    right = model.conv(rounded(model, x, 0.01, np.uint8(0), "right"), "r", 8, 4)
    model.node("Concat", [left, right], "both", axis=1)
    x = model.node(
        "MaxPool", [rounded(model, "both", 0.02, np.uint8(100))], "pool", kernel_shape=[3, 3], strides=[2, 2]
    )
    model.gemm(model.node("Flatten", [rounded(model, x, 0.02, np.uint8(100))], "flat"), "y", 8 * 49, 10)


def integers_pass(model: Model) -> None:
    """Operators between the two that integers pass through; a ReLU behind; probabilities that end below 1."""
    operands = [model.constant("s", np.float32(0.02)), model.constant("z", np.uint8(60))]
    x = model.node("QuantizeLinear", [model.conv("input", "a", 3, 8), *operands], "q")
    x = model.node("MaxPool", [x], "pool", kernel_shape=[2, 2], strides=[2, 2])
    x = model.node("DequantizeLinear", [model.node("Flatten", [x], "flat"), *operands], "dq")
    x = model.gemm(model.node("Relu", [x], "relu"), "g", 8 * 64, 10)
    loud = model.node("Mul", [rounded(model, x, 0.1, np.uint8(128)), model.constant("ten", np.float32(10))], "loud")
    rounded(model, model.node("Softmax", [loud], "p", axis=1), 2.0**-8, np.uint8(0))


def channels_last(model: Model) -> None:
    """Keras' input, quantised before it is transposed."""
    x = model.node("Transpose", [rounded(model, "input", 0.02, np.uint8(90))], "nchw", perm=[0, 3, 1, 2])
    x = rounded(model, model.conv(x, "a", 3, 8), 0.01, np.uint8(0))
    x = rounded(model, model.node("AveragePool", [x], "mean", kernel_shape=[2, 2], strides=[2, 2]), 0.005, np.uint8(0))
    model.gemm(model.node("Flatten", [x], "flat"), "y", 8 * 64, 10)


def general(model: Model) -> None:
    """Grouped convolutions, normalisation of what is no layer's result, a leaky ReLU, a Mul."""
    x = rounded(model, model.conv("input", "a", 3, 8), 0.02, np.uint8(100))
    x = rounded(model, model.conv(x, "b", 2, 8, group=4), 0.02, np.int8(-20))
    x = rounded(model, model.batch_norm(x, "n", 8), 0.02, np.uint8(140))
    x = rounded(model, model.node("LeakyRelu", [x], "leaky", alpha=0.3), 0.01, np.uint8(40))
    x = rounded(model, model.node("Mul", [x, model.weight("m", 8, 1, 1)], "mul"), 0.01, np.uint8(77))
    model.gemm(model.node("Flatten", [x], "flat"), "y", 8 * 256, 10)


FORMS: Final[dict[str, tuple[tuple[int, ...], Callable[[Model], None]]]] = {
    made.__name__: ((16, 16, 3) if made is channels_last else SHAPE, made)
    for made in (residual, twice, integers_pass, channels_last, general)
}


@pytest.mark.parametrize("form", FORMS)
def test_other_forms(tmp_path: Path, form: str) -> None:
    shape, make = FORMS[form]
    model = Model(("n", *shape))
    make(model)
    path, x = model.save(tmp_path / "m.onnx"), random_input((6, *shape), 7) * np.float32(2)
    stands, unrounded, noisy = (Oracle(path, edit=edit).scores(x) for edit in (None, without_rounding, add_noise))
    scores = run(path, x, "fp32")
    assert score_error(scores, unrounded).max() <= SCORE_TOLERANCES["fp32"]
    assert score_error(scores, stands).mean() <= 2 * score_error(noisy, stands).mean()
    assert OnnxModel(path).graph().input.channels_last == (form == "channels_last")
