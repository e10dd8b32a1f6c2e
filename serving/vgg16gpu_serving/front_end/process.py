"""A front-end process: granian takes requests (RSGI), `App` answers them."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import signal
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Final

from vgg16gpu.errors import DeviceError, Error
from vgg16gpu.io.foreign.numbers import whole_number
from vgg16gpu_serving.children import SIGNALS, answered, failed, ignore_warnings, is_ignored, keep_for_good
from vgg16gpu_serving.front_end.bodies import CONNECTION_NBYTES, Bodies, Body
from vgg16gpu_serving.front_end.door import AccessLog, Door, LogFile, check_tls
from vgg16gpu_serving.front_end.heads import Heads
from vgg16gpu_serving.refused import RefusedError, too_late
from vgg16gpu_serving.served import Served
from vgg16gpu_serving.slots import SlotLayout, SlotMemory, SlotPool, slot_memory

_NAME_CHARACTERS: Final = 128
_STEP: Final = 0.01  # seconds between two looks
_PATIENCE: Final = 0.05  # seconds of a request after which its client is watched
_LARGE: Final = 1 << 20  # bytes of an answer that another thread hands to granian
_GONE: Final = 499  # the status of a request whose client hung up, in metrics and in the log

_PROCESS: Final = uuid.uuid4().hex[:16]
_COUNT: Final = itertools.count()

_log = logging.getLogger("vgg16gpu_serving.access")


def main(served: Served, door: Door, paths: Sequence[str], metrics: str, until: Connection) -> None:
    """Serve until SIGTERM, or until `until` closes; then end what is under way. paths: of the devices' sockets.

    `until` is told that this process listens, or the Error that keeps it from that.
    """
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = metrics
    import uvloop  # noqa: PLC0415 - slow to import, as is all that knows HTTP

    ignore_warnings()
    try:
        check_tls(door.certificate, door.key)
        _open_log(door.log)
        uvloop.run(_serve(served, door, paths, until))
    except Error as error:
        failed(until, error)


async def _serve(served: Served, door: Door, paths: Sequence[str], until: Connection) -> None:
    from granian.constants import HTTPModes  # noqa: PLC0415
    from granian.http import HTTP1Settings  # noqa: PLC0415
    from granian.server.embed import Server  # noqa: PLC0415

    from vgg16gpu_serving.front_end.app import App  # noqa: PLC0415 - after the folder of metrics is known
    from vgg16gpu_serving.front_end.link import Links  # noqa: PLC0415
    from vgg16gpu_serving.front_end.pictures import limit_pixels  # noqa: PLC0415
    from vgg16gpu_serving.metrics import Metrics  # noqa: PLC0415
    from vgg16gpu_serving.page.explanations import Explanations  # noqa: PLC0415

    limit_pixels(served.bounds.pixels)
    metrics = Metrics()
    layout = SlotLayout.of(served.description)
    memory = slot_memory(layout, served.bounds.queue)
    pool = SlotPool(served.bounds.queue)
    links = Links(paths, memory, pool)
    ending = asyncio.Event()
    explanations = Explanations(paths[0], served)
    app = App(served, SlotMemory(memory, layout), pool, links, metrics, explanations, ending.is_set)
    handler = Handler(app, served, pool, metrics, ending.is_set)
    logging.getLogger("_granian").setLevel(logging.ERROR)
    server = Server(
        handler,
        address=door.address.host,
        port=door.address.port,
        http=HTTPModes.http1,
        http1_settings=HTTP1Settings(
            header_read_timeout=round(1000 * served.bounds.deadline), max_buffer_size=CONNECTION_NBYTES
        ),
        websockets=False,
        backpressure=served.bounds.connections,
        log_enabled=False,
        ssl_cert=door.certificate,
        ssl_key=door.key,
    )
    loop = asyncio.get_running_loop()
    for each in SIGNALS:
        if not is_ignored(each):
            loop.add_signal_handler(each, ending.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def asked() -> None:
        if not answered(until):
            ending.set()

    loop.add_reader(until.fileno(), asked)
    await _until(lambda: links.is_ready or ending.is_set(), served.bounds.deadline)  # or it would refuse the first
    keep_for_good()
    serving = asyncio.create_task(server.serve())
    while not serving.done() and not _bound_reading(served.bounds.deadline):
        await asyncio.sleep(_STEP)
    with suppress(OSError):  # who started this one may be gone
        if not serving.done():
            until.send(None)  # it listens
    await asyncio.wait([serving, asyncio.create_task(ending.wait())], return_when=asyncio.FIRST_COMPLETED)
    loop.remove_reader(until.fileno())
    if serving.done():
        serving.result()
        raise DeviceError(f"it cannot listen at {door.address}, or listens no more")
    # Requests that come from now on are ended with the connections.
    await _until(lambda: not handler.under_way[False], served.bounds.deadline + _STEP)
    server.stop()
    await serving


def _bound_reading(seconds: float) -> bool:
    """End connections that take nothing in for `seconds`; return whether this process listens yet.

    A client that reads nothing would keep its connection, one of so many, for ever. Connections inherit it.
    """
    listening = [found for found in map(_socket, os.listdir("/proc/self/fd")) if found]  # noqa: PTH208 - names
    for found in listening:
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * seconds))
        found.close()
    return bool(listening)


def _socket(descriptor: str) -> socket.socket | None:
    """Return a second handle of a socket that listens for TCP; None for any other descriptor."""
    try:
        copy = os.dup(whole_number(descriptor, "a descriptor", 0, 1 << 30))
    except OSError:  # that of the folder that was listed
        return None
    try:
        found = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        return None
    is_tcp = found.family in (socket.AF_INET, socket.AF_INET6)
    if is_tcp and found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return found
    found.close()
    return None


async def _until(is_so: Callable[[], bool], seconds: float) -> None:
    """Wait, but no longer than for so many seconds."""
    last = time.monotonic() + seconds
    while not is_so() and time.monotonic() < last:
        await asyncio.sleep(_STEP)


class Handler:
    """What granian calls for each request."""

    def __init__(self, app: Any, served: Served, pool: SlotPool, metrics: Any, is_ending: Callable[[], bool]) -> None:
        from vgg16gpu_serving.front_end.app import Call, refusal  # noqa: PLC0415 - after the folder of metrics is known

        self._call, self._refusal = Call, refusal
        self._app, self._bounds, self._pool, self._metrics = app, served.bounds, pool, metrics
        self._is_ending = is_ending
        self._heads, self._bodies = Heads(served.hosts), Bodies(served.bounds)
        self.under_way = {False: 0, True: 0}  # requests, by whether the server was ending as they began

    async def __rsgi__(self, scope: Any, protocol: Any) -> None:
        """Answer one request, by its deadline at the latest; one whose client has hung up is dropped."""
        if scope.proto != "http":
            return
        began = time.monotonic()
        is_late = self._is_ending()
        self.under_way[is_late] += 1
        is_wrong = False
        body = Body(self._bodies, protocol, 0)
        try:
            body.length = self._heads.check(scope)
            reply = await self._answered(scope, protocol, body, began)
        except RefusedError as error:
            reply, is_wrong = self._refusal(error), True
        finally:
            self.under_way[is_late] -= 1
            body.close()
        identity = _identity(scope.headers.get("x-request-id"))
        if reply is None:  # nobody is there to read it
            self._told(scope, identity, _GONE, began, 0)
            return
        headers = [*reply.headers, ("x-request-id", identity)]
        # The next request would come behind a body that nobody reads; or would find nobody here.
        if is_wrong or body.is_left or self._is_ending():
            headers.append(("connection", "close"))
        content = reply.body if scope.method != "HEAD" else b""
        if len(content) > _LARGE:  # it is copied
            await asyncio.to_thread(protocol.response_bytes, reply.status, headers, content)
        else:
            protocol.response_bytes(reply.status, headers, content)
        self._told(scope, identity, reply.status, began, len(reply.body))

    async def _answered(self, scope: Any, protocol: Any, body: Body, began: float) -> Any:
        """Return the reply; None where the client has hung up before there was one."""
        deadline = began + self._bounds.deadline
        watch = Watch(protocol, deadline)
        try:
            return await self._app.handle(self._call(scope.method, scope.path, scope.headers.get, body.read, deadline))
        except asyncio.CancelledError:
            if watch.is_late:
                seconds = f"{self._bounds.deadline:g} s"
                late = RefusedError(408, f"the body did not come within {seconds}; send it faster")
                return self._refusal(late if body.is_late else too_late())
            if watch.is_gone:
                return None
            raise
        finally:
            watch.end()

    def _told(self, scope: Any, identity: str, status: int, began: float, nbytes: int) -> None:
        seconds = time.monotonic() - began
        self._metrics.replied(status, seconds, self._pool.used)
        if _log.isEnabledFor(logging.INFO):
            _log_access(scope, identity, status, seconds, nbytes)


class Watch:
    """Cancels the task that makes it at a deadline, of CLOCK_MONOTONIC, and when the client hangs up.

    It looks only after a while: most requests end before.
    """

    def __init__(self, protocol: Any, deadline: float) -> None:
        self.is_gone = self.is_late = False
        self._protocol, self._deadline, self._task = protocol, deadline, asyncio.current_task()
        self._watching: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(min(_PATIENCE, self._left()), self._begin)

    def end(self) -> None:
        """Look no more."""
        self._timer.cancel()
        if self._watching:
            self._watching.cancel()

    def _left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def _begin(self) -> None:
        self._watching = self._loop.create_task(self._look())
        self._timer = self._loop.call_later(self._left(), self._late)

    def _late(self) -> None:
        self.is_late = True
        self._cancel()

    async def _look(self) -> None:
        await self._protocol.client_disconnect()
        self.is_gone = True
        self._cancel()

    def _cancel(self) -> None:
        if self._task:
            self._task.cancel()


def _identity(given: str | None) -> str:
    """Return the client's own name of a request where it is short and printable, else a new one."""
    if given and len(given) <= _NAME_CHARACTERS and given.isascii() and given.isprintable():
        return given
    return f"{_PROCESS}-{next(_COUNT):x}"


def _log_access(scope: Any, identity: str, status: int, seconds: float, nbytes: int) -> None:
    line = {
        "time": round(time.time(), 3),
        "id": identity,
        "client": scope.client,
        "method": scope.method,
        "path": scope.path[:512],
        "status": status,
        "seconds": round(seconds, 6),
        "bytes": nbytes,
    }
    _log.info("%s", json.dumps(line))


def _open_log(file: LogFile | None) -> None:
    """Log each request as a line of JSON."""
    if file is None:
        return
    _log.addHandler(AccessLog(file))
    _log.setLevel(logging.INFO)
    _log.propagate = False
