"""How long the threads take that load pictures, and whether one of them is enough."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PICTURES: Final = 32  # by which it is told
SLOW: Final = 5e-4  # seconds a picture, on average


@dataclass
class Seconds:
    """Where the threads' time went, of all together."""

    reading: float = 0.0
    decoding: float = 0.0
    waiting: float = 0.0  # for a slot, or for answers to older files

    def add(self, other: Seconds) -> None:
        """More of each."""
        self.reading += other.reading
        self.decoding += other.decoding
        self.waiting += other.waiting


class Pace:
    """Of a thread that loads alone. One thread at a time."""

    def __init__(self) -> None:
        self._pictures, self._wall, self._cpu = 0, 0.0, 0.0

    def is_slow(self, wall: float, cpu: float, *, is_waited_for: bool) -> bool:
        """Whether the last `PICTURES` took long; for one more, which took so many seconds. Between two looks: no.

        wall: of the clock. Where nobody waits for pictures these may have gone by for want of the interpreter, which
        more threads would only make worse; so they count where somebody does: the thread waits for a disk. cpu: of the
        processor. They always count: the thread decodes what the device does not.
        """
        self._pictures, self._wall, self._cpu = self._pictures + 1, self._wall + wall, self._cpu + cpu
        if self._pictures < PICTURES:
            return False
        taken = self._wall if is_waited_for else self._cpu
        self._pictures, self._wall, self._cpu = 0, 0.0, 0.0
        return taken > PICTURES * SLOW
