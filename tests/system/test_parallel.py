"""tests/support/parallel.py: workers by pytest-xdist, and tests that run alone."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support import parallel
from vgg16gpu.devices.cpu.device import usable_cores


def config(workers: str, **others: object) -> SimpleNamespace:
    """What tests/support/parallel.py looks at in a pytest.Config that has pytest-xdist."""
    option = SimpleNamespace(workers=workers, collectonly=False, numprocesses=None, dist="no")
    plugins = SimpleNamespace(hasplugin=lambda name: name == "xdist")
    made = SimpleNamespace(option=option, pluginmanager=plugins, cleanups=[])
    made.add_cleanup = made.cleanups.append
    vars(made).update(others)
    return made


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*parallel._THREADS, parallel._LOCKS):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    monkeypatch.setattr(parallel, "_folder", None)


def test_workers_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "usable_cores", lambda: 7)
    asked = config("3")
    parallel.start(asked)
    assert (asked.option.numprocesses, asked.option.dist) == (3, "worksteal")
    assert [parallel.os.environ[name] for name in parallel._THREADS] == ["2"] * len(parallel._THREADS)
    folder = Path(parallel.os.environ[parallel._LOCKS])
    assert folder.is_dir()
    parallel.start(config("3", workerinput={}))
    assert parallel._folder == folder
    assert parallel._LOCKS not in parallel.os.environ
    for cleanup in asked.cleanups:
        cleanup()
    assert not folder.exists()


def test_as_many_workers_as_cores_but_not_dozens(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parallel.wanted("auto") == min(usable_cores(), parallel.MOST_WORKERS)
    for cores, workers in ((1, 1), (2, 2), (64, parallel.MOST_WORKERS)):
        monkeypatch.setattr(parallel, "usable_cores", lambda cores=cores: cores)
        assert parallel.wanted("auto") == workers


@pytest.mark.parametrize("text", ["0", "-1", "many", ""])
def test_numbers_that_are_none(text: str) -> None:
    with pytest.raises(pytest.UsageError, match="from 1 on"):
        parallel.wanted(text)


def test_one_process_where_one_is_asked_for_or_xdist_is_missing() -> None:
    without = SimpleNamespace(hasplugin=lambda _: False)
    for serial in (config("1"), config("4", pluginmanager=without)):
        parallel.start(serial)
        assert serial.option.numprocesses is None
        assert not serial.cleanups


def test_a_number_given_to_xdist_itself_holds() -> None:
    asked = config("auto")
    asked.option.numprocesses = 5
    parallel.start(asked)
    assert asked.option.numprocesses == 5


def test_the_place_of_a_worker() -> None:
    assert parallel.place(config("2")) == (0, 1)
    assert parallel.place(config("2", workerinput={"workerid": "gw3", "workercount": 6})) == (3, 6)


def test_nothing_runs_beside_a_test_that_is_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others run side by side; and it gets its turn though there is always another one running."""
    monkeypatch.setattr(parallel, "_folder", tmp_path)
    running: list[int] = []
    most, with_alone, stop = [0], [], threading.Event()

    def others(number: int) -> None:
        while not stop.is_set():
            with parallel.turn(alone=False):
                running.append(number)
                most[0] = max(most[0], len(running))
                time.sleep(0.01)
                running.remove(number)

    threads = [threading.Thread(target=others, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        time.sleep(0.03)
        with parallel.turn(alone=True):
            with_alone.append(list(running))
    stop.set()
    for thread in threads:
        thread.join()
    assert with_alone == [[]] * 5
    assert most[0] > 1


def test_reports_of_names_of_any_bytes_can_be_sent() -> None:
    report = {"sections": [("log", "bad\udcff.png")], "duration": 0.5, "longrepr": None, "\udcfe": ["kept é"]}
    sent = parallel.sendable(report)
    assert sent == {"sections": [("log", "bad\\udcff.png")], "duration": 0.5, "longrepr": None, "\\udcfe": ["kept é"]}
