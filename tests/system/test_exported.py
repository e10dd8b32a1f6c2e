"""Files of real exporters (tests/fixtures/exported): accepted with onnxruntime's answer, or refused by name."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.support.exported_files import ACCEPTED, FOLDER, HALVES, QUANTISED, REFUSED, answers, in_float32, sample
from vgg16gpu import Engine
from vgg16gpu.checks.accuracy import SCORE_TOLERANCE, score_error
from vgg16gpu.checks.onnxruntime_oracle import Oracle
from vgg16gpu.checks.quantised_file import without_rounding
from vgg16gpu.compiler.onnx.load import load
from vgg16gpu.errors import InputError, ModelError

HALF_DRIFT = 5e-3  # of scores that onnxruntime rounds to float16 after every layer


@pytest.mark.every_case
@pytest.mark.parametrize("name", ACCEPTED)
def test_scores_are_onnxruntimes(name: str) -> None:
    path = FOLDER / name
    graph = load(path)
    for batch in (1, 2) if graph.input.shape[0] is None else (1,):
        x = sample(path, batch)
        if name in QUANTISED:
            expected = Oracle(path, edit=without_rounding).scores(x)
        else:
            (expected,) = answers(in_float32(onnx.load(path)) if name in HALVES else path, x)
        with Engine(path, device="cpu", batch=batch) as engine:
            assert (score_error(engine.run(x), expected) <= SCORE_TOLERANCE).all()
            assert engine.graph.input.channels_last == name.startswith("keras")
            other = score_error(engine.run(x[:, ::-1]), expected)
        assert (other > 20 * SCORE_TOLERANCE).all()  # the control: another image has other scores
        if name in HALVES:
            assert (score_error(answers(path, x)[0], expected) <= HALF_DRIFT).all()


def test_a_quantised_file_runs_on_its_own_scales() -> None:
    """In int8 as near to the file before it was quantised as onnxruntime is, and rounded indeed."""
    path, plain = FOLDER / "quantised-defaults.onnx", FOLDER / "torch-legacy.onnx"
    x = sample(plain, 8)
    exact, theirs = (np.concatenate([answers(file, image[None])[0] for image in x]) for file in (plain, path))
    with Engine(path, device="cpu", precision="int8") as engine:
        ours = engine.run(x)
    assert score_error(ours, exact).min() > SCORE_TOLERANCE
    assert score_error(ours, exact).mean() <= 1.1 * score_error(theirs, exact).mean()


@pytest.mark.parametrize("name", REFUSED)
def test_every_node_that_is_refused_is_named(name: str) -> None:
    """Dropout and normalisation in training mode, with what to call; operators of onnxruntime's own domain."""
    with pytest.raises(ModelError) as caught:
        load(FOLDER / name)
    message = str(caught.value)
    assert name in message
    offenders = [
        node
        for node in onnx.load(FOLDER / name).graph.node
        if node.domain == "com.microsoft" or node.op_type in ("Dropout", "BatchNormalization", "QLinearConv")
    ]
    assert len(offenders) >= 2
    for node in offenders:
        (line,) = [line for line in message.splitlines() if f"{node.op_type} '{node.name}' (opset" in line]
        assert ("eval()" if "training" in name else "QuantizeLinear/DequantizeLinear (QDQ)") in line or (
            node.op_type == "QLinearConv" and "not supported" in line
        )


def test_inputs_of_another_shape_are_refused() -> None:
    with Engine(FOLDER / "torch-legacy.onnx", device="cpu") as engine:
        for shape, kind in (
            ((1, 64, 64, 3), np.float32),  # NHWC
            ((3, 64, 64), np.float32),
            ((1, 1, 64, 64), np.float32),
            ((1, 3, 48, 48), np.float32),
            ((1, 3, 64, 64), np.float64),
            ((1, 3, 64, 64), np.uint8),  # bytes are (N, H, W, C)
        ):
            with pytest.raises(InputError) as caught:
                engine.run(np.zeros(shape, kind))
            for word in ("'input'", np.dtype(kind).name, str(shape), "float32 (N, 3, 64, 64)", "uint8 (N, 64, 64, 3)"):
                assert word in str(caught.value)
