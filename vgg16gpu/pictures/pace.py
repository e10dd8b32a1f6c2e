"""How long the threads take that load pictures, and whether one of them is enough."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PICTURES: Final = 32  # by which it is told
SLOW: Final = 5e-4  # seconds a picture, on average: it waits for a disk, or decodes what the device does not


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
        self._pictures, self._seconds = 0, 0.0

    def is_slow(self, seconds: float) -> bool:
        """Whether the last `PICTURES` took long; `seconds`: of one more. Between two looks it says no."""
        self._pictures, self._seconds = self._pictures + 1, self._seconds + seconds
        if self._pictures < PICTURES:
            return False
        taken, self._pictures, self._seconds = self._seconds, 0, 0.0
        return taken > PICTURES * SLOW
