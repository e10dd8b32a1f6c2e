"""EnginePool.classify: files shared by several engines, in their order and to the same bits, whoever fails."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runtime.answers.conftest import SIDE
from tests.runtime.answers.test_stream import numbers_among
from tests.support.late_device import LateDevice
from tests.support.later import later
from vgg16gpu import Engine, EnginePool
from vgg16gpu.devices import Opened, open_device
from vgg16gpu.errors import DeviceError, InputError, KernelError
from vgg16gpu.io.preprocessing import Preprocess
from vgg16gpu.pictures import slots
from vgg16gpu.runtime.answers import stream
from vgg16gpu.runtime.answers.feeding import LocalDeviceWorker
from vgg16gpu.runtime.streaming import StagingBuffers

from .conftest import PATIENCE

KINDS = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def check(found: list[Any], expected: list[Any]) -> None:
    assert [answer.name for answer in found] == [name for name, _ in expected]
    for answer, (name, scores) in zip(found, expected, strict=True):
        if scores is None:
            assert name in answer.error
        else:
            assert answer.error == ""
            assert answer.scores.tobytes() == scores.tobytes()


@pytest.fixture
def break_frames(monkeypatch: pytest.MonkeyPatch) -> Callable[[Engine, int], None]:
    """Plants a fault in one engine: from the batch of that number on (counted from 0) nothing comes back from it."""

    def plant(engine: Engine, after: int) -> None:
        receive = StagingBuffers.receive
        received: list[Any] = []
        failed = threading.Event()

        def faulty(self: StagingBuffers, *arguments: Any) -> Any:
            if self._device is engine.device:
                received.append(arguments)
                if len(received) > after:
                    failed.set()
                    raise KernelError("an illegal address was met")
            else:
                failed.wait(PATIENCE)  # else the others may leave it no batch to fail at
            return receive(self, *arguments)

        monkeypatch.setattr(StagingBuffers, "receive", faulty)

    return plant


def test_answers_are_those_of_one_engine(narrow_model: Path, pictures: Path, wanted: Any) -> None:
    before = threading.active_count()
    with EnginePool(narrow_model, devices="cpu:3", batch=4) as pool:
        pinned = [len(engine.device._pinned) for engine in pool.engines]  # type: ignore[attr-defined]
        check(list(pool.classify([pictures] * 3, workers=4)), wanted * 3)
        assert [len(engine.device._pinned) for engine in pool.engines] == pinned  # type: ignore[attr-defined]
        assert sum(share.images for share in pool.shares) == 3 * 59
    assert threading.active_count() == before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("after", "broken"), [(0, 0), (3, 1)])  # 0: the one whose memory the slots lie in
def test_a_device_that_fails_loses_no_row(
    narrow_model: Path,
    pictures: Path,
    wanted: Any,
    kind: str,
    after: int,
    broken: int,
    break_frames: Callable[[Engine, int], None],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slots, "ROWS", 5)  # so that many slots are under way
    if kind == "cuda":
        with Engine(narrow_model, device=kind, batch=4) as engine:
            wanted = [(name, None if scores is None else _one(engine, name)) for name, scores in wanted]
    opened = [open_device(kind) for _ in range(3)]  # in this process, where the fault can be planted
    with EnginePool(narrow_model, devices=opened, batch=4) as pool, caplog.at_level(logging.WARNING):
        break_frames(pool.engines[broken], after)
        check(list(pool.classify([pictures] * 4, workers=2)), wanted * 4)
        assert [bool(share.problem) for share in pool.shares] == [number == broken for number in range(3)]
        assert pool.shares[broken].batches == after
        assert "2 of 3 devices go on with its work" in caplog.text
        check(list(pool.classify([pictures], workers=2)), wanted)  # by those that are left


def _one(engine: Engine, path: str) -> Any:
    from vgg16gpu.pictures.images import load_image

    scores = engine.run(load_image(Path(path), 3, SIDE, SIDE)[np.newaxis])
    assert isinstance(scores, np.ndarray)
    return scores[0]


def test_numbers_of_a_device_that_fails_are_read_again(
    narrow_model: Path,
    pictures: Path,
    wanted: Any,
    tmp_path: Path,
    break_frames: Callable[[Engine, int], None],
) -> None:
    array, paths = numbers_among(pictures, tmp_path, (40, 3, SIDE, SIDE))
    with Engine(narrow_model, device="cpu", batch=4) as engine:
        numbers = [(f"{tmp_path}/n.npy[{i}]", scores) for i, scores in enumerate(engine.run(array))]
    with EnginePool(narrow_model, devices="cpu:2", batch=4) as pool:
        break_frames(pool.engines[0], 2)
        check(list(pool.classify(paths, workers=1)), [wanted[0], *numbers, *wanted[1:5], *numbers])
        assert pool.shares[0].problem


def test_the_last_device_that_fails_is_told(
    narrow_model: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise KernelError("the launch failed")

    before = threading.active_count()
    with EnginePool(narrow_model, devices="cpu:2", batch=2) as pool:
        monkeypatch.setattr(StagingBuffers, "launch", broken)
        with pytest.raises(KernelError, match="the launch failed"):
            list(pool.classify([pictures]))
        assert sum(bool(share.problem) for share in pool.shares) == 1
    assert threading.active_count() == before


def test_a_device_that_cannot_begin_leaves_nothing_of_the_others(
    narrow_model: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[LocalDeviceWorker] = []
    closed: list[LocalDeviceWorker] = []

    class Noted(LocalDeviceWorker):
        def __init__(self, *given: Any) -> None:
            if made:
                raise DeviceError("there is no room for pictures")
            super().__init__(*given)
            made.append(self)

        def close(self) -> None:
            closed.append(self)
            super().close()

    monkeypatch.setattr(stream, "LocalDeviceWorker", Noted)
    before = {*threading.enumerate()}
    with EnginePool(narrow_model, devices="cpu:2", batch=2) as pool:
        with pytest.raises(DeviceError, match="there is no room for pictures"):
            list(pool.classify([pictures]))
        assert closed == made
    assert len(made) == 1
    assert not {*threading.enumerate()} - before


def test_leaving_early_ends_all_threads(narrow_model: Path, pictures: Path) -> None:
    with EnginePool(narrow_model, devices="cpu:2", batch=2) as pool:
        before = threading.active_count()
        answers = pool.classify([pictures] * 10)
        next(answers)
        answers.close()  # type: ignore[attr-defined]
        assert threading.active_count() == before


def test_what_a_pool_cannot_do_to_pictures(narrow_model: Path, pictures: Path) -> None:
    with EnginePool(narrow_model, devices="cpu:2") as pool:
        with pytest.raises(InputError, match="the pool normalises by mean"):
            next(pool.classify(pictures, preprocess="unit"))
        with pytest.raises(InputError, match="top -1"):
            next(pool.classify(pictures, top=-1))
    unit = Preprocess.named("unit", 3)
    options: dict[str, Any] = {"mean": unit.unit_mean, "std": unit.unit_std}
    with EnginePool(narrow_model, devices="cpu:2", **options) as pool:
        assert len(list(pool.classify(pictures, preprocess="unit"))) == 61
    with (
        EnginePool(narrow_model, devices="cpu:2", outputs=["relu1_1"]) as pool,
        pytest.raises(InputError, match="any size takes no pictures"),
    ):
        next(pool.classify(pictures))


@pytest.mark.parametrize("seed", [0, *later("more of the same", 1, 2)])
def test_nothing_is_read_before_it_is_there_or_written_while_it_is_read(
    narrow_model: Path,
    pictures: Path,
    wanted: Any,
    seed: int,
    break_frames: Callable[[Engine, int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Slots lie in memory that the first device has pinned for all; one device fails with slots on their way."""
    monkeypatch.setattr(slots, "ROWS", 5)
    late = [LateDevice(seed + number) for number in range(3)]
    for device in late:
        device._is_pinned = late[0]._is_pinned
    opened = [Opened(device, f"late {number}") for number, device in enumerate(late)]
    with EnginePool(narrow_model, devices=opened, batch=4) as pool:
        check(list(pool.classify([pictures] * 2, workers=2)), wanted * 2)
        break_frames(pool.engines[seed], 3)
        check(list(pool.classify([pictures] * 3, workers=2)), wanted * 3)
        assert pool.shares[seed].problem
