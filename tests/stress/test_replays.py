"""Replays beside another process: what is measured on a small net, and that other bits and no other work are seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.stress.replays import OTHER_BATCH, TOGETHER, measure
from tests.support.onnx_models import torch_vgg
from vgg16gpu.compiler.graph.ops import Array
from vgg16gpu.devices.staging import Rows
from vgg16gpu.program.types import TensorDesc
from vgg16gpu.runtime.executor import Executor
from vgg16gpu.runtime.outputs import OutputRows


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return torch_vgg((16, "M", 16, "M"), 16, hidden=16).save(tmp_path_factory.mktemp("model") / "small.onnx")


def test_other_bits_of_a_replay_and_of_a_run_are_seen(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a real process: the second look finds one bit of the scores changed, and so does a run with copies.

    Batches of another size before these runs are not looked at.
    """
    reads: list[str] = []
    batches: list[int] = []
    read, run = Executor.read, Executor.run

    def faulty_read(executor: Executor, value: TensorDesc) -> Array:
        reads.append(value.name)
        found = read(executor, value)
        found.view(np.uint32)[0, 0] ^= len(reads) == 2
        return found

    def faulty_run(executor: Executor, batch: int, images: Rows) -> OutputRows:
        batches.append(batch)
        found = run(executor, batch, images)
        found.outputs[0].view(np.uint32)[0, 0] ^= len(batches) in (2, 70)  # the first is what is expected
        return found

    monkeypatch.setattr(Executor, "read", faulty_read)
    monkeypatch.setattr(Executor, "run", faulty_run)
    found = measure(model, "cpu", "fp32", 100)
    assert batches == [1, *([OTHER_BATCH] + [1] * TOGETHER) * 2]
    assert (found.replays, found.looks, found.round_trips, found.differing) == (100, 2, 100, 2)
    assert found.beside > 0
    assert not found.passed
    assert replace(found, differing=0).passed
    assert not replace(found, differing=0, beside=0).passed
