"""How long the threads take that load pictures, and whether one of them is enough."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

# Seconds. A thread that has decoded waits until another gives the interpreter away, 5 ms by default: more than decoding
# takes. On 16 cores 6,400 pictures took a third longer with that.
SWITCHING: Final = 2e-5
PICTURES: Final = 32  # by which it is told
SLOW: Final = 5e-4  # seconds a picture


@dataclass
class Seconds:
    """Where the threads' time went, of all together."""

    reading: float = 0.0
    decoding: float = 0.0
    waiting: float = 0.0  # for a slot, or for answers to older files

    def add(self, other: Seconds) -> None:
        """Add other seconds, kind by kind."""
        self.reading += other.reading
        self.decoding += other.decoding
        self.waiting += other.waiting


class Pace:
    """Of a thread that loads alone, and asks. Times are seconds.

    cpu_clock: what the thread has had of the processor; from its first question on.
    """

    def __init__(self, cpu_clock: Callable[[], float] = time.thread_time) -> None:
        self._cpu_clock = cpu_clock
        self._pictures = self._late = 0
        self._cpu: float | None = None  # when these pictures began

    def is_slow(self, wall: float, *, is_waited_for: bool) -> bool:
        """Return whether the last `PICTURES` took long; for one more, which took so long. Between two looks: no.

        What they took of the processor always counts: the thread decodes what the device does not. Where somebody waits
        for pictures, so does how many of them took long by the clock: the thread waits for a disk. A single one that
        took very long does not: then somebody else had the interpreter, and more threads would only make that worse.
        """
        if self._cpu is None:
            self._cpu = self._cpu_clock()
        self._pictures += 1
        self._late += wall > SLOW
        if self._pictures < PICTURES:
            return False
        begun, self._cpu = self._cpu, self._cpu_clock()
        late, self._pictures, self._late = self._late, 0, 0
        return self._cpu - begun > PICTURES * SLOW or (is_waited_for and 2 * late > PICTURES)
