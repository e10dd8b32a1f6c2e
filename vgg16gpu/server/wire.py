"""Messages between front ends and device processes: one datagram of a Unix socket (SOCK_SEQPACKET) each."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

Message: TypeAlias = bytes | memoryview

MAX_NBYTES: Final = 1 << 18  # of a message: more than the largest request takes, a batch of 65,535 images

_ASKED: Final = struct.Struct("<BQdd")
_ANSWER: Final = struct.Struct("<HHQdd")


class Kind(IntEnum):
    """What is asked for. HELLO comes first, with the descriptor of the front end's slots."""

    HELLO = 1
    FLOATS = 2
    PIXELS = 3
    STATISTICS = 4


@dataclass(frozen=True)
class Asked:
    """A question. number: comes back with its answer. sent, deadline: of CLOCK_MONOTONIC, which all processes share."""

    kind: Kind
    number: int
    sent: float = 0.0
    deadline: float = 0.0
    slots: Sequence[int] = ()

    def packed(self) -> bytes:
        """As a message."""
        head = _ASKED.pack(self.kind, self.number, self.sent, self.deadline)
        return head + struct.pack(f"<{len(self.slots)}I", *self.slots)

    @classmethod
    def unpacked(cls, message: Message) -> Asked:
        """The reverse."""
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
        """As a message."""
        head = _ANSWER.pack(self.status, self.batch, self.number, self.queued, self.computed)
        return head + self.text.encode(errors="replace")[: MAX_NBYTES // 4]

    @classmethod
    def unpacked(cls, message: Message, device: int = 0) -> Answer:
        """The reverse."""
        status, batch, number, queued, computed = _ANSWER.unpack_from(message)
        text = bytes(message[_ANSWER.size :]).decode(errors="replace")
        return cls(number, status, batch, queued, computed, text, device)
