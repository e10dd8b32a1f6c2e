"""The benchmark's peers: which are here, which compute what we do, and which are only timed."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from vgg16gpu.accuracy import score_error
from vgg16gpu.bench import peers, session
from vgg16gpu.bench.ours import NAME
from vgg16gpu.bench.peers import PEERS, PeerError, Setting, open_peer, open_peers
from vgg16gpu.bench.precision import PEER_TOLERANCES, SCORE_TOLERANCES
from vgg16gpu.bench.record import names, select
from vgg16gpu.bench.timing import Method
from vgg16gpu.cli import cli
from vgg16gpu.onnxruntime_session import open_session
from vgg16gpu.prepare import Request, load_graph
from vgg16gpu.reference import Oracle
from vgg16gpu.zoo.generate import make_vgg


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "narrow.onnx"
    make_vgg(path, width=8, hidden=64, size=32, classes=10)
    return path


def bench(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["bench", *map(str, arguments), "--device", "cpu"])


def setting(model: Path, precision: str = "fp32") -> Setting:
    return Setting(model, load_graph(Request(model)), (3, 32, 32), "cpu", 0, 1, precision)


def without(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """Packages that are not installed, as far as anybody asks."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name in packages else find_spec(name, *rest)
    )


class FakePeer:
    """A peer whose only contender gives `scores`, or anything at all if `unchecked`."""

    notes: Sequence[str] = ("a remark",)

    def __init__(self, scores: np.ndarray, unchecked: str = "") -> None:
        self.name, self.variant, self.methods = "torch", "fake", (Method.HOST_TO_HOST,)
        self.unchecked = unchecked
        self.closed = False
        self._scores = scores

    @contextmanager
    def contenders(self, _: np.ndarray) -> Iterator[Sequence[Any]]:
        yield [self]

    def scores(self) -> np.ndarray:
        return self._scores

    def measure(self, _: Method, runs: int) -> list[float]:
        return [1e-3] * runs

    def close(self) -> None:
        self.closed = True


# Which are here


def test_a_missing_peer_is_a_note(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "torch", "tensorrt")
    result = bench(model, "--repeats", 1, "--against", "onnxruntime,torch,tensorrt", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["notes"] == [
        f"{name} is not installed (pip install {name}): not compared" for name in ("torch", "tensorrt")
    ]
    assert names(found["records"]) == [NAME, "onnxruntime"]


def test_a_missing_peer_is_an_error_when_nothing_else_was_asked(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "torch", "jax")
    result = bench(model, "--repeats", 1, "--against", "torch,jax")
    assert result.exit_code == 2
    assert "torch is not installed" in result.stderr
    assert "jax is not installed" in result.stderr


def test_a_broken_peer_is_a_note(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Setting) -> peers.Peer:
        raise ImportError("libsomething.so is missing")

    monkeypatch.setattr(peers, "_OPENERS", {"onnxruntime": broken})
    with pytest.raises(PeerError, match="libsomething"):
        open_peer("onnxruntime", setting(model))


def test_every_peer_has_an_opener_and_precisions() -> None:
    assert set(peers._OPENERS) == set(PEERS)
    assert all("fp32" in known for known in peers.PRECISIONS.values())
    assert {precision for known in peers.PRECISIONS.values() for precision in known} == set(PEER_TOLERANCES)
    assert set(PEER_TOLERANCES) == set(SCORE_TOLERANCES)


def test_peers_are_sorted_by_what_they_can(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "torch", "tensorrt")
    fake = FakePeer(np.zeros(1))
    monkeypatch.setattr(peers, "open_peer", lambda name, where: fake if name == "jax" else open_peer(name, where))
    found, notes, missing = open_peers(PEERS, setting(model, "bf16"))
    assert found == [fake]
    assert notes == ["onnxruntime has no bf16 for a whole model here: not compared in it", "a remark"]
    assert missing == [f"{name} is not installed (pip install {name}): not compared" for name in ("torch", "tensorrt")]


def test_onnxruntime_computes_fp16_on_the_gpu_alone(model: Path) -> None:
    with pytest.raises(PeerError, match="no CUDA provider"):
        open_peer("onnxruntime", setting(model, "fp16"))


# Which compute what we do


@pytest.mark.parametrize("fault", ["wrong", "raises", "nan"])
def test_a_peer_that_computes_something_else_is_not_timed(
    model: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    from vgg16gpu.bench import peer_onnxruntime

    def scores(_: Any) -> np.ndarray:
        if fault == "raises":
            raise RuntimeError("out of memory\nand more")
        return np.full((1, 10), np.nan if fault == "nan" else 1.0, np.float32)

    monkeypatch.setattr(peer_onnxruntime._CpuContender, "scores", scores)
    result = bench(model, "--repeats", 1, "--against", "onnxruntime", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert names(found["records"]) == [NAME]
    (note,) = found["notes"]
    assert "not compared" in note
    assert ("out of memory" if fault == "raises" else "scores differ") in note
    assert "\n" not in note


def opened(monkeypatch: pytest.MonkeyPatch, fake: FakePeer) -> None:
    monkeypatch.setattr(session, "open_peers", lambda names, _: ([fake] if names else [], [], []))


def test_what_is_unchecked_is_timed_and_says_so(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakePeer(np.full((1, 10), np.nan), unchecked="random data")
    opened(monkeypatch, fake)
    found = json.loads(bench(model, "--repeats", 1, "--against", "torch", "--json").stdout)
    (record,) = select(found, name="torch")
    assert (record["error"], record["unchecked"], record["median_s"]) == (None, "random data", 1e-3)
    assert fake.closed


@pytest.mark.parametrize(("relative", "admitted"), [(0.9e-4, True), (1.1e-4, False)])
def test_the_bound_for_peers(model: Path, monkeypatch: pytest.MonkeyPatch, relative: float, admitted: bool) -> None:
    scores = Oracle(model).scores(session.sample_inputs((3, 32, 32))[:1])
    opened(monkeypatch, FakePeer(scores + relative * np.abs(scores).max()))
    found = json.loads(bench(model, "--repeats", 1, "--against", "torch", "--json").stdout)
    assert bool(select(found, name="torch")) is admitted
    assert bool(found["notes"]) is not admitted


# The frameworks themselves, where they happen to be installed; nothing else of the package needs them


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("name", ["torch", "jax"])
@pytest.mark.filterwarnings("default")
def test_frameworks_compute_what_onnxruntime_does(model: Path, name: str, precision: str) -> None:
    pytest.importorskip(name)
    x = session.sample_inputs((3, 32, 32))[:2]
    expected = Oracle(model).scores(x)
    peer = open_peer(name, setting(model, precision))
    try:
        with peer.contenders(x) as contenders:
            assert len({contender.variant for contender in contenders}) == {"torch": 2, "jax": 1}[name]
            for contender in contenders:
                assert score_error(contender.scores(), expected).max() <= PEER_TOLERANCES[precision]
                assert all(len(contender.measure(method, 2)) in (1, 2) for method in contender.methods)
                assert Method.HOST_TO_HOST in contender.methods
    finally:
        peer.close()


@pytest.mark.filterwarnings("default")
def test_jax_in_int8_is_timed_on_random_data(model: Path) -> None:
    pytest.importorskip("jax")
    x = session.sample_inputs((3, 32, 32))[:2]
    peer = open_peer("jax", setting(model, "int8"))
    try:
        with peer.contenders(x) as (contender,):
            assert "random" in contender.unchecked
            assert contender.scores().shape == (2, 10)
            assert contender.measure(Method.BACK_TO_BACK, 2)[0] > 0
    finally:
        peer.close()


def test_onnxruntime_takes_the_model_in_float16(model: Path) -> None:
    pytest.importorskip("onnxruntime")
    from vgg16gpu.bench.peer_onnxruntime import half_model

    x = session.sample_inputs((3, 32, 32))[:1]
    found = open_session(half_model(model))
    (inp,) = found.get_inputs()
    assert inp.type == "tensor(float16)"
    (scores,) = found.run(None, {inp.name: x.astype(np.float16)})
    assert 0 < score_error(scores.astype(np.float32), Oracle(model).scores(x)).max() <= PEER_TOLERANCES["fp16"]
