"""Processes of cards for tests: the CPU's devices have them, too, and one process may have a fault.

`main` is what runs in such a process in place of the package's own; the environment says which fault. Whoever is the
first to come to it has it, and keeps it.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any, Final

import pytest

from vgg16gpu.cluster import cards
from vgg16gpu.cluster.cards import child, process
from vgg16gpu.errors import KernelError
from vgg16gpu.runtime.streaming import StagingBuffers

VARIABLE: Final = "VGG16GPU_TESTED_FAULT"
_PATIENCE: Final = 10.0  # seconds
_SLOW: Final = 0.005  # seconds: else the others may leave the faulty one no batch to fail at


def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on devices of the CPU have processes, where there are several."""
    monkeypatch.setattr(cards, "KINDS", ("cuda", "cpu"))


def plant(monkeypatch: pytest.MonkeyPatch, kind: str, after: int, mark: Path, *, everywhere: bool = False) -> None:
    """Processes that are started from now on have a fault, one of them, or all.

    kind: see `_fail`. after: batches that one of them computes before. mark: a file that is there once one has it.
    """
    monkeypatch.setattr(process, "CHILD", __name__)
    monkeypatch.setenv(VARIABLE, f"{kind}:{after}:{int(everywhere)}:{mark}")


def main() -> None:
    """The process of a card with the fault of the environment."""
    kind, after, everywhere, mark = os.environ[VARIABLE].split(":", 3)
    fault = _Fault(kind, int(after), Path(mark), everywhere=everywhere == "1")
    _break_frames(fault)
    child.main()


class _Fault:
    def __init__(self, kind: str, after: int, mark: Path, *, everywhere: bool) -> None:
        self.kind, self.after, self._mark, self._everywhere = kind, after, mark, everywhere
        self._is_mine = False

    def is_here(self) -> bool:
        """Whether this process has it, or takes it now."""
        if not self._is_mine:
            try:
                self._mark.touch(exist_ok=self._everywhere)
                self._is_mine = True
            except FileExistsError:
                pass
        return self._is_mine

    def wait(self) -> None:
        """Until another process has it."""
        deadline = time.monotonic() + _PATIENCE
        while not self._mark.exists() and time.monotonic() < deadline:
            time.sleep(_SLOW)


def _break_frames(fault: _Fault) -> None:
    receive = StagingBuffers.receive
    received: list[int] = []

    def faulty(self: StagingBuffers, *arguments: Any) -> Any:
        received.append(1)
        if len(received) > fault.after:
            if fault.is_here():
                _fail(fault.kind, self)
            else:
                fault.wait()
        return receive(self, *arguments)

    setattr(StagingBuffers, "receive", faulty)  # noqa: B010 - as above


def _fail(kind: str, frames: StagingBuffers) -> None:
    if kind == "error":
        raise KernelError("an illegal address was met")
    if kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "stray":
        from tests.support.stray_write import break_card

        break_card(frames._device)
