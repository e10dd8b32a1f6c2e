"""What each path answers. It knows no HTTP server: `front_end.py` calls `App.handle`."""

from __future__ import annotations

import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

import vgg16gpu
from vgg16gpu.pictures.images import in_channel_order
from vgg16gpu.server import openapi, protocol
from vgg16gpu.server.device.statistics import added_up
from vgg16gpu.server.link import Links
from vgg16gpu.server.metrics import Metrics
from vgg16gpu.server.page.document import document
from vgg16gpu.server.page.explanations import Explanations
from vgg16gpu.server.pictures import DECODERS, DevicePictures, decoded
from vgg16gpu.server.refused import RefusedError, no_device
from vgg16gpu.server.served import Served
from vgg16gpu.server.slots import Lease, SlotMemory, SlotPool
from vgg16gpu.server.wire import UNDECODED, Kind
from vgg16gpu.server.workers import Workers

_TYPES: Final = ("application/json", "application/octet-stream", "application/vnd.sagemaker-triton.binary+json")
_EXTENSIONS: Final = ["binary_tensor_data", "classification", "model_configuration", "statistics", "explain"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Call:
    """A request of HTTP: names of headers in lower case. read: gives the body; raises RefusedError."""

    method: str
    path: str
    header: Callable[[str], str | None]
    read: Callable[[], Awaitable[bytes]]


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
        self._decoders = Workers(DECODERS, "vgg16gpu-decode")
        self._pictures = DevicePictures(served) if served.description.room_nbytes else None

    async def handle(self, call: Call) -> Reply:
        """The answer, also to what is wrong; raises nothing."""
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
                return _only("GET", call) or _json(
                    {"name": "vgg16gpu", "version": vgg16gpu.__version__, "extensions": _EXTENSIONS}
                )
            case ["v2", "openapi.json"]:
                return _only("GET", call) or _json(openapi.document(self._served, vgg16gpu.__version__))
            case ["v2", "repository", "index"]:
                known = [{"name": self._served.name, "version": "1", "state": "READY" if self._links.is_ready else ""}]
                return _only("POST", call) or _json(known)
            case ["metrics"]:
                text, kind = self._metrics.exposed()
                return _only("GET", call) or Reply(200, text, [("content-type", kind)])
            case ["v2", "models", "stats"]:
                return _only("GET", call) or await self._statistics()
            case ["v2", "models", name, "versions", version, *rest] if version == "1":
                return await self._model(name, rest, call)
            case ["v2", "models", name, *rest] if rest[:1] != ["versions"]:
                return await self._model(name, rest, call)
        raise RefusedError(404, "no such path; see /v2, /v2/models/NAME and /v2/models/NAME/infer")

    async def _model(self, name: str, rest: list[str], call: Call) -> Reply:
        if name != self._served.name:
            raise RefusedError(404, f"no such model: this server has '{self._served.name}'")
        match rest:
            case []:
                return _only("GET", call) or _json(protocol.metadata(name, self._served.description))
            case ["ready"]:
                return _only("GET", call) or self._ready()
            case ["config"]:
                return _only("GET", call) or _json(protocol.configuration(name, self._served.description))
            case ["stats"]:
                return _only("GET", call) or await self._statistics()
            case ["infer"]:
                return _only("POST", call) or await self._infer(call)
            case ["explain"] if call.method in ("GET", "HEAD"):
                return _json(self._explanations.told())
            case ["explain"]:
                return _only("POST", call) or await self._explain(call)
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

    async def _statistics(self) -> Reply:
        answers = await self._links.ask_each(Kind.STATISTICS, self._served.bounds.deadline)
        devices = {str(answer.device): json.loads(answer.text) for answer in answers}
        told = {"name": self._served.name, "version": "1", **added_up(devices.values()), "devices": devices}
        return _json({"model_stats": [told]})

    async def _parsed(self, call: Call) -> protocol.Request:
        _check_form(call)
        if not self._links.is_ready:
            raise no_device()
        return protocol.parse(await call.read(), call.header(protocol.JSON_LENGTH), self._served.description)

    async def _explain(self, call: Call) -> Reply:
        request = await self._parsed(call)
        self._explanations.check(request)
        began = time.monotonic()
        rows = await self._rows(request)
        return _reply(await self._explanations.explain(request, rows, time.monotonic() - began))

    async def _infer(self, call: Call) -> Reply:
        request = await self._parsed(call)
        try:
            return await self._answered(request, as_files=self._served.description.decodes)
        except RefusedError as error:
            if error.status != UNDECODED:
                raise
        return await self._answered(request, as_files=False)

    async def _answered(self, request: protocol.Request, *, as_files: bool) -> Reply:
        """as_files: whether the device may decode pictures. Raises RefusedError; of status UNDECODED if it refuses."""
        lease = self._pool.lease(len(request))
        try:
            began = time.monotonic()
            if request.rows is None and self._pictures:
                kind = await self._put(self._pictures, lease, request, as_files=as_files)
            else:
                kind = self._fill(lease, await self._rows(request))
            decode = time.monotonic() - began
        except BaseException:
            self._pool.give_back(lease)
            raise
        answer = await self._links.ask(kind, lease, self._served.bounds.deadline)
        try:
            outputs = [np.stack(each) for each in zip(*map(self._memory.outputs, lease.slots), strict=True)]
        finally:
            self._pool.give_back(lease)
        self._metrics.answered(len(request), answer)
        told = {"batch_size": answer.batch, "decode_us": round(1e6 * decode)}
        told |= {"queue_us": round(1e6 * answer.queued), "device_us": round(1e6 * answer.computed)}
        served = self._served
        return _reply(protocol.respond(served.name, request, served.description, outputs, served.labels, told))

    async def _rows(self, request: protocol.Request) -> npt.NDArray[Any]:
        """As the kernels read them."""
        if request.rows is None:
            began = time.monotonic()
            try:
                return await self._decoders.run(partial(decoded, self._served, request.pictures))
            finally:
                self._metrics.decoded(time.monotonic() - began)
        if request.rows.dtype == np.uint8:
            preprocess = self._served.preprocess
            return in_channel_order(request.rows, preprocess) if preprocess else request.rows
        return np.moveaxis(request.rows, -1, 1) if self._served.description.channels_last else request.rows

    async def _put(self, pictures: DevicePictures, lease: Lease, request: protocol.Request, *, as_files: bool) -> Kind:
        """Pictures into slots, by a thread; whoever gives up meanwhile waits until it writes there no more."""
        rows = [self._memory.input(slot, self._memory.layout.input) for slot in lease.slots]
        began = time.monotonic()
        has_files = await self._decoders.run(partial(pictures.put, request.pictures, rows, as_files=as_files))
        if not has_files:
            self._metrics.decoded(time.monotonic() - began)
        return Kind.PICTURES

    def _fill(self, lease: Lease, rows: npt.NDArray[Any]) -> Kind:
        nbytes = rows.dtype.itemsize * rows[0].size
        for slot, row in zip(lease.slots, rows, strict=True):
            self._memory.input(slot, nbytes).view(rows.dtype).reshape(row.shape)[...] = row
        return Kind.PIXELS if rows.dtype == np.uint8 else Kind.FLOATS


def refusal(error: RefusedError) -> Reply:
    """What is said of a request that is refused."""
    reply = _json({"error": str(error)}, error.status)
    if error.retry:
        reply.headers.append(("retry-after", "1"))
    if error.status == 401:
        reply.headers.append(("www-authenticate", "Bearer"))
    return reply


def _json(value: dict[str, Any] | list[Any], status: int = 200) -> Reply:
    return Reply(status, json.dumps(value).encode(), [("content-type", "application/json")])


def _reply(body: protocol.Body) -> Reply:
    if body.json_length is None:
        return Reply(200, body.data, [("content-type", "application/json")])
    length = (protocol.JSON_LENGTH, str(body.json_length))
    return Reply(200, body.data, [("content-type", "application/octet-stream"), length])


def _only(method: str, call: Call) -> Reply | None:
    """The refusal of another method; None for the right one."""
    if call.method == method or (call.method, method) == ("HEAD", "GET"):
        return None
    reply = _json({"error": f"{method} is the method of this path"}, 405)
    reply.headers.append(("allow", method))
    return reply


def _check_form(call: Call) -> None:
    """Raise RefusedError (415) for a body that is packed, or is no JSON with or without binary tensors."""
    packed = call.header("content-encoding")
    if packed and packed.lower() != "identity":
        raise RefusedError(415, "Content-Encoding is not taken; send the body as it is")
    kind = call.header("content-type")
    if kind and kind.partition(";")[0].strip().lower() not in _TYPES:
        raise RefusedError(415, f"the Content-Type of a request is {_TYPES[0]} or {_TYPES[1]}")
