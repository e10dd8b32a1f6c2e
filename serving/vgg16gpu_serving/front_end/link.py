"""A front end's ends of the sockets to the device processes: questions out, answers back to who asked."""

from __future__ import annotations

import asyncio
import itertools
import socket
import time
from collections.abc import Sequence
from typing import Final

from vgg16gpu_serving.refused import RefusedError, no_device
from vgg16gpu_serving.slots import Lease, SlotPool
from vgg16gpu_serving.wire import MAX_NBYTES, Answer, Asked, Kind, Outbox

_AGAIN: Final = 0.05  # seconds between two tries to connect
_HELLO: Final = 0  # the number of this message


class Link:
    """To one device process; connects again when that dies, and what it was asked then gets 503.

    path: of the socket. device: its number. memory: the descriptor of the slots that `pool` deals out; slots are given
    back when their answer comes, or with the process.
    """

    def __init__(self, path: str, device: int, memory: int, pool: SlotPool) -> None:
        self._path, self._device, self._memory, self._pool = path, device, memory, pool
        self._socket: socket.socket | None = None
        self._waiting: dict[int, tuple[asyncio.Future[Answer], Lease | None]] = {}
        self._numbers = itertools.count(_HELLO + 1)
        self._outbox, self._is_writing = Outbox(), False
        self._buffer = memoryview(bytearray(MAX_NBYTES))
        self.is_ready = False
        self.images = 0  # under way
        self._hello()

    def _hello(self) -> None:
        """Connect; the answer makes it ready."""
        loop = asyncio.get_running_loop()
        tried = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        tried.setblocking(False)
        try:
            tried.connect(self._path)
            socket.send_fds(tried, [Asked(Kind.HELLO, _HELLO).packed()], [self._memory])
        except OSError:
            tried.close()
            loop.call_later(_AGAIN, self._hello)
            return
        self._socket = tried
        loop.add_reader(tried, self._read)

    def _read(self) -> None:
        while self._socket:
            try:
                nbytes = self._socket.recv_into(self._buffer)
            except BlockingIOError:
                return
            except OSError:
                nbytes = 0
            if nbytes:
                for answer in Answer.unpacked(self._buffer[:nbytes], self._device):
                    self._take(answer)
            else:
                self._lost()

    def _take(self, answer: Answer) -> None:
        if answer.number == _HELLO:
            self.is_ready = True
            return
        future, lease = self._waiting.pop(answer.number)
        if lease:
            self.images -= len(lease.slots)
        if not future.done():
            future.set_result(answer)
        elif lease:  # nobody waits any more
            self._pool.give_back(lease)

    def _lost(self) -> None:
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket)
        loop.remove_writer(self._socket)
        self._socket.close()
        self._outbox, self._is_writing = Outbox(), False
        self._socket, self.is_ready, self.images = None, False, 0
        for future, lease in self._waiting.values():
            if lease:
                self._pool.give_back(lease)
            if not future.done():
                future.set_exception(RefusedError(503, "the device process ended; try again in a moment", retry=True))
        self._waiting.clear()
        loop.call_later(_AGAIN, self._hello)

    def _send(self) -> None:
        assert self._socket
        loop = asyncio.get_running_loop()
        try:
            is_writing = not self._outbox.send(self._socket)
        except OSError:
            self._outbox, is_writing = Outbox(), False  # it is gone: `_read` will see that
        if is_writing and not self._is_writing:
            loop.add_writer(self._socket, self._send)
        elif self._is_writing and not is_writing:
            loop.remove_writer(self._socket)
        self._is_writing = is_writing

    async def ask(self, kind: Kind, lease: Lease | None, deadline: float) -> Answer:
        """See `Links.ask`."""
        number = next(self._numbers)
        asked = Asked(kind, number, time.monotonic(), deadline, lease.slots if lease else ())
        self._put(asked)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future, lease
        self.images += len(asked.slots)
        try:
            answer = await future
        except asyncio.CancelledError:
            if number in self._waiting:
                self._put(Asked(Kind.CANCEL, number))  # the answer gives the lease back
            else:
                self._free(lease)
            raise
        if answer.status != 200:
            self._free(lease)
            raise RefusedError(answer.status, answer.text, retry=answer.status == 503)
        return answer

    def _put(self, asked: Asked) -> None:
        self._outbox.add(asked.packed())
        self._send()

    def _free(self, lease: Lease | None) -> None:
        if lease:
            self._pool.give_back(lease)


class Links:
    """To all device processes. paths: of their sockets, by their numbers."""

    def __init__(self, paths: Sequence[str], memory: int, pool: SlotPool) -> None:
        self._links = [Link(path, device, memory, pool) for device, path in enumerate(paths)]
        self._pool = pool
        self._turn = 0

    @property
    def is_ready(self) -> bool:
        """Return whether a device process takes requests."""
        return any(link.is_ready for link in self._links)

    async def ask(self, kind: Kind, lease: Lease | None, deadline: float) -> Answer:
        """Ask the device process with the fewest images under way; equal ones take turns. Return the answer.

        deadline: of CLOCK_MONOTONIC; what has not begun by then is dropped, as is that of a cancelled caller. With the
        answer the lease is the caller's again. Raises RefusedError, and then has the lease.
        """
        self._turn = (self._turn + 1) % len(self._links)
        ready = [link for link in self._links[self._turn :] + self._links[: self._turn] if link.is_ready]
        if not ready:
            if lease:
                self._pool.give_back(lease)
            raise no_device()
        return await min(ready, key=lambda link: link.images).ask(kind, lease, deadline)

    async def ask_each(self, kind: Kind, deadline: float) -> list[Answer]:
        """Return the answers of all device processes that take requests. Raises RefusedError where none answers."""
        asked = [link.ask(kind, None, deadline) for link in self._links if link.is_ready]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        if found := [answer for answer in answers if isinstance(answer, Answer)]:
            return found
        raise no_device()
