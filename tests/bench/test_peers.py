"""The benchmark's peers: which are here, which compute what we do, and which are only timed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from vgg16gpu.bench import session
from vgg16gpu.bench.admission import admit
from vgg16gpu.bench.measure.timing import LostError, Method
from vgg16gpu.bench.peers import base as peers
from vgg16gpu.bench.peers.base import PeerError, Setting, has_tf32, open_peer
from vgg16gpu.bench.peers.fleet import PeerProcesses
from vgg16gpu.bench.peers.messages import Built
from vgg16gpu.bench.records.findings import Absent, Remarks
from vgg16gpu.checks.accuracy import PEER_TOLERANCES, score_error
from vgg16gpu.checks.onnxruntime_oracle import Oracle
from vgg16gpu.checks.onnxruntime_session import open_session
from vgg16gpu.cli import cli

pytestmark = pytest.mark.usefixtures("measured_ceilings")


def bench(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["bench", *map(str, arguments), "--device", "cpu"])


def setting(model: Path, precision: str = "fp32") -> Setting:
    return Setting(model, (3, 32, 32), "cpu", 0, 1, precision)


def without(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """Packages that are not installed, as far as anybody asks."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name in packages else find_spec(name, *rest)
    )


# Which are here


def test_a_missing_peer_is_an_error_when_nothing_else_was_asked(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "torch", "jax")
    monkeypatch.setattr(session, "Engine", None)  # it is said before anything is built
    result = bench(model, "--repeats", 1, "--against", "torch,jax")
    assert result.exit_code == 2
    assert "torch is not installed" in result.stderr
    assert "jax is not installed" in result.stderr


def test_a_broken_peer_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "OPENERS", {"onnxruntime": "no_such_module:Peer"})
    with pytest.raises(PeerError, match=r"does not load.*no_such_module"):
        open_peer("onnxruntime", setting(model))


class Opened:
    """A remote peer that is there at once, or does not take the model."""

    def __init__(self, name: str, reason: str = "") -> None:
        self.name, self._reason = name, reason

    def post(self, _: Setting) -> None:
        pass

    def opened(self) -> Sequence[str]:
        if self._reason:
            raise PeerError(self._reason)
        return ("a remark",)


def test_peers_are_sorted_by_what_they_can(model: Path) -> None:
    remarks = Remarks()
    fleet = PeerProcesses((), remarks)
    jax, torch = Opened("jax"), Opened("torch", "torch refuses")
    fleet._peers = [Opened("onnxruntime"), torch, jax]
    assert fleet.open(setting(model, "bf16")) == [jax]
    assert remarks.notes == ["onnxruntime has no bf16 for a whole model here: not compared in it", "a remark"]
    assert remarks.absent == [Absent("torch", "torch refuses", "bf16")]


def test_only_refusals_at_first_are_an_error(model: Path) -> None:
    fleet = PeerProcesses((), Remarks())
    fleet._peers = [Opened("torch", "torch refuses")]
    with pytest.raises(PeerError, match="torch refuses"):
        fleet.open(setting(model))
    fleet._peers = [Opened("torch")]
    fleet.open(setting(model))
    fleet._peers = [Opened("torch", "torch refuses")]
    assert fleet.open(setting(model, "fp16")) == []


def test_onnxruntime_computes_fp16_on_the_gpu_alone(model: Path) -> None:
    with pytest.raises(PeerError, match="no CUDA provider"):
        open_peer("onnxruntime", setting(model, "fp16"))


def test_where_there_is_tf32() -> None:
    assert has_tf32("cuda", (8, 0), "fp32")
    for others in (("cuda", (7, 5), "fp32"), ("cuda", (9, 0), "fp16"), ("cpu", (0, 0), "fp32")):
        assert not has_tf32(*others)


# Which compute what we do


class Offered:
    """A remote peer, and its only contender, which gives `scores` or is lost."""

    name, variant, methods = "torch", "fake", (Method.HOST_TO_HOST,)
    unbuilt: Sequence[Built] = ()

    def __init__(self, scores: np.ndarray | LostError, unchecked: str = "", tf32: bool = False) -> None:
        self._scores, self.unchecked, self.tf32 = scores, unchecked, tf32

    @contextmanager
    def contenders(self, _: np.ndarray) -> Iterator[Sequence[Any]]:
        yield [self]

    def scores(self) -> np.ndarray:
        if isinstance(self._scores, LostError):
            raise self._scores
        return self._scores


OURS = np.array([[1.0, -2.0], [3.0, 4.0]], np.float32)  # the largest magnitudes are 2 and 4


def admitted(offered: Offered, precision: str = "fp32") -> tuple[list[float | None], list[Absent]]:
    """The errors of those that may be timed beside OURS, and who is named for not being so."""
    remarks = Remarks()
    with ExitStack() as stack:
        found = admit(offered, np.zeros((2, 3)), OURS, precision, stack, remarks)
    return [error for _, error in found], remarks.absent


@pytest.mark.parametrize(
    ("relative", "precision", "tf32", "right"),
    [
        (0.9e-4, "fp32", False, True),
        (1.1e-4, "fp32", False, False),
        (5e-3, "fp32", True, True),
        (2.1e-2, "fp32", True, False),
        (1.9e-2, "fp16", False, True),
        (np.nan, "fp16", False, False),
    ],
)
def test_the_bound_for_peers(relative: float, precision: str, tf32: bool, right: bool) -> None:
    scores = OURS + np.float32(relative) * np.array([[2.0], [4.0]], np.float32)
    errors, missing = admitted(Offered(scores, tf32=tf32), precision)
    if right:
        assert errors == [pytest.approx(relative, rel=1e-2)]
        assert missing == []
    else:
        assert errors == []
        (one,) = missing
        assert (one.name, one.variant, one.precision, one.batch) == ("torch", "", precision, 2)
        assert "its scores differ from ours" in one.reason


def test_a_variant_that_is_wrong_is_named_beside_one_that_is_right() -> None:
    offered = Offered(OURS)
    offered.unbuilt = (Built(7, "another", reason="RuntimeError: out of memory"),)
    errors, missing = admitted(offered)
    assert errors == [0.0]
    assert missing == [Absent("torch", "RuntimeError: out of memory", "fp32", 2, "another")]


def test_other_scores_than_ours_are_no_scores() -> None:
    errors, (missing,) = admitted(Offered(OURS[:, :1]))
    assert errors == []
    assert missing.reason == "it gives 2 scores, ours are 4"


def test_what_is_unchecked_is_admitted_without_an_error() -> None:
    assert admitted(Offered(OURS + 1, unchecked="random data")) == ([None], [])


# The frameworks themselves, where they happen to be installed; nothing else of the package needs them


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("name", ["torch", "jax"])
@pytest.mark.filterwarnings("default")
def test_frameworks_compute_what_onnxruntime_does(model: Path, name: str, precision: str) -> None:
    pytest.importorskip(name)
    x = session.sample_inputs((3, 32, 32))[:2]
    expected = Oracle(model).scores(x)
    with closing(open_peer(name, setting(model, precision))) as peer:
        ways = peer.ways(x)
        assert len({way.variant for way in ways}) == {"torch": 2, "jax": 1}[name]
        for contender in [way.make() for way in ways]:
            assert score_error(contender.scores(), expected).max() <= PEER_TOLERANCES[precision]
            assert all(len(contender.measure(method, 2)) in (1, 2) for method in contender.methods)
            assert Method.HOST_TO_HOST in contender.methods
            assert not contender.tf32
        peer.release()


@pytest.mark.filterwarnings("default")
def test_jax_has_a_way_in_tf32_where_the_card_has_it(model: Path) -> None:
    pytest.importorskip("jax")
    x = session.sample_inputs((3, 32, 32))[:1]
    with closing(open_peer("jax", replace(setting(model), tf32=True))) as peer:
        strict, tf32 = [way.make() for way in peer.ways(x)]  # a CPU computes both in float32
        assert (strict.tf32, strict.variant) == (False, "NHWC, jit, no TF32")
        assert (tf32.tf32, tf32.variant) == (True, "NHWC, jit, TF32")
        assert score_error(tf32.scores(), Oracle(model).scores(x)).max() <= PEER_TOLERANCES["fp32"]


@pytest.mark.filterwarnings("default")
def test_jax_in_int8_is_timed_on_random_data(model: Path) -> None:
    pytest.importorskip("jax")
    x = session.sample_inputs((3, 32, 32))[:2]
    with closing(open_peer("jax", setting(model, "int8"))) as peer:
        (way,) = peer.ways(x)
        contender = way.make()
        assert "random" in contender.unchecked
        assert contender.scores().shape == (2, 10)
        assert contender.measure(Method.BACK_TO_BACK, 2)[0] > 0


def test_onnxruntime_takes_the_model_in_float16(model: Path) -> None:
    pytest.importorskip("onnxruntime")
    from vgg16gpu.bench.peers.onnxruntime import half_model

    x = session.sample_inputs((3, 32, 32))[:1]
    found = open_session(half_model(model))
    (inp,) = found.get_inputs()
    assert inp.type == "tensor(float16)"
    (scores,) = found.run(None, {inp.name: x.astype(np.float16)})
    assert 0 < score_error(scores.astype(np.float32), Oracle(model).scores(x)).max() <= PEER_TOLERANCES["fp16"]
