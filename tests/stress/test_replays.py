"""Replays beside another process: what is measured on a small net, and that other bits and no other work are seen."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.stress import replays
from tests.stress.replays import OTHER_BATCH, TOGETHER, measure, working
from tests.support.onnx_models import torch_vgg
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.devices.staging import Rows
from vgg16gpu.errors import Error
from vgg16gpu.program.values import Value
from vgg16gpu.runtime.executor import Executor
from vgg16gpu.runtime.outputs import Results


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return torch_vgg((16, "M", 16, "M"), 16, hidden=16).save(tmp_path_factory.mktemp("model") / "small.onnx")


def test_replays_beside_a_real_process(model: Path) -> None:
    found = measure(model, "cpu", "fp32", 120)
    assert (found.replays, found.looks, found.round_trips, found.differing) == (150, 3, 150, 0)
    assert found.beside > 0
    assert found.passed
    assert not replace(found, beside=0).passed


def test_a_replay_with_other_bits_is_seen(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second look finds one bit of the scores changed."""
    reads: list[str] = []
    read = Executor.read

    def faulty(executor: Executor, value: Value) -> Array:
        reads.append(value.name)
        found = read(executor, value)
        if len(reads) == 2:
            found.view(np.uint32)[0, 0] ^= 1
        return found

    monkeypatch.setattr(Executor, "read", faulty)
    found = measure(model, "cpu", "fp32", 150)
    assert (found.looks, found.differing, found.passed) == (3, 1, False)


def test_a_run_with_other_bits_is_seen(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One with copies; the batches of another size before these are not looked at."""
    batches: list[int] = []
    run = Executor.run

    def faulty(executor: Executor, batch: int, images: Rows) -> Results:
        batches.append(batch)
        found = run(executor, batch, images)
        if len(batches) in (2, 70):  # the first is what is expected
            found.outputs[0].view(np.uint32)[0, 0] ^= 1
        return found

    monkeypatch.setattr(Executor, "run", faulty)
    found = measure(model, "cpu", "fp32", 100)
    assert batches == [1, *([OTHER_BATCH] + [1] * TOGETHER) * 2]
    assert (found.round_trips, found.differing, found.passed) == (100, 1, False)


def test_a_process_that_cannot_compute_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"none")
    with pytest.raises(Error, match="beside the replays"), working(tmp_path / "broken.onnx", "cpu"):
        pass
    assert "broken.onnx" in capfd.readouterr().err


def test_a_process_that_dies_on_the_way_is_told(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[str]:
        started.append(subprocess.Popen(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(replays, "subprocess", SimpleNamespace(Popen=start, PIPE=subprocess.PIPE))
    with working(model, "cpu") as runs:
        started[0].kill()
        with pytest.raises(Error, match="beside the replays was ended by SIGKILL"):
            runs()
