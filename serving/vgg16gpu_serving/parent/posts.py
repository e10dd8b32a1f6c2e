"""Places of a server that a process is to fill: it is started again when it dies, with growing pauses."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from vgg16gpu_serving.children import Child

_FIRST: Final = 0.5  # seconds of the first pause: a process that dies at once must not take all time
_LONGEST: Final = 60.0  # seconds of a pause, and how long a process lives whose end does not lengthen the next one


@dataclass(eq=False)
class Post:
    """A place. child: None during a pause, which ends at `due`, of CLOCK_MONOTONIC.

    may_start: tells in a line why the process must not be started again; None where it may. told: what has been said of
    the place last, so that it is not said twice.
    """

    name: str
    start: Callable[[], Child]
    may_start: Callable[[], str | None]
    child: Child | None = None
    due: float = 0.0
    told: str = ""
    _pause: float = _FIRST
    _began: float = 0.0

    def fill(self) -> Child:
        """Start its process."""
        self._began = time.monotonic()
        self.child = self.start()
        return self.child

    def leave(self) -> None:
        """Begin a pause, twice as long as the one before unless the process had lived for long."""
        if self.child:
            self.child.pipe.close()
            self.child = None
            if time.monotonic() - self._began > _LONGEST:
                self._pause = _FIRST
        self.due = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, _LONGEST)

    def is_news(self, words: str) -> bool:
        """Return whether this has not been said of the place last; from now on it has."""
        is_news, self.told = words != self.told, words
        return is_news
