"""server/workers.py: threads that work for an event loop."""

from __future__ import annotations

import asyncio
import math
import threading
import time

import pytest

from vgg16gpu_serving.refused import RefusedError
from vgg16gpu_serving.workers import CancelToken, Workers

ALWAYS = math.inf  # a deadline


def test_calls_give_and_raise() -> None:
    async def ask() -> None:
        workers, token = Workers(2, "test"), CancelToken(ALWAYS)
        calls = [workers.run(lambda number=number: 2 * number, token) for number in range(50)]
        assert await asyncio.gather(*calls) == list(range(0, 100, 2))
        with pytest.raises(ZeroDivisionError):
            await workers.run(lambda: 1 // 0, token)
        assert await workers.run(lambda: threading.current_thread().name, token) in {"test-0", "test-1"}

    asyncio.run(ask())


class Held:
    """A call that goes on until it is told to end."""

    def __init__(self) -> None:
        self.began, self.goes_on, self.calls = threading.Event(), threading.Event(), 0

    def __call__(self) -> None:
        self.calls += 1
        self.began.set()
        assert self.goes_on.wait(20)
        raise ValueError("nobody hears of it")


async def until(event: threading.Event) -> None:
    while not event.is_set():
        await asyncio.sleep(0.001)


def test_who_is_cancelled_goes_on_and_is_told_when_the_call_has_ended() -> None:
    held, told = Held(), threading.Event()

    async def give_up() -> None:
        token = CancelToken(ALWAYS)
        task = asyncio.create_task(Workers(1, "test").run(held, token, told.set))
        await until(held.began)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert token.is_over
        assert not told.is_set()  # the call may write yet
        held.goes_on.set()
        await until(told)

    asyncio.run(give_up())


def test_a_call_that_nobody_waits_for_does_not_begin() -> None:
    first, second, told = Held(), Held(), threading.Event()

    async def give_up() -> None:
        workers = Workers(1, "test")
        before = asyncio.create_task(workers.run(first, CancelToken(ALWAYS)))
        await until(first.began)
        task = asyncio.create_task(workers.run(second, CancelToken(ALWAYS), told.set))
        late = asyncio.create_task(workers.run(second, CancelToken(time.monotonic())))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not told.is_set()
        first.goes_on.set()
        with pytest.raises(ValueError, match="nobody hears"):
            await before
        with pytest.raises(RefusedError, match="deadline") as refused:
            await late
        assert refused.value.status == 503
        await until(told)

    asyncio.run(give_up())
    assert second.calls == 0


def test_a_result_that_comes_with_the_cancellation_is_told_of() -> None:
    """The call has ended, and who waited is cancelled before it went on."""
    told = threading.Event()

    async def give_up() -> None:
        task = asyncio.create_task(Workers(1, "test").run(lambda: None, CancelToken(ALWAYS), told.set))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.05, task.cancel)
        time.sleep(0.1)  # the result and the cancellation wait for the loop, in this order
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(told)

    asyncio.run(give_up())
