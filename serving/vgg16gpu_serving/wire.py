"""Messages between front ends and device processes: one datagram of a Unix socket (SOCK_SEQPACKET) each."""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

Message: TypeAlias = bytes | memoryview

JOINED_NBYTES: Final = 1 << 15  # of several answers in a message
CANCELLED: Final = 2  # the status of an answer that nobody waits for
UNDECODED: Final = 1  # the status of an answer: one of the files is none for the device, the front end may decode it
MAX_NBYTES: Final = 1 << 18  # of a message: more than the largest request takes, a batch of 65,535 images

_ASKED: Final = struct.Struct("<BQdd")
_ANSWER: Final = struct.Struct("<HHIQdd")


class Kind(IntEnum):
    """What is asked for, of numbers or pictures in slots. HELLO comes first, with the descriptor of these.

    CANCEL has the number of a question that nobody waits for any more, and no answer of its own.
    """

    HELLO = 1
    FLOATS = 2
    PIXELS = 3
    STATISTICS = 4
    PICTURES = 5
    CANCEL = 6


@dataclass(frozen=True)
class Asked:
    """A question. number: comes back with its answer. sent, deadline: of CLOCK_MONOTONIC, which all processes share."""

    kind: Kind
    number: int
    sent: float = 0.0
    deadline: float = 0.0
    slots: Sequence[int] = ()

    def packed(self) -> bytes:
        """Pack the request into a message."""
        head = _ASKED.pack(self.kind, self.number, self.sent, self.deadline)
        return head + struct.pack(f"<{len(self.slots)}I", *self.slots)

    @classmethod
    def unpacked(cls, message: Message) -> Asked:
        """Parse a request."""
        kind, number, sent, deadline = _ASKED.unpack_from(message)
        slots = struct.unpack_from(f"<{(len(message) - _ASKED.size) // 4}I", message, _ASKED.size)
        return cls(Kind(kind), number, sent, deadline, slots)


@dataclass(frozen=True)
class Answer:
    """status: as of HTTP. batch: the batch size that was run. queued, computed: seconds. text: an error, or JSON.

    device: the number of who answers; the front end knows it by the socket.
    """

    number: int
    status: int = 200
    batch: int = 0
    queued: float = 0.0
    computed: float = 0.0
    text: str = ""
    device: int = 0

    def packed(self) -> bytes:
        """Pack the answer into a message."""
        text = self.text.encode(errors="replace")[: MAX_NBYTES // 4]
        return _ANSWER.pack(self.status, self.batch, len(text), self.number, self.queued, self.computed) + text

    @classmethod
    def unpacked(cls, message: Message, device: int = 0) -> list[Answer]:
        """Parse concatenated answers."""
        found, place = [], 0
        while place < len(message):
            status, batch, length, number, queued, computed = _ANSWER.unpack_from(message, place)
            place += _ANSWER.size
            text = bytes(message[place : place + length]).decode(errors="replace") if length else ""
            found.append(cls(number, status, batch, queued, computed, text, device))
            place += length
        return found


class Outbox:
    """Messages on their way into a socket that does not block: they wait here while the other side does not read."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, message: bytes) -> None:
        """Append a message."""
        self._waiting.append(message)

    def send(self, into: socket.socket, joined: int = 1) -> bool:
        """Send what there is room for, several in a datagram while they have at most `joined` bytes together.

        Whether all is sent. Raises OSError where nobody reads any more.
        """
        while self._waiting:
            taken = [self._waiting.popleft()]
            nbytes = len(taken[0])
            while self._waiting and (nbytes := nbytes + len(self._waiting[0])) <= joined:
                taken.append(self._waiting.popleft())
            try:
                into.send(b"".join(taken))
            except BlockingIOError:
                self._waiting.extendleft(reversed(taken))
                return False
        return True
