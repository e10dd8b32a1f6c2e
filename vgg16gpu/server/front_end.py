"""A front-end process: granian takes requests (RSGI), `App` answers them. Extra [serve]."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import signal
import socket
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from vgg16gpu.server.children import answered, keep_for_good
from vgg16gpu.server.refused import RefusedError
from vgg16gpu.server.served import Bounds, Served
from vgg16gpu.server.slots import SlotLayout, SlotMemory, SlotPool, slot_memory

_NAME_CHARACTERS: Final = 128
_STEP: Final = 0.01  # seconds between two looks

_PROCESS: Final = uuid.uuid4().hex[:16]
_COUNT: Final = itertools.count()

_log = logging.getLogger("vgg16gpu.server.access")


@dataclass(frozen=True)
class Door:
    """Where a front end listens, and what it writes. access_log: a file, "-" for stdout, or None."""

    host: str
    port: int
    certificate: Path | None
    key: Path | None
    access_log: str | None


def main(served: Served, door: Door, paths: Sequence[str], metrics: str, until: Connection) -> None:
    """Serve until SIGTERM, or until `until` closes; then end what is under way. paths: of the devices' sockets."""
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = metrics
    import uvloop  # noqa: PLC0415 - of the extra, as is all that knows HTTP

    _open_log(door.access_log)
    uvloop.run(_serve(served, door, paths, until))


async def _serve(served: Served, door: Door, paths: Sequence[str], until: Connection) -> None:
    from granian.constants import HTTPModes  # noqa: PLC0415
    from granian.http import HTTP1Settings  # noqa: PLC0415
    from granian.server.embed import Server  # noqa: PLC0415

    from vgg16gpu.server.app import App  # noqa: PLC0415 - after the folder of metrics is known
    from vgg16gpu.server.link import Links  # noqa: PLC0415
    from vgg16gpu.server.metrics import Metrics  # noqa: PLC0415
    from vgg16gpu.server.page.explanations import Explanations  # noqa: PLC0415
    from vgg16gpu.server.pictures import limit_pixels  # noqa: PLC0415

    limit_pixels(served.bounds.pixels)
    metrics = Metrics()
    layout = SlotLayout.of(served.description)
    memory = slot_memory(layout, served.bounds.queue)
    pool = SlotPool(served.bounds.queue)
    links = Links(paths, memory, pool)
    ending = asyncio.Event()
    explanations = Explanations(paths[0], served)
    app = App(served, SlotMemory(memory, layout), pool, links, metrics, explanations, ending.is_set)
    handler = Handler(app, served.bounds, pool, metrics, ending.is_set)
    logging.getLogger("_granian").setLevel(logging.ERROR)
    server = Server(
        handler,
        address=door.host,
        port=door.port,
        http=HTTPModes.http1,
        http1_settings=HTTP1Settings(header_read_timeout=round(1000 * served.bounds.body_seconds)),
        websockets=False,
        backpressure=served.bounds.connections,
        log_enabled=False,
        ssl_cert=door.certificate,
        ssl_key=door.key,
    )
    loop = asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, ending.set)

    def asked() -> None:
        if not answered(until):
            ending.set()

    loop.add_reader(until.fileno(), asked)
    await _until(lambda: links.is_ready or ending.is_set(), served.bounds.deadline)  # or it would refuse the first
    keep_for_good()
    serving = asyncio.create_task(server.serve())
    while not serving.done() and not _bound_reading(served.bounds.body_seconds):
        await asyncio.sleep(_STEP)
    with suppress(OSError):  # who started this one may be gone
        until.send(None)  # it listens
    await asyncio.wait([serving, asyncio.create_task(ending.wait())], return_when=asyncio.FIRST_COMPLETED)
    loop.remove_reader(until.fileno())
    if serving.done():  # it does not listen
        serving.result()
        raise SystemExit(1)
    # Requests that come from now on are ended with the connections.
    await _until(lambda: not handler.under_way[False], served.bounds.deadline)
    server.stop()
    await serving


def _bound_reading(seconds: float) -> bool:
    """Have the system end connections that take nothing in for so long; whether this process listens yet.

    A client that reads nothing would keep its connection, one of so many, for ever. Connections inherit it.
    """
    listening = [found for found in map(_socket, os.listdir("/proc/self/fd")) if found]  # noqa: PTH208 - names
    for found in listening:
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * seconds))
        found.close()
    return bool(listening)


def _socket(descriptor: str) -> socket.socket | None:
    """A second handle of a socket that listens for TCP; None for whatever else the descriptor is."""
    try:
        copy = os.dup(int(descriptor))
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


@dataclass
class Body:
    """Of a request. held: bytes that it has of the bound; is_left: whether some of it has not been read."""

    held: int
    is_left: bool


class Handler:
    """What granian calls for each request."""

    def __init__(self, app: Any, bounds: Bounds, pool: SlotPool, metrics: Any, is_ending: Callable[[], bool]) -> None:
        self._app, self._bounds, self._pool, self._metrics = app, bounds, pool, metrics
        self._is_ending = is_ending
        self._held = 0  # bytes of bodies
        self.under_way = {False: 0, True: 0}  # requests, by whether the server was ending as they began

    async def __rsgi__(self, scope: Any, protocol: Any) -> None:
        """Answer one request."""
        from vgg16gpu.server.app import Call, refusal  # noqa: PLC0415

        if scope.proto != "http":
            return
        began = time.monotonic()
        is_late = self._is_ending()
        self.under_way[is_late] += 1
        body = Body(0, is_left=scope.headers.get("content-length", "0") != "0")
        try:
            call = Call(scope.method, scope.path, scope.headers.get, lambda: self._read(scope, protocol, body))
            wrong = _wrong_form(scope)
            reply = refusal(wrong) if wrong else await self._app.handle(call)
        finally:
            self.under_way[is_late] -= 1
            self._held -= body.held
        identity = _identity(scope.headers.get("x-request-id"))
        headers = [*reply.headers, ("x-request-id", identity)]
        # The next request would come behind a body that nobody reads; or would find nobody here.
        if wrong or body.is_left or self._is_ending():
            headers.append(("connection", "close"))
        protocol.response_bytes(reply.status, headers, reply.body if scope.method != "HEAD" else b"")
        seconds = time.monotonic() - began
        self._metrics.replied(reply.status, seconds, self._pool.used)
        if _log.isEnabledFor(logging.INFO):
            _log_access(scope, identity, reply.status, seconds, len(reply.body))

    async def _read(self, scope: Any, protocol: Any, body: Body) -> bytes:
        """The body. Raises RefusedError: 413 too large, 429 too many at once, 408 too slow."""
        length = scope.headers.get("content-length", "0")
        try:
            async with asyncio.timeout(self._bounds.body_seconds):
                self._hold(int(length[:18]), body)  # hyper lets nothing else than digits through
                read: bytes = await protocol()
                body.is_left = False
                return read
        except TimeoutError as error:
            raise RefusedError(
                408, f"the body did not come within {self._bounds.body_seconds:g} s; send it faster"
            ) from error
        except RuntimeError as error:  # granian's, of a connection that ended
            raise RefusedError(400, "the body is cut short or broken; send it again") from error

    def _hold(self, nbytes: int, body: Body) -> None:
        if nbytes > self._bounds.body:
            raise RefusedError(413, f"the body is larger than {self._bounds.body:,} bytes; send fewer images at once")
        if self._held + nbytes > self._bounds.bodies:
            raise RefusedError(429, "too many bodies are being read; try again in a moment", retry=True)
        body.held = nbytes
        self._held += nbytes


def _wrong_form(scope: Any) -> RefusedError | None:
    """Why a head is not taken that two servers on its way might read in two ways; None for the usual ones.

    Chunks are such a form, and of chunks that end early granian says nothing.
    """
    if scope.headers.get("transfer-encoding") is not None:
        return RefusedError(411, "send a Content-Length and no Transfer-Encoding")
    hosts = sum(name == "host" for name, _ in scope.headers.items())
    if scope.http_version == "1.1" and hosts != 1:
        return RefusedError(400, f"{hosts} Host headers; send one")
    return None


def _identity(given: str | None) -> str:
    """The client's own name of a request where it is short and printable, else a new one."""
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


def _open_log(target: str | None) -> None:
    """Each request as a line of JSON; lines of several processes come whole, as each is one write."""
    if target is None:
        return
    handler = logging.StreamHandler(sys.stdout) if target == "-" else logging.FileHandler(target)
    handler.setFormatter(logging.Formatter("%(message)s"))
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    _log.propagate = False
