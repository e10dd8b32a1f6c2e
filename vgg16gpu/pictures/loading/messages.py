"""What a process that loads pictures says: lines of JSON, one for each slot that it has filled, and a last one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vgg16gpu.pictures.loading.pace import Seconds
from vgg16gpu.pictures.loading.shared import SharedBufferPool
from vgg16gpu.pictures.slots import Failure, SampleRow, Slot


@dataclass(frozen=True)
class LoaderEnded:
    """A process is done. decoded: pictures; threads: that have begun."""

    decoded: int
    threads: int
    seconds: Seconds

    def line(self) -> bytes:
        """As it is sent."""
        return _line(asdict(self))


def slot_line(slot: Slot) -> bytes:
    """A slot that is full, as it is sent. Names are left out: they are those of the files."""
    rows = [(row.file, *row[3:]) for row in slot.rows]
    failures = [(failure.file, failure.problem) for failure in slot.failures]
    return _line([slot.number, slot.used, slot.needed, rows, failures, slot.ends])


def read_line(line: bytes, ring: SharedBufferPool, files: Sequence[str]) -> Slot | LoaderEnded:
    """What was sent."""
    told: Any = json.loads(line)
    if isinstance(told, dict):
        return LoaderEnded(told["decoded"], told["threads"], Seconds(**told["seconds"]))
    number, used, needed, rows, failures, ends = told
    slot = ring.slot(number)
    slot.used, slot.needed = used, needed
    slot.rows = [SampleRow(file, 0, files[file], *places) for file, *places in rows]
    slot.failures = [Failure(file, 0, files[file], problem) for file, problem in failures]
    slot.ends = [(file, count) for file, count in ends]
    return slot


def _line(content: object) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode() + b"\n"
