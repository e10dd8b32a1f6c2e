"""Card processes that are threads of this one: the package's own `Child`, started and ended in milliseconds."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from types import SimpleNamespace

import pytest

from vgg16gpu.cluster.cards import child, process
from vgg16gpu.cluster.cards.messages import BUILDING, End
from vgg16gpu.cluster.cards.process import Message
from vgg16gpu.runtime.engine import Engine
from vgg16gpu.runtime.streaming import StagingBuffers

PATIENCE = 10.0  # seconds


class CardThread:
    """Stands for the `Popen` of a card's process: both ends of its pipe are in this process."""

    def __init__(self, _module: str, descriptors: Sequence[int]) -> None:
        self.pid, self.is_killed, self.stands_still = os.getpid(), False, False
        self._pipe = Connection(os.dup(descriptors[0]))
        self._child = child.CardChild(self._pipe)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def engine(self) -> Engine:
        """Return the engine that it has built."""
        card = self._child._card
        assert card is not None
        return card.engine

    def _run(self) -> None:
        self._child.run()  # the exit that ends it does nothing here: its threads are ended one by one
        while self.stands_still and not self.is_killed:
            time.sleep(0.001)
        for thread in threading.enumerate():
            if thread.name == "vgg16gpu-card-build":
                thread.join(PATIENCE)
        over = time.monotonic() + PATIENCE
        while lines := {number: line for number, line in [*self._child._lines.items()] if number != BUILDING}:
            for line in lines.values():
                line.put(Message(End(is_left=True)))
            assert time.monotonic() < over
            time.sleep(0.001)
        if self._child._card:
            self.engine.close()
            self._child._card = None  # and the memory that it shares
        self._pipe.close()

    def kill(self) -> None:
        """End it as SIGKILL ends a process: nothing more is read or written."""
        self.is_killed = True
        with suppress(OSError), socket.fromfd(self._pipe.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as end:
            end.shutdown(socket.SHUT_RDWR)

    def wait(self, timeout: float | None = None) -> int:
        """Return how it ended. Raises TimeoutExpired."""
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise subprocess.TimeoutExpired("a card", timeout or 0.0)
        return -signal.SIGKILL if self.is_killed else 0


def start(monkeypatch: pytest.MonkeyPatch) -> list[CardThread]:
    """Let cards be threads from now on. Return those that are started, in their order."""
    made: list[CardThread] = []

    def start_child(module: str, descriptors: Sequence[int]) -> CardThread:
        made.append(CardThread(module, descriptors))
        return made[-1]

    monkeypatch.setattr(process, "start_child", start_child)
    monkeypatch.setattr(child, "os", SimpleNamespace(getppid=os.getpid, _exit=lambda _: None))
    return made


def plant(
    monkeypatch: pytest.MonkeyPatch,
    broken: CardThread,
    after: int,
    fail: Callable[[], None],
    patience: float = PATIENCE,
) -> None:
    """Have `fail` called where a card takes the results of its batch `after` (from 0) or of a later one.

    patience: seconds that other cards wait for that.
    """
    receive, received, device = StagingBuffers.receive, list[int](), broken.engine.device
    begun = threading.Event()

    def faulty(self: StagingBuffers, *arguments: object) -> object:
        if self._device is device:
            received.append(1)
            if len(received) > after:
                begun.set()
                fail()
        else:
            begun.wait(patience)  # else the others may leave it no batch to fail at
        return receive(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(StagingBuffers, "receive", faulty)
