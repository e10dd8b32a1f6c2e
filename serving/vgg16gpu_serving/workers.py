"""Threads that work for an event loop. A call costs the loop a third of what an executor of the library does."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from vgg16gpu_serving.refused import too_late

Result = TypeVar("Result")


class CancelToken:
    """Tells the threads that work for a request when nobody waits any more: it was cancelled, or its time is over.

    deadline: of CLOCK_MONOTONIC.
    """

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self._is_cancelled = False

    def cancel(self) -> None:
        """Cancel the work: what has not begun will not begin."""
        self._is_cancelled = True

    @property
    def is_over(self) -> bool:
        """Return whether to stop."""
        return self._is_cancelled or time.monotonic() > self.deadline

    def check(self) -> None:
        """Raise RefusedError (503) where it is time to stop."""
        if self.is_over:
            raise too_late()


def _nothing() -> None:
    """Do nothing: the default of `Workers.run`."""


class Workers:
    """As many threads as `count`, which go with the process. One loop asks them, calls begin in its order."""

    def __init__(self, count: int, name: str) -> None:
        self._calls: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        for number in range(count):
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True).start()

    async def run(
        self, call: Callable[[], Result], token: CancelToken, abandoned: Callable[[], None] = _nothing
    ) -> Result:
        """Return or raise what the call does; RefusedError (503) where the token was over before it began.

        A caller that is cancelled goes on at once, and cancels the token. Only then the loop calls `abandoned`, once
        the call has ended or was dropped: until then the call may write where it writes.
        """
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._calls.put(_Job(call, token, future, abandoned))
        try:
            return await future
        except asyncio.CancelledError:
            token.cancel()
            if not future.cancelled():  # the call had ended by then
                future.exception()  # nobody else asks for it
                abandoned()
            raise

    def _work(self) -> None:
        while True:
            job = self._calls.get()
            result: Any = None
            error: BaseException | None = None
            try:
                job.token.check()
                result = job.call()
            except BaseException as raised:
                error = raised
            job.call = _nothing  # or its picture would stay until the loop comes to it
            with suppress(RuntimeError):  # the loop has ended, and with it who asked
                job.future.get_loop().call_soon_threadsafe(_settle, job, result, error)
            del job, result, error  # or they would stay until the next one


class _Job:
    """A call, who waits for it, and what to do where nobody does."""

    __slots__ = ("abandoned", "call", "future", "token")

    def __init__(
        self,
        call: Callable[[], Any],
        token: CancelToken,
        future: asyncio.Future[Any],
        abandoned: Callable[[], None],
    ) -> None:
        self.call, self.token, self.future, self.abandoned = call, token, future, abandoned


def _settle(job: _Job, result: Any, error: BaseException | None) -> None:
    if job.future.done():
        job.abandoned()
    elif error is None:
        job.future.set_result(result)
    else:
        job.future.set_exception(error)
