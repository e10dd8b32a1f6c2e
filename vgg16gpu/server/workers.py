"""Threads that work for an event loop. A call costs the loop a third of what an executor of the library does."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

Result = TypeVar("Result")


class Workers:
    """So many threads, which go with the process. One loop asks them, calls begin in its order."""

    def __init__(self, count: int, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]]] = queue.SimpleQueue()
        for number in range(count):
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True).start()

    async def run(self, call: Callable[[], Result]) -> Result:
        """What the call gives or raises. Who is cancelled meanwhile is so once the call has ended, and not before."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._calls.put((call, future))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            future.exception()  # nobody else asks for it
            raise

    def _work(self) -> None:
        while True:
            call, future = self._calls.get()
            try:
                settle, found = future.set_result, call()
            except BaseException as error:
                settle, found = future.set_exception, error
            with suppress(RuntimeError):  # the loop has ended, and with it who asked
                future.get_loop().call_soon_threadsafe(settle, found)
            del call, future, settle, found  # or a picture would stay until the next one
