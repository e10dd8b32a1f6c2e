"""SIGINT, SIGTERM and SIGHUP as exceptions that wait where something must be whole."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Inside of `with` the signals do what they did before, but for what is inside of `held`: there they wait.

    Elsewhere than in the main thread, where no signal arrives, it does nothing.
    """

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}
        self._is_held = False
        self._waiting: tuple[int, FrameType | None] | None = None

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._take) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    @contextmanager
    def held(self) -> Iterator[None]:
        """Finish the block whatever arrives; then let that happen."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
            if self._waiting:
                waiting, self._waiting = self._waiting, None
                self._take(*waiting)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self._is_held:
            self._waiting = number, frame
            return
        before = self._before.get(signal.Signals(number))
        if callable(before):
            before(number, frame)
        elif before == signal.SIG_DFL:
            raise KeyboardInterrupt
