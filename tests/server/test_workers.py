"""server/workers.py: threads that work for an event loop."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref

import pytest

from vgg16gpu.server.workers import Workers


def test_calls_give_and_raise() -> None:
    async def ask() -> None:
        workers = Workers(2, "test")
        assert await asyncio.gather(*(workers.run(lambda number=number: 2 * number) for number in range(50))) == list(
            range(0, 100, 2)
        )
        with pytest.raises(ZeroDivisionError):
            await workers.run(lambda: 1 // 0)
        assert await workers.run(lambda: threading.current_thread().name) in {"test-0", "test-1"}

    asyncio.run(ask())


def test_who_is_cancelled_waits_for_the_call() -> None:
    began, goes_on, ended = threading.Event(), threading.Event(), threading.Event()

    def write() -> None:
        began.set()
        assert goes_on.wait(20)
        ended.set()
        raise ValueError("nobody hears of it")

    async def give_up() -> None:
        task = asyncio.create_task(Workers(1, "test").run(write))
        while not began.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.sleep(0.05)
        assert not task.done()
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()

    asyncio.run(give_up())


def test_nothing_is_kept_of_a_call() -> None:
    class Picture:
        pass

    async def ask() -> weakref.ref[Picture]:
        workers, picture = Workers(1, "test"), Picture()
        await workers.run(lambda: id(picture))
        return weakref.ref(picture)

    found = asyncio.run(ask())
    gc.collect()
    assert found() is None
