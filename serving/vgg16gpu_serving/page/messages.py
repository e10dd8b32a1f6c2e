"""Messages between front ends and the process that explains: JSON and bytes behind it, over a Unix socket.

One connection is one question and its answer. The socket's own backlog is the queue: who finds it full is refused.
"""

from __future__ import annotations

import json
import select
import socket
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from vgg16gpu.compiler.graph.ops import Shape
from vgg16gpu.io.foreign.documents import parse_json

BACKLOG: Final = 1  # of listen: Linux lets one more wait, so two wait beside the one that is explained

_LENGTHS: Final = struct.Struct("<IQ")  # bytes of JSON, bytes behind it
_STEP: Final = 1 << 20


@dataclass(frozen=True)
class Question:
    """What is wanted of one image, whose numbers follow as bytes in the order of the kernels.

    layer: the name of a value, or None; maps: how many of its channels. class_index: whose score's gradient, or None.
    element: "float32" or "uint8". deadline: of CLOCK_MONOTONIC, which all processes share.
    """

    layer: str | None
    maps: int
    class_index: int | None
    element: str
    shape: Shape
    deadline: float


def socket_beside(path: str) -> str:
    """Return the path of the explaining process' socket, in the folder of the device process' socket."""
    return str(Path(path).with_name("explain"))


def packed(head: Mapping[str, Any], binary: bytes | memoryview) -> bytes:
    """Pack a message into bytes."""
    text = json.dumps(head).encode()
    raw = memoryview(binary).cast("B")
    return b"".join((_LENGTHS.pack(len(text), len(raw)), text, raw))


def packed_question(question: Question, rows: bytes | memoryview) -> bytes:
    """Pack a question and its image into bytes."""
    return packed(asdict(question), rows)


def receive(connection: socket.socket) -> tuple[dict[str, Any], bytes]:
    """Receive an answer. Raises OSError where the other end is gone or slow."""
    text, raw = _LENGTHS.unpack(_exactly(connection, _LENGTHS.size))
    head: dict[str, Any] = parse_json(_exactly(connection, text), "a message")
    return head, _exactly(connection, raw)


def receive_question(connection: socket.socket) -> tuple[Question, bytes]:
    """Receive a `packed_question`. Raises OSError where the other end is gone or slow."""
    head, raw = receive(connection)
    return Question(**{**head, "shape": tuple(head["shape"])}), raw


def has_hung_up(connection: socket.socket) -> bool:
    """Return whether whoever has asked waits no more: nobody sends anything behind a question."""
    readable, _, _ = select.select([connection], [], [], 0)
    return bool(readable)


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = bytearray(count)
    place = memoryview(data)
    while place:
        nbytes = connection.recv_into(place[:_STEP])
        if not nbytes:
            raise ConnectionResetError("the other end is gone")
        place = place[nbytes:]
    return bytes(data)
