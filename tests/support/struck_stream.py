"""Streams of answers that a signal strikes at any moment, and that are closed then.

    python -m tests.support.struck_stream TRIALS

Exit code 1, with the stack of every thread, where one does not close.
"""

from __future__ import annotations

import faulthandler
import random
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from unittest import mock

from vgg16gpu.pictures.inputs import InputSpec
from vgg16gpu.pictures.listing import Listing
from vgg16gpu.pictures.loading.loader import Loader
from vgg16gpu.pictures.slots import BufferPool
from vgg16gpu.runtime.answers import stream as stream_module
from vgg16gpu.runtime.answers.rows import FileEvents, Ranking
from vgg16gpu.runtime.answers.stream import AnswerStream

SECONDS = 20.0  # in which a trial is over


class Talker:
    """Who feeds, and tells as much as is heard."""

    engine: Any = None
    decoded = None
    batches = 0

    def __init__(self, tell: Callable[[FileEvents], None]) -> None:
        self._tell = tell

    def feed(self, is_closed: Callable[[], bool]) -> None:
        while not is_closed():
            self._tell(FileEvents([], []))

    def close(self) -> None:
        """Nothing."""


class Seat:
    """See stream.Seat."""

    engine: Any = None

    def feeder(self, _slots: object, _fit: object, tell: Callable[[Any], None]) -> Any:
        return Talker(tell)


class Rows:
    """See rows.AnswerRows: nothing comes of what is told, but `delay` seconds after the first the signal is sent."""

    file = 0
    delay = 0.0

    def __init__(self, *_: object) -> None:
        self._is_first = True

    def add(self, _: FileEvents) -> None:
        """What is told. Threads have begun by then: one whose start is struck may wait for ever, in Python's code."""
        if self._is_first:
            self._is_first = False
            signal.setitimer(signal.ITIMER_REAL, self.delay)


def trial(chance: random.Random) -> None:
    Rows.delay = 0.001 + 0.004 * chance.random()
    loader = Loader(Listing(()), InputSpec((1,)), BufferPool(64, 2), 1)
    loader.start()
    stream = AnswerStream([Seat()], loader, Ranking(1))
    with suppress(KeyboardInterrupt):
        for _ in stream:
            pass
    stream.close()


def main() -> None:
    """All trials."""
    chance = random.Random(1)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    with mock.patch.object(stream_module, "AnswerRows", Rows):
        for _ in range(int(sys.argv[1])):
            faulthandler.dump_traceback_later(SECONDS, exit=True)
            trial(chance)
            faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
