"""Files through engines in processes of their own: in their order and to the same bits, whoever is killed."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cluster.test_pool_classify import check
from tests.support import faulty_card
from tests.support.fake_nvjpeg import FakeForeign, FakeLibrary
from vgg16gpu import EnginePool
from vgg16gpu.cluster.cards import feeding
from vgg16gpu.devices.cuda.nvjpeg import NvJpeg
from vgg16gpu.errors import KernelError
from vgg16gpu.pictures import slots
from vgg16gpu.pictures.loading import loader
from vgg16gpu.runtime.answers import codec_choice

from . import card_threads
from .card_threads import CardThread

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.mark.usefixtures("threads")
def test_answers_are_those_of_one_engine(narrow_model: Path, pictures: Path, wanted: Any) -> None:
    with EnginePool(narrow_model, devices="cpu:2", batch=64) as pool:
        check(list(pool.classify([pictures] * 2, workers=4)), wanted * 2)
        assert sum(share.images for share in pool.shares) == 2 * 59


@pytest.mark.slow(reason="tests/cli/test_infer_cards.py has the same of `infer`, test_engine.py of a run")
def test_a_process_that_is_killed_loses_no_row(
    narrow_model: Path,
    pictures: Path,
    wanted: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slots, "ROWS", 5)  # so that many slots are under way
    faulty_card.plant(monkeypatch, "killed", 1, tmp_path / "fault")
    with EnginePool(narrow_model, devices="cpu:2", batch=4) as pool, caplog.at_level(logging.WARNING):
        check(list(pool.classify([pictures] * 2, workers=2)), wanted * 2)
        (broken,) = [share for share in pool.shares if share.problem]
        assert broken.batches == 1
    assert [record.message for record in caplog.records] == [
        "cpu: as asked is taken out, and 1 of 2 devices go on with its work: process of cpu was ended by SIGKILL"
    ]


def test_one_that_fails_loses_no_row_and_the_last_is_told_of(
    narrow_model: Path, pictures: Path, wanted: Any, threads: list[CardThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise KernelError("an illegal address was met")

    monkeypatch.setattr(slots, "ROWS", 5)
    with EnginePool(narrow_model, devices="cpu:2", batch=4) as pool:
        card_threads.plant(monkeypatch, threads[0], 2, fail)
        check(list(pool.classify([pictures] * 2, workers=2)), wanted * 2)
        assert [share.problem for share in pool.shares] == ["an illegal address was met", ""]
        card_threads.plant(monkeypatch, threads[1], 0, fail)
        with pytest.raises(KernelError, match="an illegal address was met"):
            list(pool.classify([pictures]))


def test_a_window_that_is_full_of_lost_rows(
    narrow_model: Path, pictures: Path, wanted: Any, threads: list[CardThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All threads wait for answers to old files, which the killed process had in hand."""
    monkeypatch.setattr(loader.Loader.__init__, "__defaults__", ((0, 0), 8))
    with EnginePool(narrow_model, devices="cpu:2", batch=16) as pool:
        card_threads.plant(monkeypatch, threads[1], 1, threads[1].kill, patience=0.5)
        check(list(pool.classify([pictures] * 2, workers=3)), wanted * 2)


def test_a_process_that_does_not_stop_is_ended(
    narrow_model: Path, pictures: Path, threads: list[CardThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeding, "PATIENCE", 0.5)
    monkeypatch.setattr(slots, "ROWS", 5)  # so many slots that the other card cannot have them all
    standing = threading.Event()

    def stand_still() -> None:
        standing.set()
        while not threads[0].is_killed:
            time.sleep(0.001)

    with EnginePool(narrow_model, devices="cpu:2", batch=2) as pool:
        card_threads.plant(monkeypatch, threads[0], 1, stand_still)
        answers = pool.classify([pictures] * 2, workers=1)  # slots in the order of files: what stands has not the first
        next(answers)
        assert standing.wait(card_threads.PATIENCE)
        answers.close()  # type: ignore[attr-defined]
        assert threads[0].is_killed


@pytest.mark.usefixtures("threads")
def test_devices_that_decode(narrow_model: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stand-in, whose pictures differ a little; what it refuses, the process's CPU decodes."""
    given: Any = (FakeLibrary(), FakeForeign())
    monkeypatch.setattr(codec_choice, "codec_problem", lambda _: None)
    monkeypatch.setattr(codec_choice, "open_codec", lambda _: NvJpeg(*given))
    with EnginePool(narrow_model, devices="cpu:2", batch=4) as pool:
        assert str(pool.decoder("gpu")).startswith("nvJPEG")
        found = list(pool.classify([pictures] * 2, decode="gpu"))
        by_cpu = list(pool.classify([pictures] * 2, decode="cpu"))
        assert [answer.name for answer in found] == [answer.name for answer in by_cpu]
        assert [bool(answer.error) for answer in found] == [bool(answer.error) for answer in by_cpu]
        assert not all(np.array_equal(a.scores, b.scores) for a, b in zip(found, by_cpu, strict=True) if not a.error)
