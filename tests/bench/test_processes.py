"""Peers in processes of their own: which fail once, twice, or are ended; nothing of them is left behind."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support import fake_peers
from vgg16gpu.bench import session
from vgg16gpu.bench.measure.ceilings import Ceilings
from vgg16gpu.bench.measure.layers import NAME
from vgg16gpu.bench.measure.timing import LostError, Method
from vgg16gpu.bench.peers import base as peers
from vgg16gpu.bench.peers import remote as peer_remote
from vgg16gpu.bench.peers.base import PeerError, Setting
from vgg16gpu.bench.peers.fleet import PeerProcesses
from vgg16gpu.bench.peers.messages import Built, Contend, Measure, Open, guilty_last
from vgg16gpu.bench.peers.process import PeerFailureError, PeerProcess
from vgg16gpu.bench.peers.remote import RemotePeer
from vgg16gpu.bench.peers.worker import PeerWorker, describe
from vgg16gpu.bench.records.findings import Remarks
from vgg16gpu.bench.records.record import kinds, select
from vgg16gpu.cli import cli

FAKE = "tests.support.fake_peers:Peer"
PATIENCE = 60.0
X = session.sample_inputs((3, 32, 32))[:2]

Plan = Callable[[str], None]


class PeerHere:
    """Stands for the process of a peer: its worker does what it is asked in this process."""

    def __init__(self, name: str, target: str) -> None:
        assert target == FAKE, name
        self.is_started = False
        self._worker: PeerWorker | None = None
        self._request: Any = None

    def start(self) -> None:
        self.is_started, self._worker = True, PeerWorker(fake_peers.Peer)

    def wait_until_ready(self) -> None:
        assert self._worker

    def post(self, request: Any) -> None:
        self._request = request

    def collect(self, patience: float) -> Any:
        return self.ask(self._request, patience)

    def ask(self, request: Any, patience: float) -> Any:
        assert self._worker
        try:
            return self._worker.do(request)
        except PeerError:
            raise
        except fake_peers.HungError:
            raise PeerFailureError(f"no answer in {patience:g} s", hung=True) from None
        except RuntimeError as error:
            raise PeerFailureError(describe(error), self.output()) from error

    def output(self) -> tuple[str, ...]:
        return ("last words",)

    def stop(self) -> None:
        self.is_started, self._worker = False, None


@pytest.fixture
def model(tmp_path: Path, model: Path) -> Path:
    """Copy it to a folder of its own, where the fake counts."""
    return Path(shutil.copy(model, tmp_path))


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Says what the fake, in torch's place, does."""
    monkeypatch.setattr(peers, "OPENERS", {**peers.OPENERS, "torch": FAKE})
    monkeypatch.setattr(peer_remote, "PeerProcess", PeerHere)
    monkeypatch.setattr("vgg16gpu.bench.peers.worker.gc.collect", lambda: 0)  # of all that tests have made
    monkeypatch.setattr(peer_remote, "OPENERS", {**peers.OPENERS, "torch": FAKE})
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    return lambda text: monkeypatch.setenv("FAKE_PEER", text)


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def peer(plan: Plan, notes: list[str]) -> Iterator[RemotePeer]:
    """The fake, not started yet; it does nothing wrong."""
    plan("")
    made = RemotePeer("torch", notes.append)
    yield made
    made.close()


def opened(peer: RemotePeer, model: Path) -> RemotePeer:
    peer.start()
    peer.wait_until_ready()
    peer.post(Setting(model, (3, 32, 32), "cpu", 0, 1))
    assert peer.opened() == ("a remark",)
    return peer


def faults(model: Path) -> int:
    return len(list(model.parent.glob("fault*")))


# One failure


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("raise open", "RuntimeError: operation failed"),
        ("raise make", "strict: RuntimeError: operation failed"),
        ("raise measure", "RuntimeError: operation failed"),
        ("hang scores", "no answer in 900 s"),
    ],
)
def test_what_fails_once_is_measured_in_a_fresh_process(
    peer: RemotePeer, plan: Plan, model: Path, notes: list[str], what: str, reason: str
) -> None:
    plan(f"{what} 1")
    with opened(peer, model).contenders(X) as (strict, tf32):
        assert (strict.variant, strict.tf32, tf32.variant, tf32.tf32) == ("strict", False, "TF32", True)
        assert strict.scores().shape == (2, 10)
        assert strict.measure(Method.HOST_TO_HOST, 3) == [fake_peers.SECONDS] * 3
        assert tf32.measure(Method.BACK_TO_BACK, 3) == [fake_peers.SECONDS]
        assert not peer.unbuilt
    assert faults(model) == 1
    (note,) = notes
    assert reason in note
    assert "what it shows there is of a fresh process" in note
    assert "\n" not in note


# Two failures


def test_what_fails_twice_is_lost_at_that_batch_size_alone(peer: RemotePeer, plan: Plan, model: Path) -> None:
    plan("raise measure 2")
    opened(peer, model)
    with peer.contenders(X) as (strict, tf32):
        with pytest.raises(LostError, match=r"^failed twice: RuntimeError") as lost:
            strict.measure(Method.HOST_TO_HOST, 1)
        assert "last words" in lost.value.output
        with pytest.raises(LostError, match="failed twice"):
            tf32.scores()
    assert faults(model) == 2
    with peer.contenders(X[:1]) as (strict, _):
        assert strict.measure(Method.HOST_TO_HOST, 1) == [fake_peers.SECONDS]


def test_a_peer_that_has_hung_twice_is_not_asked_any_more(peer: RemotePeer, plan: Plan, model: Path) -> None:
    plan("hang make 9")
    opened(peer, model)
    with pytest.raises(LostError, match=r"^failed twice: no answer in 900 s$"), peer.contenders(X):
        pass
    with pytest.raises(LostError, match="hung twice"), peer.contenders(X):
        pass
    with pytest.raises(LostError, match="hung twice"):
        peer.post(Setting(model, (3, 32, 32), "cpu", 0, 1, "fp16"))
    assert faults(model) == 2


def test_the_guilty_way_comes_last_when_all_are_tried_again() -> None:
    built = [Built(0, "a"), Built(1, "b", reason="first fault"), Built(2, "c", reason="its consequence"), Built(3, "d")]
    assert guilty_last(built) == (0, 3, 2, 1)


# Refusals and endings


def test_what_is_refused_is_not_tried_again(peer: RemotePeer, plan: Plan, model: Path, notes: list[str]) -> None:
    plan("refuse make 9")
    with opened(peer, model).contenders(X) as (tf32,):
        assert tf32.tf32
        assert [each.reason for each in peer.unbuilt] == ["it does not take the model"]
    plan("refuse open 9")
    with pytest.raises(PeerError, match="does not take"):
        opened(peer, model)
    assert faults(model) == 2
    assert notes == []


# Processes


def test_a_process_refuses_fails_is_silent_and_dies(plan: Plan, model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    plan("refuse open 1,raise measure 2,die measure 3")
    process = PeerProcess("torch", FAKE)
    process.start()
    setting = Setting(model, (3, 32, 32), "cpu", 0, 1)
    measure = Measure(0, Method.HOST_TO_HOST, 1)
    try:
        with pytest.raises(PeerError, match="does not take"):
            process.ask(Open(setting), PATIENCE)
        assert process.ask(Open(setting), PATIENCE) == ("a remark",)
        assert [each.variant for each in process.ask(Contend(X), PATIENCE)] == ["strict", "TF32"]
        with pytest.raises(PeerFailureError, match="RuntimeError: operation failed") as failed:
            process.ask(measure, PATIENCE)
        assert "last words" in failed.value.output
        with pytest.raises(PeerFailureError, match="no answer in 0 s") as silent:
            process.collect(0)
        assert silent.value.hung
        with pytest.raises(PeerFailureError, match="its process died of SIGSEGV"):
            process.ask(measure, PATIENCE)
    finally:
        process.stop()
    assert capfd.readouterr() == ("", "")


def test_a_framework_that_does_not_load_is_refused() -> None:
    process = PeerProcess("torch", "no_such_module:Peer")
    process.start()
    with pytest.raises(PeerError, match="installed and does not load"):
        process.wait_until_ready()
    process.stop()
    with pytest.raises(PeerFailureError, match="not running"):
        process.wait_until_ready()


class InterruptError(BaseException):
    """As Ctrl-C."""


@pytest.mark.usefixtures("plan")
def test_no_process_outlives_an_error(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_remote, "PeerProcess", PeerProcess)
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: name)
    children: list[Any] = []

    def interrupted() -> None:
        with PeerProcesses(("torch",), Remarks()) as fleet:
            fleet.start()
            fleet.wait_until_ready()
            (peer,) = fleet.open(Setting(model, (3, 32, 32), "cpu", 0, 1))
            children.append(peer._process._process)
            with peer.contenders(X):
                raise InterruptError

    with pytest.raises(InterruptError):
        interrupted()
    (child,) = children
    assert child.poll() is not None
    with pytest.raises(ProcessLookupError):
        os.killpg(child.pid, 0)


# The whole benchmark


def bench(model: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    ceilings = Ceilings(1e10, 1e11, 0, "made up")
    monkeypatch.setattr(session, "measure_ceilings", lambda _: ceilings)
    find_spec = peers.importlib.util.find_spec
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: name == "torch" or find_spec(name))
    command = ["bench", str(model), "--device", "cpu", "--repeats", "1", "--seconds", "0.01", *arguments]
    return CliRunner().invoke(cli, command)


def test_a_peer_that_fails_is_named_and_the_others_go_on(
    plan: Plan, model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan("raise scores 2")
    output = tmp_path / "bench.json"
    result = bench(model, monkeypatch, "--batch", "1,2", "--against", "torch", "--output", str(output))
    assert result.exit_code == 0, result.output
    found = json.loads(output.read_text())
    present = {batch: kinds(select(found, batch=batch)) for batch in (1, 2)}
    assert present[1] == [(NAME, False)]
    assert present[2] == [(NAME, False), ("torch", False), ("torch", True)]
    (absent,) = found["absent"]
    assert (absent["name"], absent["precision"], absent["batch"]) == ("torch", "fp32", 1)
    assert absent["reason"] == "failed twice: RuntimeError: operation failed"
    assert "last words" in absent["output"]
    assert "Absent: torch, fp32, batch 1: failed twice: RuntimeError: operation failed" in result.stdout
    assert "absent" in next(line for line in result.stdout.splitlines() if "see below" in line)
    assert "last words" not in result.stdout
