"""Processes that are started with a pipe, and asked over it now and then whether they still go on."""

from __future__ import annotations

import gc
import multiprocessing
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, Final, NoReturn

from vgg16gpu.errors import Error
from vgg16gpu_serving.served import Warm

BEAT: Final = 0.5  # seconds between two questions
_SLOWER: Final = 5  # times the slowest batch of the warm-up that one may take

# Those that end a server. A child has to do with them what it means to before they reach it, so it starts with them
# blocked: a terminal sends them to all processes, also to one that imports yet.
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_SPAWN: Final = multiprocessing.get_context("spawn")


@dataclass(eq=False)
class Child:
    """A process, and the end of a pipe whose closing tells it to end.

    is_up: whether it has said anything; before, it is building, or does not listen yet. patience: seconds that an
    answer may take. silent: for how many the last question waits, None without one.
    """

    process: SpawnProcess
    pipe: Connection
    patience: float
    is_up: bool = False
    silent: float | None = None

    def hear(self) -> Warm | Error | None:
        """Return the child's last message other than a heartbeat, None without one. Does not wait."""
        told: Warm | Error | None = None
        with suppress(EOFError, OSError):
            while self.pipe.poll():
                said: Any = self.pipe.recv()
                self.is_up, self.silent = True, None
                told = said or told
        if isinstance(told, Warm):
            self.patience = max(self.patience, _SLOWER * told.slowest)
        return told

    def ask(self, seconds: float) -> None:
        """Ask, unless a question is out. seconds: since this was called last, as far as they count."""
        if self.silent is not None:
            self.silent += seconds
        elif self.process.is_alive():
            with suppress(OSError):
                self.pipe.send(None)
                self.silent = 0.0

    @property
    def is_stalled(self) -> bool:
        """Return whether it has worked before, and has not answered for longer than it may."""
        return self.is_up and self.silent is not None and self.silent > self.patience


def started(target: Callable[..., None], given: tuple[Any, ...], name: str, patience: float) -> Child:
    """Start a child that runs `target(*given, pipe)`, with SIGNALS blocked."""
    ours, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=target, args=(*given, theirs), name=name, daemon=True)
    resource_tracker.ensure_running()  # who starts it first unblocks signals behind it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    return Child(process, ours, patience)


def answered(pipe: Connection) -> bool:
    """Answer a question of the process that started this one; False where that wants it to end."""
    try:
        pipe.recv()
        pipe.send(None)
    except (EOFError, OSError):
        return False
    return True


def ignore_warnings() -> None:
    """Ignore libraries' warnings of what strangers send, unless the user has asked for warnings (python -W)."""
    if not sys.warnoptions:
        warnings.simplefilter("ignore")


def ignore_signals() -> None:
    """Ignore SIGNALS: the process that started this one ends it."""
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def is_ignored(number: signal.Signals) -> bool:
    """Return whether whoever started this process has had it ignore a signal, as nohup does."""
    return signal.getsignal(number) is signal.SIG_IGN


def failed(pipe: Connection, error: Error) -> NoReturn:
    """End this process, and tell the one that started it why."""
    with suppress(OSError):
        pipe.send(error)
    raise SystemExit(1)


def keep_for_good() -> None:
    """Exempt all present objects from the collector of cycles.

    A full collection looks at every object of a process, 20 ms and more of them, while requests wait; and requests
    under way bring one about every few seconds.
    """
    gc.collect()
    gc.freeze()
