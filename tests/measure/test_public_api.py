"""measure/public_api.py: on the cpu device, and with a CPU in the place of a GPU and of an engine there."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from recording.says import says

from tests.support.torch_here import torch_module
from vgg16gpu.devices import open_device

torch = torch_module()
public_api = pytest.importorskip("tests.measure.public_api")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SECONDS": 0.0, "ROUNDS": 3, "WARM": 0.0}.items():
        monkeypatch.setattr(public_api, name, value)


def measured(output: Path, *options: str) -> tuple[int, Any]:
    words = ["digits", "--precision", "fp32,int8", "--batch", "1,2", "--output", str(output), *options]
    return public_api.main(words), json.loads(output.read_text())


def test_on_the_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "record.json"
    code, content = measured(output, "--device", "cpu", "--kernels", "ffma", "--precision", "fp32")
    assert code == 0
    assert (content["model"], content["family"]) == ("digits", "ffma")
    assert content["environment"]["device"]["kind"] == "cpu"
    assert [(call["precision"], call["batch"], call["way"]) for call in content["calls"]] == [
        ("fp32", 1, "waiting"),
        ("fp32", 2, "waiting"),
    ]
    assert all(call["median_ms"] >= call["best_ms"] > 0 and call["has_same_bits"] for call in content["calls"])
    assert "CUDA graph" not in capsys.readouterr().out
    assert says(output) == f"fp32 x2 {content['calls'][1]['median_ms']:.4g} ms"


def test_what_cannot_be_built_leaves_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "record.json"
    code, content = measured(output, "--device", "cpu", "--precision", "fp3,fp32", "--batch", "2")
    assert code == 1
    failed, measured_one = content["calls"]
    assert (failed["precision"], failed["way"]) == ("fp3", "engine")
    assert "fp3" in failed["error"]
    assert measured_one["has_same_bits"]
    assert "fp3 x2, engine: " in capsys.readouterr().out
    assert says(output).endswith(" ms, 1 failures")


# ---- A CPU in the place of a GPU


class Card:
    """CUDA as torch has it, computed by whoever enqueues; graphs keep what is enqueued while they are captured."""

    def __init__(self) -> None:
        self.captured: list[Callable[[], None]] | None = None

    def enqueue(self, work: Callable[[], None]) -> None:
        if self.captured is None:
            work()
        else:
            self.captured.append(work)

    @contextmanager
    def capture(self, graph: Any, stream: Any = None) -> Iterator[None]:
        assert stream is not None
        self.captured = graph.work
        yield
        self.captured = None


class Graph:
    def __init__(self) -> None:
        self.work: list[Callable[[], None]] = []

    def replay(self) -> None:
        for work in self.work:
            work()


class Event:
    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other: Event) -> float:
        return 1e3 * (other.at - self.at)


class FakeEngine:
    """Sums images, as tensors; `in_a_graph`: by what a capture multiplies the sums, None: it keeps nothing."""

    program = SimpleNamespace(input=SimpleNamespace(shape=(1, 3, 4, 4)))

    def __init__(self, card: Card, in_a_graph: Any, model: str, **options: Any) -> None:
        assert (model, options["device"], options["kernels"]) == ("digits", "cuda", "auto")
        self._card, self._in_a_graph = card, in_a_graph
        self.is_checked = False

    def __enter__(self) -> FakeEngine:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.is_checked

    def check(self) -> None:
        self.is_checked = True

    def run(self, x: Any, *, stream: Any = None, out: Any = None, wait: bool = True) -> Any:
        if out is None:
            return x.sum((1, 2, 3))
        assert stream is not None
        if wait:
            assert self._card.captured is None
        if self._card.captured is not None and isinstance(self._in_a_graph, Exception):
            self._card.captured = None
            raise self._in_a_graph
        factor = 1.0 if self._card.captured is None else self._in_a_graph
        if factor is not None:
            self._card.enqueue(lambda: out.copy_(factor * x.sum((1, 2, 3))))
        return out


@pytest.fixture
def on_card(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    card = Card()
    stream = SimpleNamespace(synchronize=lambda: None)
    faked = {"Stream": lambda: stream, "stream": nullcontext, "Event": Event, "CUDAGraph": Graph}
    for name, value in {**faked, "graph": card.capture, "synchronize": lambda: None}.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(public_api, "CARD", "cpu")
    monkeypatch.setattr(public_api, "open_device", lambda _: open_device("cpu"))

    def engines(in_a_graph: Any) -> None:
        monkeypatch.setattr(public_api, "Engine", partial(FakeEngine, card, in_a_graph))

    return engines


def test_on_a_card_in_three_ways(
    on_card: Callable[[Any], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    on_card(1.0)
    code, content = measured(tmp_path / "record.json", "--device", "cuda")
    assert code == 0
    assert [(call["precision"], call["batch"], call["way"]) for call in content["calls"]] == [
        (precision, batch, way)
        for precision in ("fp32", "int8")
        for batch in (1, 2)
        for way in ("waiting", "eager", "CUDA graph")
    ]
    assert all(call["median_ms"] >= call["best_ms"] > 0 and call["has_same_bits"] for call in content["calls"])
    _, header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["precision", "batch", "CUDA", "graph", "eager", "waiting"]
    assert [len(row.split()) for row in rows] == [2 + 2 * 3] * 4


@pytest.mark.parametrize(
    ("in_a_graph", "said"),
    [
        pytest.param(1.5, "other bits than a plain run", id="other bits"),
        pytest.param(None, "other bits than a plain run", id="nothing"),
        pytest.param(RuntimeError("no capture"), "RuntimeError: no capture", id="no capture"),
    ],
)
def test_a_wrong_graph_is_told_and_leaves_the_others(
    on_card: Callable[[Any], None], tmp_path: Path, capsys: pytest.CaptureFixture[str], in_a_graph: Any, said: str
) -> None:
    on_card(in_a_graph)
    code, content = measured(tmp_path / "record.json", "--device", "cuda")
    assert code == 1
    assert [call.get("has_same_bits", False) for call in content["calls"]] == [True, True, False] * 4
    assert f"int8 x2, CUDA graph: {said}" in capsys.readouterr().out
