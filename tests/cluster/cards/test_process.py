"""The processes themselves: they end whatever happens to whom, and leave nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.later import later
from tests.support.narrow_vgg import images
from tests.support.ray_here import ROOT
from vgg16gpu import EnginePool
from vgg16gpu.cluster import pool as pool_module
from vgg16gpu.cluster.cards import have_processes, process
from vgg16gpu.cluster.cards.engine import CardEngine
from vgg16gpu.cluster.cards.messages import Failed
from vgg16gpu.errors import DeviceError, InputError, KernelError
from vgg16gpu.runtime.outputs import OutOfRangeError

from .conftest import Plant, descriptors

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


def pids(pool: EnginePool) -> list[int]:
    return [engine.process.pid for engine in pool.engines if isinstance(engine, CardEngine)]


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


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "PATIENCE", 1.0)
    monkeypatch.setattr(pool_module, "PATIENCE", 1.0)


def test_several_cards_have_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert have_processes(["cuda:0", "cuda:1"])
    assert not have_processes(["cuda:0"])
    assert not have_processes(["cpu", "cpu"])
    assert not have_processes(["auto", "cuda:1"])


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    "state",
    [
        signal.SIGSTOP,
        *later("one that stands still ends hardest", None, signal.SIGKILL, signal.SIGTERM),
    ],
)
def test_a_pool_is_closed_in_any_state_of_its_processes(model: Path, state: signal.Signals | None) -> None:
    pool = EnginePool(model, devices="cpu:2", batch=2)
    for pid in pids(pool)[: 1 if state else 0]:
        assert state is not None
        os.kill(pid, state)
    left = pids(pool)
    pool.close()
    pool.close()
    assert not any(map(is_there, left))
    with pytest.raises(InputError, match="the pool is closed"):
        pool.run(images(1))


@pytest.mark.slow(reason="a pool with a stopped process is closed in make test")
@pytest.mark.usefixtures("nothing_left")
def test_a_pool_is_closed_under_a_batch_that_never_ends(model: Path, plant: Plant) -> None:
    plant("stopped", 1)
    with EnginePool(model, devices="cpu:2", batch=2) as pool:
        failures: list[Exception] = []

        def run() -> None:
            try:
                pool.run(images(40))
            except Exception as error:
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        time.sleep(2)
        started = time.monotonic()
        pool.close()
        assert time.monotonic() - started < 10
        thread.join()


@pytest.mark.usefixtures("nothing_left")
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


@pytest.mark.slow(reason="a process that is killed costs the same")
@pytest.mark.usefixtures("nothing_left")
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


def test_processes_go_with_the_one_that_started_them(model: Path) -> None:
    with started(model, "import time; time.sleep(60)") as parent:
        assert parent.stdout is not None
        children = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(children) == 2
        assert all(map(is_there, children))
        parent.kill()
    assert soon(lambda: not any(map(is_there, children)))


def test_a_script_needs_no_guard_and_no_close(model: Path) -> None:
    with started(model, "") as parent:
        told, _ = parent.communicate(timeout=60)
    children, shape = told.splitlines()
    assert shape == "(3, 10)"
    assert parent.returncode == 0
    assert soon(lambda: not any(is_there(int(pid)) for pid in children.split()))


@pytest.mark.slow(reason="20 pools")
def test_nothing_grows_from_pool_to_pool(model: Path) -> None:
    open_ones = []
    for _ in range(20):
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
