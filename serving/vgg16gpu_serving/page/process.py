"""The process that explains: one question after the other, at the lowest priority: serving goes on beside it."""

from __future__ import annotations

import logging
import os
import socket
import time
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from vgg16gpu.errors import Error, InputError, KernelError, ModelError
from vgg16gpu_serving.children import answered, ignore_signals, ignore_warnings
from vgg16gpu_serving.page.messages import Question, has_hung_up, packed, receive_question
from vgg16gpu_serving.refused import RefusedError, too_late
from vgg16gpu_serving.served import Description, EngineChoice

if TYPE_CHECKING:
    from vgg16gpu_serving.page.explainer import Explainer

_IDLE: Final = 120.0  # seconds without a question after which the engines are freed
_PATIENCE: Final = 10.0  # seconds that a front end has to write a question, and to read its answer
_LOWEST: Final = 19  # of the priorities of processes

_log = logging.getLogger(__name__)


def main(choice: EngineChoice, description: Description, most: int, listener: socket.socket, until: Connection) -> None:
    """Answer until the other end of `until` closes. most: bytes of an answer."""
    ignore_signals()
    ignore_warnings()
    os.nice(_LOWEST)
    from vgg16gpu_serving.page.explainer import Explainer  # noqa: PLC0415 - at the lowest priority, too

    explainer = Explainer(choice, description)
    listener.setblocking(False)
    used = time.monotonic()
    while until not in (ready := wait([listener, until], timeout=_IDLE)) or answered(until):
        if listener not in ready:
            if time.monotonic() - used > _IDLE:
                explainer.close()
            continue
        used = time.monotonic()
        with suppress(BlockingIOError):
            connection, _ = listener.accept()
            with connection:
                _serve(explainer, connection, most)
    explainer.close()


def _serve(explainer: Explainer, connection: socket.socket, most: int) -> None:
    """Answer one question. Raises SystemExit where the device failed."""
    connection.settimeout(_PATIENCE)
    failed = False
    with suppress(OSError):  # a front end that is gone
        question, raw = receive_question(connection)
        if has_hung_up(connection):
            return
        try:
            answer = _answered(explainer, question, raw, most)
        except (RefusedError, InputError, ModelError) as error:
            answer = _refusal(getattr(error, "status", 400), error)
        except Error as error:
            _log.error("an explanation failed: %s", error)
            failed = isinstance(error, KernelError)
            explainer.close()
            answer = _refusal(503, error)
        connection.sendall(answer)
    if failed:
        raise SystemExit(1)


def _answered(explainer: Explainer, question: Question, raw: bytes, most: int) -> bytes:
    began = time.monotonic()
    if question.deadline < began:
        raise too_late()
    image = np.frombuffer(raw, question.element).reshape(question.shape)
    outputs: list[dict[str, Any]] = []
    arrays: list[bytes] = []

    def add(name: str, array: np.ndarray[Any, Any], **parameters: Any) -> None:
        data = array.astype("<f4", copy=False).tobytes()
        if sum(map(len, arrays)) + len(data) > most:
            raise RefusedError(413, f"the answer has more than {most:,} bytes; ask for fewer maps")
        told = {"binary_data_size": len(data), **parameters}
        outputs.append({"name": name, "datatype": "FP32", "shape": list(array.shape), "parameters": told})
        arrays.append(data)

    if question.layer is not None:
        maps, channels = explainer.maps(image, question.layer, question.maps)
        add("maps", maps, layer=question.layer, channels=channels)
    if question.class_index is not None:
        gradient = explainer.gradient(image, question.class_index)
        add("gradient", gradient, **{"class": question.class_index})
    head = {"status": 200, "outputs": outputs, "device_us": round(1e6 * (time.monotonic() - began))}
    return packed(head, b"".join(arrays))


def _refusal(status: int, error: Error) -> bytes:
    return packed({"status": status, "error": " ".join(str(error).split())}, b"")
