"""The whole ladder on narrow networks: every rung that a device has against onnxruntime, and what has no time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.support.onnx_models import Model
from vgg16gpu.bench.measure.timing import Summary
from vgg16gpu.bench.session import sample_inputs
from vgg16gpu.compiler.graph.input_size import resolve_input_shape
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.compiler.model import Model as OnnxModel
from vgg16gpu.devices.base import Device
from vgg16gpu.errors import DeviceError, KernelError, ModelError
from vgg16gpu.io.shipped import digits_model
from vgg16gpu.zoo.generate import make_vgg
from vgg16gpu_lab.ladder import climb as climbing
from vgg16gpu_lab.ladder.climb import TOLERANCES, Outcome, climb, gains, onnxruntime_scores
from vgg16gpu_lab.ladder.rung import Setting
from vgg16gpu_lab.ladder.rungs import LETTERS, RUNGS

SIMPLE = "ABCDEFGHIJK"  # on kernels of the ladder alone
ON_A_CPU = "LMPT"  # of the engine's


@pytest.fixture(autouse=True)
def _one_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(climbing, "SECONDS", 0.0)
    monkeypatch.setattr(climbing, "WARM_UP", 0.0)


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """36 pixels: a pool drops a row and a column of a map of 9."""
    path = tmp_path_factory.mktemp("ladder") / "narrow.onnx"
    make_vgg(path, width=8, hidden=64, size=36, classes=10)
    return path


def setting(path: Path, device: Device) -> Setting:
    model = OnnxModel(path)
    graph = model.graph()
    return Setting(model, graph, resolve_input_shape(graph, 1), device, device.facts.kind)


def climbed(path: Path, device: Device, letters: str = "".join(LETTERS)) -> dict[str, Outcome]:
    where = setting(path, device)
    x = sample_inputs(where.shape[1:])[:1]
    reference, _ = onnxruntime_scores(where, x)
    rungs = [rung for rung in RUNGS if rung.letter in letters]
    said: list[str] = []
    outcomes = climb(where, rungs, x, reference, said.append)
    assert [line[0] for line in said] == [outcome.rung.letter for outcome in outcomes] == [r.letter for r in rungs]
    return {outcome.rung.letter: outcome for outcome in outcomes}


@pytest.mark.slow(reason="test_nets_of_simple_kernels_are_clean has the simple ones, test_cli.py the table")
def test_every_rung_that_the_device_has_is_right_and_timed(device: Device, narrow: Path) -> None:
    outcomes = climbed(narrow, device)
    assert not [(letter, outcome.why) for letter, outcome in outcomes.items() if outcome.status == "wrong"]
    measured = {letter for letter, outcome in outcomes.items() if outcome.status == "measured"}
    assert {*SIMPLE, *ON_A_CPU} <= measured
    if device.facts.kind == "cpu":
        assert measured == {*SIMPLE, *ON_A_CPU}
        assert "CPU" in outcomes["N"].why
        assert "CUDA graphs" in outcomes["O"].why
    for outcome in outcomes.values():
        assert (outcome.times is not None) == (outcome.status == "measured")
        assert bool(outcome.why) == (outcome.status != "measured")
        if outcome.times:
            assert outcome.error is not None
            assert outcome.error <= TOLERANCES[outcome.rung.precision]
            assert outcome.rung.precision != "fp32" or outcome.error < 1e-5  # this narrow one is better than it must be
            assert (outcome.device is None) == (outcome.rung.letter in "AB")


def test_a_net_with_scales_climbs_to_int8(device: Device) -> None:
    outcomes = climbed(digits_model(), device, "AT")
    assert {letter: outcome.status for letter, outcome in outcomes.items()} == dict.fromkeys("AT", "measured")


@pytest.mark.sanitize
def test_nets_of_simple_kernels_are_clean(device: Device, tmp_path: Path) -> None:
    model = Model(("n", 2, 7, 9))
    pooled = model.node("MaxPool", [model.conv("input", "a", 2, 3)], "b", kernel_shape=[2, 2], strides=[2, 2])
    model.gemm(model.node("Flatten", [pooled], "f"), "scores", 3 * 3 * 4, 4)
    opened = OnnxModel(written(model, tmp_path))
    where = Setting(opened, opened.graph(), (1, 2, 7, 9), device, "")
    x = np.random.default_rng(0).standard_normal((1, 2, 7, 9)).astype(np.float32)
    scores = []
    for rung in RUNGS[: len(SIMPLE)]:
        running = rung.open(where)
        scores.append(running.run(x))
        np.testing.assert_array_equal(running.run(x), scores[-1])
        running.close()
        running.close()
    for other in scores[1:]:
        np.testing.assert_allclose(other, scores[0], rtol=1e-5, atol=1e-6)


def test_layers_that_simple_kernels_do_not_know(device: Device, tmp_path: Path) -> None:
    model = Model(("n", 3, 8, 8))
    pooled = model.node("AveragePool", [model.conv("input", "a", 3, 4)], "b", kernel_shape=[2, 2], strides=[2, 2])
    model.gemm(model.node("Flatten", [pooled], "f"), "scores", 4 * 4 * 4, 5)
    outcomes = climbed(written(model, tmp_path), device, "AELM")
    assert {letter: outcome.status for letter, outcome in outcomes.items()} == {
        "A": "missing",
        "E": "missing",
        "L": "measured",
        "M": "measured",
    }
    assert "Pool 'b'" in outcomes["E"].why
    assert "engine's FFMA kernels" in outcomes["E"].why


def written(model: Model, folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(model.proto().SerializeToString())
    return path


# What is not timed, and how often what is


class Fixed:
    """Runs to these scores; counts."""

    def __init__(self, scores: Array, error: Exception | None = None) -> None:
        self.scores, self.error, self.runs, self.closed = scores, error, 0, 0

    def run(self, _: Array) -> Array:
        self.runs += 1
        if self.error:
            raise self.error
        return self.scores

    def device_seconds(self, _: int) -> None:
        return None

    def close(self) -> None:
        self.closed += 1


REFERENCE = np.array([[1.0, 2.0]], np.float32)


def outcome_of(running: Fixed | Exception) -> Outcome:
    def opened(_: Setting) -> Fixed:
        if isinstance(running, Exception):
            raise running
        return running

    rung = replace(RUNGS[0], open=opened)
    where = Setting(None, None, (1, 1, 1, 1), SimpleNamespace(), "cpu")
    return climb(where, [rung], REFERENCE, REFERENCE, lambda _: None)[0]


@pytest.mark.parametrize(("wrong", "status"), [(None, "measured"), (0, "wrong"), (2, "wrong")])
def test_every_image_is_checked_and_the_first_timed(wrong: int | None, status: str) -> None:
    reference = np.array([[1.0, 2.0], [3.0, 5.0], [-1.0, 4.0]], np.float32)
    seen: list[int] = []

    class Each(Fixed):
        def run(self, x: Array) -> Array:
            seen.append(int(x[0, 0]))
            return reference[seen[-1] :][:1] * (1.01 if seen[-1] == wrong else 1.0)

    x = np.arange(3, dtype=np.float32).reshape(3, 1)
    rung = replace(RUNGS[0], open=lambda _: Each(reference))
    where = Setting(None, None, (1, 1, 1, 1), SimpleNamespace(), "cpu")
    (outcome,) = climb(where, [rung], x, reference, lambda _: None)
    assert (outcome.status, seen[:3]) == (status, [0, 1, 2])
    assert {*seen[3:]} == ({0} if status == "measured" else set())


def test_a_run_that_fails_is_wrong_and_closed() -> None:
    running = Fixed(REFERENCE, KernelError("gave up"))
    outcome = outcome_of(running)
    assert (outcome.status, outcome.why, outcome.times, running.closed) == ("wrong", "gave up", None, 1)
    # What cannot be opened at all
    for error, status in ((ModelError("no"), "missing"), (DeviceError("no"), "missing"), (KernelError("no"), "wrong")):
        outcome = outcome_of(error)
        assert (outcome.status, outcome.why, outcome.times) == (status, "no", None)


def test_a_long_checked_run_is_the_only_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    running = Fixed(REFERENCE)
    assert outcome_of(running).times is not None
    assert running.runs == 2
    monkeypatch.setattr(climbing, "PATIENCE", 0.0)
    patient = Fixed(REFERENCE)
    outcome = outcome_of(patient)
    assert outcome.times is not None
    assert (outcome.times.samples, patient.runs) == (1, 1)


# Gains


def reached(letter: str, seconds: float | None) -> Outcome:
    rung = RUNGS[LETTERS.index(letter)]
    if seconds is None:
        return Outcome(rung, "missing", "why")
    return Outcome(rung, "measured", "", 0.0, Summary(seconds, seconds, seconds, 1))


def test_gains_are_over_the_last_rung_with_a_time() -> None:
    found = gains([reached("A", 8.0), reached("B", 2.0), reached("C", None), reached("D", 0.5)])
    b, c, d = (RUNGS[LETTERS.index(letter)].predicted for letter in "BCD")
    assert [gain.measured for gain in found] == [None, 4.0, None, 4.0]
    assert [gain.predicted for gain in found] == [None, b, c, c * d]
    # A rung left out counts in the prediction
    (_, gain) = gains([reached("E", 3.0), reached("G", 1.0)])
    f, g = (RUNGS[LETTERS.index(letter)].predicted for letter in "FG")
    assert (gain.measured, gain.predicted) == (3.0, f * g)
