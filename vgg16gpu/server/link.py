"""A front end's end of the socket to the device process: questions out, answers back to who asked."""

from __future__ import annotations

import asyncio
import itertools
import socket
import time
from typing import Final

from vgg16gpu.server.refused import RefusedError, no_device, too_late
from vgg16gpu.server.slots import Lease, SlotPool
from vgg16gpu.server.wire import MAX_NBYTES, Answer, Asked, Kind

_AGAIN: Final = 0.05  # seconds between two tries to connect
_GRACE: Final = 1.0  # seconds that the device process has to say itself that a deadline has passed


class Link:
    """Connects, and connects again when the device process dies; what it was asked then gets 503.

    path: of the socket. number: of this front end. Its slots are given back by what comes from the device process.
    """

    def __init__(self, path: str, number: int, pool: SlotPool) -> None:
        self._path, self._number, self._pool = path, number, pool
        self._socket: socket.socket | None = None
        self._waiting: dict[int, tuple[asyncio.Future[Answer], Lease | None]] = {}
        self._numbers = itertools.count(1 << 32)  # no number of a front end
        self.is_ready = False
        self._hello()

    @property
    def waiting(self) -> int:
        """Questions without an answer."""
        return len(self._waiting)

    def _hello(self) -> None:
        """Connect; the answer to HELLO makes it ready."""
        loop = asyncio.get_running_loop()
        tried = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        tried.setblocking(False)
        try:
            tried.connect(self._path)
            tried.send(Asked(Kind.HELLO, self._number).packed())
        except OSError:
            tried.close()
            loop.call_later(_AGAIN, self._hello)
            return
        self._socket = tried
        loop.add_reader(tried, self._read)

    def _read(self) -> None:
        while self._socket:
            try:
                message = self._socket.recv(MAX_NBYTES)
            except BlockingIOError:
                return
            except OSError:
                message = b""
            if message:
                self._take(Answer.unpacked(message))
            else:
                self._lost()

    def _take(self, answer: Answer) -> None:
        if answer.number == self._number:
            self.is_ready = True
            return
        future, lease = self._waiting.pop(answer.number)
        if future.done():  # nobody waits any more
            if lease:
                self._pool.give_back(lease)
        else:
            future.set_result(answer)

    def _lost(self) -> None:
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket)
        self._socket.close()
        self._socket, self.is_ready = None, False
        self._pool.renew()
        for future, _ in self._waiting.values():
            if not future.done():
                future.set_exception(RefusedError(503, "the device process ended; try again in a moment", retry=True))
        self._waiting.clear()
        loop.call_later(_AGAIN, self._hello)

    async def ask(self, kind: Kind, lease: Lease | None, seconds: float) -> Answer:
        """The answer; with it the lease is the caller's again. Raises RefusedError, and then has the lease."""
        if not self._socket or not self.is_ready or (lease and not self._pool.is_current(lease)):
            self._free(lease)
            raise no_device()
        now, number = time.monotonic(), next(self._numbers)
        asked = Asked(kind, number, now, now + seconds, lease.slots if lease else ())
        try:
            self._socket.send(asked.packed())
        except BlockingIOError as error:
            self._free(lease)
            raise RefusedError(429, "the queue is full; try again in a moment", retry=True) from error
        except OSError as error:
            self._free(lease)
            raise no_device() from error
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        self._waiting[number] = future, lease
        timer = loop.call_later(seconds + _GRACE, _expire, future)
        try:
            answer = await future
        finally:
            timer.cancel()
        if answer.status != 200:
            self._free(lease)
            raise RefusedError(answer.status, answer.text, retry=answer.status == 503)
        return answer

    def _free(self, lease: Lease | None) -> None:
        if lease:
            self._pool.give_back(lease)


def _expire(future: asyncio.Future[Answer]) -> None:
    if not future.done():
        future.set_exception(too_late())
