"""What each path answers. It knows no HTTP server: `process.py` calls `App.handle`."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

import vgg16gpu
from vgg16gpu.io.foreign.documents import parse_json
from vgg16gpu.io.shown import shown
from vgg16gpu.pictures.images import in_channel_order
from vgg16gpu_serving.device.statistics import added_up
from vgg16gpu_serving.front_end.decoding import Decoding
from vgg16gpu_serving.front_end.heads import check_form
from vgg16gpu_serving.front_end.link import Links
from vgg16gpu_serving.metrics import Metrics
from vgg16gpu_serving.page.document import document
from vgg16gpu_serving.page.explanations import Explanations
from vgg16gpu_serving.protocol import answers, openapi, requests
from vgg16gpu_serving.refused import RefusedError, no_device
from vgg16gpu_serving.served import Served
from vgg16gpu_serving.slots import Lease, SlotMemory, SlotPool
from vgg16gpu_serving.wire import UNDECODED, Kind
from vgg16gpu_serving.workers import CancelToken, Workers

_EXTENSIONS: Final = ["binary_tensor_data", "classification", "model_configuration", "statistics", "explain"]
_MISSING: Final = {  # extensions of Triton that this server lacks, by the paths that they have below /v2
    "systemsharedmemory": "memory that clients share; send the data in the body",
    "cudasharedmemory": "memory that clients share; send the data in the body",
    "repository": "loading and unloading models; start a server for each",
    "trace": "traces",
    "logging": "settings of its log",
    "generate": "generated text",
    "generate_stream": "generated text",
}

Result = TypeVar("Result")

_THREADS: Final = 1  # for large messages: they are read and written beside the loop

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Call:
    """A request of HTTP: names of headers in lower case. read: gives the body; raises RefusedError.

    deadline: of CLOCK_MONOTONIC; whoever calls gives up then.
    """

    method: str
    path: str
    header: Callable[[str], str | None]
    read: Callable[[], Awaitable[bytes | memoryview]]
    deadline: float


@dataclass(frozen=True)
class Reply:
    """headers: beside Content-Length."""

    status: int
    body: bytes = b""
    headers: list[tuple[str, str]] = field(default_factory=list)


class App:
    """The paths of one front end. is_ending: whether the server takes no more requests."""

    def __init__(
        self,
        served: Served,
        memory: SlotMemory,
        pool: SlotPool,
        links: Links,
        metrics: Metrics,
        explanations: Explanations,
        is_ending: Callable[[], bool],
    ) -> None:
        self._served, self._memory, self._pool, self._links = served, memory, pool, links
        self._explanations = explanations
        self._metrics, self._is_ending = metrics, is_ending
        self._decoding = Decoding(served)
        self._workers = Workers(_THREADS, "vgg16gpu-work")
        self._about = {  # made once: a request reads nothing from disk
            "v2": _json({"name": "vgg16gpu", "version": vgg16gpu.__version__, "extensions": _EXTENSIONS}),
            "openapi": _json(openapi.document(served, vgg16gpu.__version__)),
            "model": _json(answers.metadata(served)),
            "config": _json(answers.configuration(served.name, served.description)),
        }
        if served.explainable:
            document()

    async def handle(self, call: Call) -> Reply:
        """Answer a request, also a wrong one; raises nothing."""
        try:
            return await self._route(call)
        except RefusedError as error:
            return refusal(error)
        except Exception:
            _log.exception("a request failed")
            return _json({"error": "the server failed on this request; its log says why"}, 500)

    async def _route(self, call: Call) -> Reply:
        parts = call.path.strip("/").split("/")
        match parts:
            case ["v2", "health", "live"]:
                return _only("GET", call) or _json({"live": True})
            case ["v2", "health", "ready"]:
                return _only("GET", call) or self._ready()
            case [""] if self._served.explainable:
                return _only("GET", call) or Reply(200, *document())
        self._authorise(call)
        match parts:
            case ["v2"]:
                return _only("GET", call) or self._about["v2"]
            case ["v2", "openapi.json"]:
                return _only("GET", call) or self._about["openapi"]
            case ["v2", "repository", "index"]:
                known = [{"name": self._served.name, "version": "1", "state": "READY" if self._links.is_ready else ""}]
                return _only("POST", call) or _json(known)
            case ["metrics"]:
                return _only("GET", call) or await self._exposed(call)
            case ["v2", "models", "stats"]:
                return _only("GET", call) or await self._statistics(call.deadline)
            case ["v2", "models", name, "versions", version, *rest]:
                if name == self._served.name and version != "1":
                    raise RefusedError(404, f"model '{name}' has the version 1 alone, and not {shown(version)}")
                return await self._model(name, rest, call)
            case ["v2", "models", name, *rest]:
                return await self._model(name, rest, call)
            case ["v2", missing, *rest] if missing in _MISSING:
                return _lacked(missing, rest, call)
        raise RefusedError(404, "no such path; see /v2, /v2/models/NAME and /v2/models/NAME/infer")

    async def _model(self, name: str, rest: list[str], call: Call) -> Reply:
        if name != self._served.name:
            raise RefusedError(404, f"no such model: this server has '{self._served.name}'")
        match rest:
            case []:
                return _only("GET", call) or self._about["model"]
            case ["ready"]:
                return _only("GET", call) or self._ready()
            case ["config"]:
                return _only("GET", call) or self._about["config"]
            case ["stats"]:
                return _only("GET", call) or await self._statistics(call.deadline)
            case ["infer"]:
                return _only("POST", call) or await self._infer(call)
            case ["explain"] if call.method in ("GET", "HEAD"):
                return _json(self._explanations.told())
            case ["explain"]:
                return _only("POST", call) or await self._explain(call)
            case [missing, *rest] if missing in _MISSING:
                return _lacked(missing, rest, call)
        known = "/ready, /config, /stats, /infer and /explain"
        raise RefusedError(404, f"no such path; a model has /v2/models/{self._served.name}, {known}")

    def _ready(self) -> Reply:
        if self._is_ending():
            raise RefusedError(503, "the server is ending")
        if not self._links.is_ready:
            raise no_device()
        return _json({"ready": True})

    def _authorise(self, call: Call) -> None:
        """Raise RefusedError (401) without one of the tokens, all of which are compared, in constant time."""
        if not self._served.tokens:
            return
        kind, _, given = (call.header("authorization") or "").partition(" ")
        sent = given.strip().encode() if kind.lower() == "bearer" else b""
        matches = [hmac.compare_digest(sent, token) for token in self._served.tokens]
        if not any(matches):
            raise RefusedError(401, "no valid token: send Authorization: Bearer TOKEN")

    async def _statistics(self, deadline: float) -> Reply:
        found = await self._links.ask_each(Kind.STATISTICS, deadline)
        devices = {str(answer.device): parse_json(answer.text, "statistics") for answer in found}
        told = {"name": self._served.name, "version": "1", **added_up(devices.values()), "devices": devices}
        return _json({"model_stats": [told]})

    async def _exposed(self, call: Call) -> Reply:
        """Return all processes' metrics: they share files, which take some milliseconds to read."""
        text, kind = await self._workers.run(self._metrics.exposed, CancelToken(call.deadline))
        return Reply(200, text, [("content-type", kind)])

    async def _parsed(self, call: Call) -> answers.Request:
        check_form(call.header)
        if not self._links.is_ready:
            raise no_device()
        body = await call.read()
        length = requests.head_length(body, call.header(answers.JSON_LENGTH))
        parse = partial(requests.parse, body, length, self._served.description)
        return (
            parse() if requests.is_quick(body, length) else await self._workers.run(parse, CancelToken(call.deadline))
        )

    async def _explain(self, call: Call) -> Reply:
        request = await self._parsed(call)
        self._explanations.check(request)
        began = time.monotonic()
        token = CancelToken(call.deadline)
        rows = await self._rows(request, token)
        return _reply(await self._explanations.explain(request, rows, time.monotonic() - began, token))

    async def _infer(self, call: Call) -> Reply:
        request = await self._parsed(call)
        try:
            return await self._answered(request, call.deadline, as_files=self._served.description.decodes)
        except RefusedError as error:
            if error.status != UNDECODED:
                raise
        return await self._answered(request, call.deadline, as_files=False)

    async def _answered(self, request: answers.Request, deadline: float, *, as_files: bool) -> Reply:
        """Answer a request. as_files: whether the device may decode. Raises RefusedError, UNDECODED if it refuses."""
        lease = self._pool.lease(len(request))
        began = time.monotonic()
        kind = await self._filled(request, lease, CancelToken(deadline), as_files=as_files)
        decode = time.monotonic() - began
        answer = await self._links.ask(kind, lease, deadline)
        self._metrics.answered(len(request), answer)
        told = {"batch_size": answer.batch, "decode_us": round(1e6 * decode)}
        told |= {"queue_us": round(1e6 * answer.queued), "device_us": round(1e6 * answer.computed)}
        written = partial(self._written, request, lease, told)
        if answers.is_quick_answer(request, self._served.description):
            try:
                return _reply(written())
            finally:
                self._pool.give_back(lease)
        return _reply(await self._beside(written, lease, CancelToken(deadline), is_last=True))

    def _written(self, request: answers.Request, lease: Lease, told: dict[str, int]) -> answers.Body:
        outputs = [np.stack(each) for each in zip(*map(self._memory.outputs, lease.slots), strict=True)]
        served = self._served
        return answers.respond(served.name, request, served.description, outputs, served.labels, told)

    async def _beside(
        self, call: Callable[[], Result], lease: Lease, token: CancelToken, *, is_last: bool = False
    ) -> Result:
        """Run a call that uses slots in a thread. The lease ends with an error, or if it `is_last`."""
        try:
            result = await self._workers.run(call, token, partial(self._pool.give_back, lease))
        except asyncio.CancelledError:
            raise  # the thread may write there yet
        except BaseException:
            self._pool.give_back(lease)
            raise
        if is_last:
            self._pool.give_back(lease)
        return result

    async def _filled(self, request: answers.Request, lease: Lease, token: CancelToken, *, as_files: bool) -> Kind:
        """Put the inputs into slots; the lease ends with an error."""
        give_back = partial(self._pool.give_back, lease)
        if request.rows is None and self._decoding.is_for_device:
            rows = [self._memory.input(slot, self._memory.layout.input) for slot in lease.slots]
            began = time.monotonic()
            try:
                has_files = await self._decoding.put(request.pictures, rows, token, give_back, as_files=as_files)
            except asyncio.CancelledError:
                raise  # the thread may write there yet
            except BaseException:
                give_back()
                raise
            if not has_files:
                self._metrics.decoded(time.monotonic() - began)
            return Kind.PICTURES
        if request.rows is not None:
            fill = partial(self._fill, lease, request.rows)
            if request.rows.nbytes > answers.QUICK_BYTES:
                await self._beside(fill, lease, token)
            else:
                fill()
            return Kind.PIXELS if request.rows.dtype == np.uint8 else Kind.FLOATS
        try:
            self._put_rows(lease, await self._decoded(request, token))
        except BaseException:
            give_back()
            raise
        return Kind.PIXELS

    async def _rows(self, request: answers.Request, token: CancelToken) -> npt.NDArray[Any]:
        """Return the rows as the kernels read them."""
        return await self._decoded(request, token) if request.rows is None else self._ordered(request.rows)

    async def _decoded(self, request: answers.Request, token: CancelToken) -> npt.NDArray[np.uint8]:
        began = time.monotonic()
        try:
            return await self._decoding.rows(request.pictures, token)
        finally:
            self._metrics.decoded(time.monotonic() - began)

    def _ordered(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return numbers or pixels of a request as the kernels read them."""
        if rows.dtype == np.uint8:
            preprocess = self._served.preprocess
            return in_channel_order(rows, preprocess) if preprocess else rows
        return np.moveaxis(rows, -1, 1) if self._served.description.channels_last else rows

    def _fill(self, lease: Lease, rows: npt.NDArray[Any]) -> None:
        self._put_rows(lease, self._ordered(rows))

    def _put_rows(self, lease: Lease, rows: npt.NDArray[Any]) -> None:
        nbytes = rows.dtype.itemsize * rows[0].size
        for slot, row in zip(lease.slots, rows, strict=True):
            self._memory.input(slot, nbytes).view(rows.dtype).reshape(row.shape)[...] = row


def refusal(error: RefusedError) -> Reply:
    """Return the reply to a refused request."""
    reply = _json({"error": str(error)}, error.status)
    if error.retry:
        reply.headers.append(("retry-after", "1"))
    if error.status == 401:
        reply.headers.append(("www-authenticate", "Bearer"))
    return reply


def _lacked(extension: str, rest: list[str], call: Call) -> Reply:
    """Return Triton's reply without an extension. Raises RefusedError (501)."""
    if extension.endswith("sharedmemory") and rest == ["status"]:
        return _only("GET", call) or _json([])  # no region is registered
    raise RefusedError(501, f"this server does not support {_MISSING[extension]}")


def _json(value: dict[str, Any] | list[Any], status: int = 200) -> Reply:
    return Reply(status, json.dumps(value).encode(), [("content-type", "application/json")])


def _reply(body: answers.Body) -> Reply:
    if body.json_length is None:
        return Reply(200, body.data, [("content-type", "application/json")])
    length = (answers.JSON_LENGTH, str(body.json_length))
    return Reply(200, body.data, [("content-type", "application/octet-stream"), length])


def _only(method: str, call: Call) -> Reply | None:
    """Return the refusal of another method; None for the right one."""
    if call.method == method or (call.method, method) == ("HEAD", "GET"):
        return None
    reply = _json({"error": f"{method} is the method of this path"}, 405)
    reply.headers.append(("allow", method))
    return reply
