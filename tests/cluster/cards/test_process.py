"""The processes themselves: they end whatever happens to whom, and leave nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.narrow_vgg import images
from tests.support.ray_here import ROOT
from vgg16gpu import EnginePool
from vgg16gpu.cluster import pool as pool_module
from vgg16gpu.cluster.cards import have_processes, process
from vgg16gpu.cluster.cards.messages import Failed
from vgg16gpu.errors import DeviceError, InputError, KernelError
from vgg16gpu.runtime.outputs import OutOfRangeError

from . import card_threads
from .card_threads import CardThread
from .conftest import descriptors

_SCRIPT = """
import numpy as np
from tests.support import faulty_card
import pytest
faulty_card.on_cpu(pytest.MonkeyPatch())
from vgg16gpu import EnginePool
pool = EnginePool({model!r}, devices="cpu:2")
print(*[engine.process.pid for engine in pool.engines], flush=True)
print(pool.run(np.zeros((3, 3, 48, 48), np.float32)).shape, flush=True)
{end}
"""


def is_there(pid: int) -> bool:
    with suppress(OSError):
        os.kill(pid, 0)
        return True
    return False


def soon(is_so: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 10
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.02)
    return is_so()


def started(model: Path, end: str) -> subprocess.Popen[str]:
    script = _SCRIPT.format(model=str(model), end=end)
    return subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_several_cards_have_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert have_processes(["cuda:0", "cuda:1"])
    assert not have_processes(["cuda:0"])
    assert not have_processes(["cpu", "cpu"])
    assert not have_processes(["auto", "cuda:1"])


@pytest.mark.usefixtures("nothing_left")
def test_a_pool_is_closed_where_a_process_stands_still(
    model: Path, threads: list[CardThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "PATIENCE", 0.1)
    pool = EnginePool(model, devices="cpu:2", batch=2)
    threads[0].stands_still = True
    pool.close()
    pool.close()
    assert threads[0].is_killed
    with pytest.raises(InputError, match="the pool is closed"):
        pool.run(images(1))


@pytest.mark.usefixtures("nothing_left")
def test_a_pool_is_closed_under_a_batch_that_never_ends(
    model: Path, threads: list[CardThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    standing = threading.Event()

    def stand_still() -> None:
        standing.set()
        while not threads[0].is_killed:
            time.sleep(0.001)

    monkeypatch.setattr(pool_module, "PATIENCE", 0.1)
    failures: list[Exception] = []

    def run() -> None:
        try:
            pool.run(images(40))
        except Exception as error:
            failures.append(error)

    with EnginePool(model, devices="cpu:2", batch=2) as pool:
        card_threads.plant(monkeypatch, threads[0], 1, stand_still)
        thread = threading.Thread(target=run)
        thread.start()
        assert standing.wait(card_threads.PATIENCE)
        pool.close()
        thread.join()
    assert threads[0].is_killed
    assert len(failures) == 1


@pytest.mark.usefixtures("nothing_left", "threads")
def test_a_pool_that_is_left_while_it_builds(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: process.Channel) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(process.Channel, "receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        EnginePool(model, devices="cpu:2")


def test_where_no_process_can_be_started(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "CHILD", "no.such.module")
    with pytest.raises(DeviceError, match="process of cpu ended with exit code 1"):
        EnginePool(model, devices="cpu:2")
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(DeviceError, match="no process can be started for cpu"):
        EnginePool(model, devices="cpu:2")


@pytest.mark.usefixtures("nothing_left", "threads")
def test_a_message_that_cannot_be_read_costs_its_process_alone(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where this process has no number left for a descriptor."""
    receive, failed = process.recv_handle, []

    def faulty(pipe: Any) -> int:
        descriptor = receive(pipe)
        if failed:
            return descriptor
        failed.append(os.close(descriptor))
        raise RuntimeError("received 0 items of ancdata")

    monkeypatch.setattr(process, "recv_handle", faulty)
    with EnginePool(model, devices="cpu:2", batch=2) as pool:
        assert pool.run(images(20)).shape == (20, 10)
        (problem,) = [share.problem for share in pool.shares if share.problem]
        assert problem == "process of cpu is not understood, and ended: received 0 items of ancdata"


def test_a_script_needs_no_guard_and_no_close(model: Path) -> None:
    with started(model, "") as parent:
        told, _ = parent.communicate(timeout=60)
    children, shape = told.splitlines()
    assert shape == "(3, 10)"
    assert parent.returncode == 0
    assert soon(lambda: not any(is_there(int(pid)) for pid in children.split()))


@pytest.mark.usefixtures("threads")
def test_nothing_grows_from_pool_to_pool(model: Path) -> None:
    open_ones = []
    for _ in range(4):
        with EnginePool(model, devices="cpu:2", batch=2) as pool:
            pool.run(images(5))
        open_ones.append(descriptors())
    assert all(found == open_ones[0] for found in open_ones)


def test_errors_are_the_same_on_the_other_side() -> None:
    for error in (InputError("a"), DeviceError("b"), KernelError("c", "of nvcc")):
        told = Failed.of(error, "cuda:1").error()
        assert (type(told), str(told), vars(told)) == (type(error), str(error), vars(error))
    told = Failed.of(OutOfRangeError("lost", 3), "cuda:1").error()
    assert (type(told), str(told)) == (InputError, "lost")
    told = Failed.of(ZeroDivisionError("by what"), "cuda:1").error()
    assert (type(told), str(told)) == (DeviceError, "process of cuda:1: ZeroDivisionError: by what")
