"""Replicas of real files: accepted with onnxruntime's answer, or refused with every reason at once."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto

from tests.support.replicas import BROKEN, ITEMS, REFUSED, ROWS, Array, Broken, Refused, Replica, answers
from vgg16gpu import Engine
from vgg16gpu.checks.accuracy import INT8_RATIO, SCORE_TOLERANCE, score_error
from vgg16gpu.checks.onnxruntime_session import open_session
from vgg16gpu.errors import InputError, ModelError
from vgg16gpu.runtime.session import Session

ACCEPTED = {**ROWS, **ITEMS}
QUANTISED = [name for name in ROWS if "qdq" in name]


def relative(got: Array, expected: Array) -> float:
    """Largest difference beside the largest score."""
    assert got.shape == expected.shape
    return float(np.abs(got.astype(np.float64) - expected).max() / np.abs(expected).max())


def judged(replica: Replica, x: Array) -> list[Array]:
    """The right answers."""
    proto = replica.build()
    return answers(replica.judge(proto) if replica.judge else proto, x)


def run(path: Path, replica: Replica, x: Array, precision: str = "fp32") -> list[Array]:
    """The engine's answers; a session's for what is not images."""
    if replica.whole:
        with Session(path, device="cpu") as session:
            return list(session.run({session.inputs[0].name: x}))
    options = {} if replica.size is None else {"size": replica.size}
    with Engine(path, device="cpu", batch=len(x), precision=precision, **options) as engine:
        outputs = engine.run(x)
    return list(outputs) if isinstance(outputs, tuple) else [outputs]


# ---- Accepted


@pytest.mark.parametrize("name", ACCEPTED)
def test_the_replica_itself_is_right(tmp_path: Path, name: str) -> None:
    """onnx.checker takes it, onnxruntime runs the file, and what judges it differs by rounding alone."""
    replica = ACCEPTED[name]
    path = replica.write(tmp_path)
    onnx.checker.check_model(str(path), full_check=True)
    for batch in replica.batches:
        x = replica.input(batch)
        expected = judged(replica, x)
        for scores in expected:
            assert np.isfinite(scores).all()
            assert np.abs(scores).max() > 1e-3
        if replica.runs:
            drifts = [relative(got, y) for got, y in zip(answers(path, x), expected, strict=True)]
            assert (min(drifts) > 0) == (replica.drift > 0)
            assert max(drifts) <= replica.drift


@pytest.mark.parametrize("name", ROWS)
def test_the_scores_of_a_whole_file_depend_on_the_image(name: str) -> None:
    """The control: a network in which all images look alike would let wrong kernels pass."""
    x = ROWS[name].input(ROWS[name].batches[0])
    mirrored = np.ascontiguousarray(x[:, :, ::-1])
    for got, expected in zip(judged(ROWS[name], mirrored), judged(ROWS[name], x), strict=True):
        assert relative(got, expected) > 1000 * SCORE_TOLERANCE


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(tmp_path: Path, name: str) -> None:
    replica = ACCEPTED[name]
    path = replica.write(tmp_path)
    for batch in replica.batches:
        x = replica.input(batch)
        for got, expected in zip(run(path, replica, x), judged(replica, x), strict=True):
            assert got.dtype == np.float32
            assert relative(got, expected) <= SCORE_TOLERANCE


@pytest.mark.first_case(reason="compiler/quantization has each form; one file shows the whole")
@pytest.mark.parametrize("name", QUANTISED)
def test_a_quantised_file_runs_on_its_own_scales(tmp_path: Path, name: str) -> None:
    """In int8 as near to what the file says without rounding as onnxruntime is, and rounded indeed."""
    replica = ROWS[name]
    path = replica.write(tmp_path)
    x = replica.input(32)
    (exact,) = judged(replica, x)
    ours = score_error(run(path, replica, x, "int8")[0], exact)
    theirs = score_error(answers(path, x)[0], exact)
    assert ours.min() > SCORE_TOLERANCE
    assert ours.mean() <= INT8_RATIO * theirs.mean()


# ---- Refused


def refusal(path: Path, **options: object) -> str:
    """What the engine says."""
    with pytest.raises(ModelError) as caught, Engine(path, device="cpu", **options):
        pass
    return str(caught.value)


def versions(proto: ModelProto) -> dict[str, int]:
    """The opset of each domain."""
    return {item.domain: item.version for item in proto.opset_import}


@pytest.mark.parametrize("name", REFUSED)
def test_the_refused_replica_is_what_it_says(name: str) -> None:
    """Valid ONNX for the checker unless it is said to be none; so it is the engine that has to notice."""
    refused = REFUSED[name]
    proto = refused.build()
    assert versions(proto).keys() >= {node.domain for node in proto.graph.node}
    if refused.valid:
        onnx.checker.check_model(proto)
    else:
        with pytest.raises(onnx.checker.ValidationError):
            onnx.checker.check_model(proto)


@pytest.mark.parametrize("name", REFUSED)
def test_refused(tmp_path: Path, name: str) -> None:
    refused: Refused = REFUSED[name]
    proto = refused.build()
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    message = refusal(path)
    assert str(path) in message
    for node in proto.graph.node:
        if refused.offends(node):
            lines = [line for line in message.splitlines() if f"{node.op_type} '{node.name}'" in line]
            assert lines, f"{node.op_type} '{node.name}' is not named:\n{message}"
            assert f"opset {versions(proto)[node.domain]}" in lines[0]
            assert re.search(";|,", lines[0]), "a reason, then a remedy"
        elif node.op_type not in refused.also:
            assert f"{node.op_type} '{node.name}' (opset" not in message
    for word in refused.words:
        assert re.search(word, message, re.IGNORECASE), f"no {word} in:\n{message}"


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files(tmp_path: Path, name: str) -> None:
    broken: Broken = BROKEN[name]
    path = broken.write(tmp_path)
    message = refusal(path)
    assert str(path.parent) in message
    for word in broken.words:
        assert re.search(word, message, re.IGNORECASE), f"no {word} in:\n{message}"


def test_the_traps_are_traps(tmp_path: Path) -> None:
    """onnx itself loads an empty file and its checker passes opset 99: nobody else will notice."""
    onnx.load(BROKEN["empty"].write(tmp_path))
    onnx.checker.check_model(REFUSED["opset-99"].build())
    with pytest.raises(Exception, match=r"opset|version|implementation"):
        open_session(REFUSED["opset-99"].build().SerializeToString(), quiet=True)


def test_an_open_image_size_that_does_not_fit_is_refused_with_one_that_does(tmp_path: Path) -> None:
    """The fully connected layers take 64x64 images only, though the model leaves the size open."""
    proto = ROWS["torch-legacy"].build()
    for dim in list(proto.graph.input[0].type.tensor_type.shape.dim)[2:]:
        dim.dim_param = "side"
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    message = refusal(path, size=128)
    for words in ("128x128", "64x64 would fit", "Gemm"):
        assert words in message


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ((1, 64, 64, 3), np.float32),  # NHWC
        ((3, 64, 64), np.float32),
        ((1, 1, 64, 64), np.float32),
        ((1, 3, 48, 48), np.float32),
        ((1, 3, 64, 64), np.float64),
        ((1, 3, 64, 64), np.uint8),  # bytes are (N, H, W, C)
    ],
)
def test_an_input_of_the_wrong_shape_or_layout_is_refused(tmp_path: Path, shape: tuple[int, ...], kind: type) -> None:
    with Engine(ROWS["torch-legacy"].write(tmp_path), device="cpu") as engine:
        with pytest.raises(InputError) as caught:
            engine.run(np.zeros(shape, kind))
        message = str(caught.value)
        for word in ("'input'", np.dtype(kind).name, str(shape), "float32 (N, 3, 64, 64)", "uint8 (N, 64, 64, 3)"):
            assert word in message
