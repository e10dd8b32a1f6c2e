"""A front end's side of explanations: a request of the protocol as a question, the answer as one of the protocol."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from contextlib import suppress
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vgg16gpu.errors import InputError
from vgg16gpu.io.foreign.numbers import whole_value
from vgg16gpu.io.shown import shown
from vgg16gpu_serving.page.messages import BACKLOG, Question, packed_question, receive, socket_beside
from vgg16gpu_serving.protocol.answers import Body, Request
from vgg16gpu_serving.refused import RefusedError, too_late
from vgg16gpu_serving.served import Explainable, Served
from vgg16gpu_serving.workers import CancelToken, Workers

MAPS: Final = 32  # feature maps of an answer where the request does not say
_MOST: Final = (1 << 31) - 1  # of what a request counts

_KNOWN: Final = ("layer", "maps", "class", "binary_data_output")


class Explanations:
    """Asks the process that explains. path: of the device process' socket."""

    def __init__(self, path: str, served: Served) -> None:
        self._path, self._served = socket_beside(path), served
        self._workers = Workers(
            BACKLOG + 2, "vgg16gpu-explain"
        )  # one for the question that is answered, and each that waits

    def told(self) -> dict[str, Any]:
        """Return the layers and the number of classes to ask for. Raises RefusedError (404) where there are none."""
        known = self._known()
        description = self._served.description
        return {
            "layers": [{"name": layer.name, "shape": list(layer.shape)} for layer in known.layers],
            "classes": known.classes,
            "probabilities": known.are_probabilities,
            "labels": list(self._served.labels),
            "device": description.device,
            "channels_last": description.channels_last,
            "pixels": list(description.pixels) if description.pixels else None,
        }

    def check(self, request: Request) -> None:
        """Raise RefusedError (400) for a request that cannot be explained."""
        known, asked = self._known(), request.parameters
        if unknown := [name for name in asked if name not in _KNOWN]:
            raise _bad(f"parameter {shown(unknown[0])}: an explanation takes {', '.join(_KNOWN)}")
        if len(request) != 1:
            raise _bad(f"{len(request)} images: explanations are of one each")
        layer, maps, index = asked.get("layer"), asked.get("maps", MAPS), asked.get("class")
        if layer is None and index is None:
            raise _bad("nothing is asked for; give the parameter layer, class or both")
        if layer is not None and layer not in [each.name for each in known.layers]:
            raise _bad(f"layer {shown(layer)}: GET /v2/models/{self._served.name}/explain has the list")
        try:
            whole_value(maps, "maps", 1, _MOST)
            if index is not None:
                whole_value(index, "class", 0, _MOST)
        except InputError as error:
            raise _bad(str(error)) from error
        if index is not None and index >= known.classes:
            raise _bad(f"class {index}: this model has {known.classes}, counted from 0")
        if request.rows is not None and not np.isfinite(request.rows).all():
            raise _bad("the input holds NaN or Inf; clean the data")

    async def explain(self, request: Request, rows: npt.NDArray[Any], decode: float, token: CancelToken) -> Body:
        """Answer a question. rows: the image as the kernels read it. decode: seconds. Raises RefusedError."""
        asked, began = request.parameters, time.monotonic()
        question = Question(
            asked.get("layer"),
            asked.get("maps", MAPS),
            asked.get("class"),
            rows.dtype.name,
            rows.shape,
            token.deadline,
        )
        connection = self._connected()
        try:
            return await self._workers.run(
                lambda: self._answer(connection, question, request, rows, decode, began), token, connection.close
            )
        except asyncio.CancelledError:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # the thread that waits wakes up, and closes it
            raise
        except BaseException:
            connection.close()
            raise

    def _connected(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.setblocking(False)
        try:
            connection.connect(self._path)  # a Unix socket connects at once, or its queue is full
        except BlockingIOError as error:
            connection.close()
            raise RefusedError(429, "others are being explained; try again in a moment", retry=True) from error
        except OSError as error:
            connection.close()
            raise _gone() from error
        return connection

    def _answer(
        self,
        connection: socket.socket,
        question: Question,
        request: Request,
        rows: npt.NDArray[Any],
        decode: float,
        began: float,
    ) -> Body:
        """Ask, and wait: the answer may be as long as a body."""
        with connection:
            connection.settimeout(max(0.001, question.deadline - time.monotonic()))
            try:
                connection.sendall(packed_question(question, np.ascontiguousarray(rows).data))
                head, raw = receive(connection)
            except TimeoutError as error:
                raise too_late() from error
            except OSError as error:
                raise _gone() from error
        if head["status"] != 200:
            raise RefusedError(head["status"], head["error"], retry=head["status"] == 503)
        waited = round(1e6 * (time.monotonic() - began)) - head["device_us"]
        times = {"decode_us": round(1e6 * decode), "queue_us": max(0, waited), "device_us": head["device_us"]}
        return self._body(request, rows, head["outputs"], raw, times)

    def _known(self) -> Explainable:
        if self._served.explainable is None:
            raise RefusedError(404, "this server was started with --no-page: it explains nothing")
        return self._served.explainable

    def _body(
        self, request: Request, rows: npt.NDArray[Any], outputs: list[Any], raw: bytes, times: dict[str, int]
    ) -> Body:
        """Return the body, with the fitted image behind it if there is one."""
        preprocess, pixels = self._served.preprocess, b""
        if rows.dtype == np.uint8:
            rgb = rows[..., ::-1] if preprocess and preprocess.channel_order == "bgr" else rows
            pixels = rgb.tobytes()
            size = {"binary_data_size": len(pixels)}
            outputs = [*outputs, {"name": "pixels", "datatype": "UINT8", "shape": list(rgb.shape), "parameters": size}]
        message: dict[str, Any] = {"model_name": self._served.name, "model_version": "1", "outputs": outputs}
        message["parameters"] = times
        if request.id is not None:
            message["id"] = request.id
        head = json.dumps(message).encode()
        return Body(b"".join((head, raw, pixels)), len(head))


def _bad(message: str) -> RefusedError:
    return RefusedError(400, message)


def _gone() -> RefusedError:
    return RefusedError(503, "the process that explains is starting; try again in a moment", retry=True)
