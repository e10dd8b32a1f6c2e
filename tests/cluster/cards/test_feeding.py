"""Files through engines in processes of their own: in their order and to the same bits, whoever is killed."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cluster.test_pool_classify import check
from tests.support.later import later
from vgg16gpu import EnginePool
from vgg16gpu.cluster.cards import feeding
from vgg16gpu.errors import DeviceError, KernelError
from vgg16gpu.pictures import slots
from vgg16gpu.runtime.answers import codec_choice, folder

from .conftest import Plant

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.mark.parametrize("batch", [64, *later("more of the same", 1)])
def test_answers_are_those_of_one_engine(narrow_model: Path, pictures: Path, wanted: Any, batch: int) -> None:
    with EnginePool(narrow_model, devices="cpu:2", batch=batch) as pool:
        for workers in (1, 4):
            check(list(pool.classify([pictures] * 2, workers=workers)), wanted * 2)
        assert sum(share.images for share in pool.shares) == 4 * 59


@pytest.mark.slow(reason="answers of both parts by themselves are in make test")
def test_processes_that_load_and_devices_that_resize(
    narrow_model: Path, pictures: Path, wanted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a GPU: pictures come as they were decoded."""
    monkeypatch.setattr(folder, "MANY", 1)
    made = folder.Folder.__init__

    def as_for_gpu(self: Any, *given: Any, **options: Any) -> None:
        made(self, *given, **{**options, "for_gpu": True})

    monkeypatch.setattr(folder.Folder, "__init__", as_for_gpu)
    monkeypatch.setattr(folder, "resizes_on_device", lambda *_: True)
    with EnginePool(narrow_model, devices="cpu:2", batch=4) as pool:
        check(list(pool.classify([pictures] * 2, workers=6)), wanted * 2)


@pytest.mark.parametrize("after", [0, *later("as at the start", 3)])
@pytest.mark.parametrize("kind", ["killed", *later("as killed", "error")])
def test_a_process_that_fails_loses_no_row(
    narrow_model: Path,
    pictures: Path,
    wanted: Any,
    after: int,
    kind: str,
    plant: Plant,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slots, "ROWS", 5)  # so that many slots are under way
    plant(kind, after)
    with EnginePool(narrow_model, devices="cpu:2", batch=4) as pool, caplog.at_level(logging.WARNING):
        check(list(pool.classify([pictures] * 3, workers=2)), wanted * 3)
        (broken,) = [share for share in pool.shares if share.problem]
        assert broken.batches == after
        check(list(pool.classify([pictures], workers=2)), wanted)  # by the one that is left
    assert [record.message for record in caplog.records] == [
        f"cpu: as asked is taken out, and 1 of 2 devices go on with its work: {broken.problem}"
    ]


@pytest.mark.slow(reason="test_pool_classify.py has it of devices in one process")
def test_the_last_one_that_fails_is_told(narrow_model: Path, pictures: Path, plant: Plant) -> None:
    for kind, expected, words in (
        ("killed", DeviceError, "process of cpu was ended by SIGKILL"),
        ("error", KernelError, "an illegal address was met"),
    ):
        plant(kind, 2, everywhere=True)
        with EnginePool(narrow_model, devices="cpu:2", batch=2) as pool:
            with pytest.raises(expected, match=words):
                list(pool.classify([pictures]))
            assert sum(bool(share.problem) for share in pool.shares) == 1


@pytest.mark.slow(reason="a pool with a stopped process is closed in make test")
def test_a_process_that_does_not_stop_is_ended(
    narrow_model: Path, pictures: Path, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeding, "PATIENCE", 0.5)
    plant("stopped", 2)
    with EnginePool(narrow_model, devices="cpu:2", batch=2) as pool:
        answers = pool.classify([pictures] * 2)
        next(answers)
        time.sleep(1)
        started = time.monotonic()
        answers.close()  # type: ignore[attr-defined]
        assert time.monotonic() - started < 10


@pytest.mark.slow(reason="tests/runtime/answers has it of one device")
def test_devices_that_decode(narrow_model: Path, pictures: Path, plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stand-in, whose pictures differ a little; what it refuses, the process's CPU decodes."""
    monkeypatch.setattr(codec_choice, "codec_problem", lambda _: None)
    plant("codec", 0)
    with EnginePool(narrow_model, devices="cpu:2", batch=4) as pool:
        assert str(pool.decoder("gpu")).startswith("nvJPEG")
        found = list(pool.classify([pictures] * 2, decode="gpu"))
        by_cpu = list(pool.classify([pictures] * 2, decode="cpu"))
        assert [answer.name for answer in found] == [answer.name for answer in by_cpu]
        assert [bool(answer.error) for answer in found] == [bool(answer.error) for answer in by_cpu]
        assert not all(np.array_equal(a.scores, b.scores) for a, b in zip(found, by_cpu, strict=True) if not a.error)


@pytest.mark.slow(reason="one that fails loses no row in make test")
def test_a_device_that_decodes_and_fails(
    narrow_model: Path, pictures: Path, wanted: Any, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codec_choice, "codec_problem", lambda _: None)
    plant("codec and error", 2)
    with EnginePool(narrow_model, devices="cpu:2", batch=4) as pool:
        found = list(pool.classify([pictures] * 3, decode="gpu"))
        assert [answer.name for answer in found] == [name for name, _ in wanted * 3]
        assert [bool(answer.error) for answer in found] == [scores is None for _, scores in wanted * 3]
        assert sum(bool(share.problem) for share in pool.shares) == 1
