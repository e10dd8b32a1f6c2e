"""A front end's side of explanations: a request of the protocol as a question, the answer as one of the protocol."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vgg16gpu.io.shown import shown
from vgg16gpu.server.page.messages import Question, packed_question, read, socket_beside
from vgg16gpu.server.protocol import Body, Request
from vgg16gpu.server.refused import RefusedError, too_late
from vgg16gpu.server.served import Explainable, Served

MAPS: Final = 32  # feature maps of an answer where the request does not say

_KNOWN: Final = ("layer", "maps", "class", "binary_data_output")


class Explanations:
    """Asks the process that explains. path: of the device process' socket."""

    def __init__(self, path: str, served: Served) -> None:
        self._path, self._served = socket_beside(path), served

    def told(self) -> dict[str, Any]:
        """Which layers and how many classes can be asked for. Raises RefusedError (404) where nothing can."""
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
        if not _is_whole(maps) or maps < 1:
            raise _bad(f"maps {shown(maps)}: give a whole number, 1 or more")
        if index is not None and not (_is_whole(index) and 0 <= index < known.classes):
            raise _bad(f"class {shown(index)}: this model has {known.classes}, counted from 0")

    async def explain(self, request: Request, rows: npt.NDArray[Any], decode: float) -> Body:
        """The answer. rows: the image as the kernels read it. decode: seconds. Raises RefusedError."""
        asked, began = request.parameters, time.monotonic()
        seconds = self._served.bounds.deadline
        question = Question(
            asked.get("layer"),
            asked.get("maps", MAPS),
            asked.get("class"),
            rows.dtype.name,
            rows.shape,
            began + seconds,
        )
        try:
            async with asyncio.timeout(seconds):
                head, raw = await self._ask(packed_question(question, np.ascontiguousarray(rows).data))
        except TimeoutError as error:
            raise too_late() from error
        if head["status"] != 200:
            raise RefusedError(head["status"], head["error"], retry=head["status"] == 503)
        waited = round(1e6 * (time.monotonic() - began)) - head["device_us"]
        times = {"decode_us": round(1e6 * decode), "queue_us": max(0, waited), "device_us": head["device_us"]}
        return self._body(request, rows, head["outputs"], raw, times)

    async def _ask(self, question: bytes) -> tuple[dict[str, Any], bytes]:
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
        reader, writer = await asyncio.open_unix_connection(sock=connection)
        try:
            writer.write(question)
            await writer.drain()
            return await read(reader)
        except (OSError, asyncio.IncompleteReadError) as error:
            raise _gone() from error
        finally:
            writer.close()

    def _known(self) -> Explainable:
        if self._served.explainable is None:
            raise RefusedError(404, "this server was started with --no-page: it explains nothing")
        return self._served.explainable

    def _body(
        self, request: Request, rows: npt.NDArray[Any], outputs: list[Any], raw: bytes, times: dict[str, int]
    ) -> Body:
        """With the image as it was fitted behind, where it is one."""
        preprocess = self._served.preprocess
        if rows.dtype == np.uint8:
            rgb = rows[..., ::-1] if preprocess and preprocess.channel_order == "bgr" else rows
            raw += (data := rgb.tobytes())
            size = {"binary_data_size": len(data)}
            outputs = [*outputs, {"name": "pixels", "datatype": "UINT8", "shape": list(rgb.shape), "parameters": size}]
        message: dict[str, Any] = {"model_name": self._served.name, "model_version": "1", "outputs": outputs}
        message["parameters"] = times
        if request.id is not None:
            message["id"] = request.id
        head = json.dumps(message).encode()
        return Body(head + raw, len(head))


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _bad(message: str) -> RefusedError:
    return RefusedError(400, message)


def _gone() -> RefusedError:
    return RefusedError(503, "the process that explains is starting; try again in a moment", retry=True)
