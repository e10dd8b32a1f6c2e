"""Ask a server once, as a client of the Open Inference Protocol (KServe v2) does, with the standard library alone."""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

_TIMEOUT: Final = 30.0  # seconds of a request
_PATIENCE: Final = 60.0  # seconds from a listening server to one that is ready
_OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy does not know this machine


class AnswerError(Exception):
    """A server that does not answer, or answers wrongly; the message says what it was asked."""


def ask_for_a_digit(address: str, picture: Path) -> int:
    """Return the class that the server at `address` (http://HOST:PORT) finds in a picture, once it is ready.

    Raises AnswerError where a request is not answered with 200, or the server is not ready within a minute.
    """
    _wait_until_ready(address)
    (model,) = _ask(f"{address}/v2/repository/index", {})
    url = f"{address}/v2/models/{model['name']}"
    (described,) = _ask(url)["inputs"]
    data = base64.b64encode(picture.read_bytes()).decode()
    tensor = {"name": described["name"], "datatype": "BYTES", "shape": [1], "data": [data]}
    scores = _ask(f"{url}/infer", {"inputs": [tensor]})["outputs"][0]["data"]
    return int(max(range(len(scores)), key=scores.__getitem__))


def _wait_until_ready(address: str) -> None:
    last = time.monotonic() + _PATIENCE
    while True:
        try:
            _request(f"{address}/v2/health/ready")
            return
        except AnswerError:
            if time.monotonic() > last:
                raise
            time.sleep(0.1)


def _ask(url: str, message: dict[str, Any] | None = None) -> Any:
    """Return the JSON that a URL answers to a GET, or to a POST of `message`."""
    return json.loads(_request(url, message))


def _request(url: str, message: dict[str, Any] | None = None) -> bytes:
    body = None if message is None else json.dumps(message).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with _OPENER.open(request, timeout=_TIMEOUT) as reply:
            content: bytes = reply.read()
            return content
    except urllib.error.HTTPError as error:
        raise AnswerError(f"{url} answers {error.code}: {error.read()[:200]!r}") from error
    except OSError as error:
        raise AnswerError(f"{url} gives no answer: {error}") from error
