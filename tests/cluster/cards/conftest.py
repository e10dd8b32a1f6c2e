"""Devices of the CPU that have processes, as cards do; what one of them may meet; what must be gone afterwards."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support import faulty_card

from . import card_threads


@pytest.fixture(autouse=True)
def cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several devices of the CPU have a process each."""
    faulty_card.on_cpu(monkeypatch)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[card_threads.CardThread]:
    """Let cards be threads of this process; those that are started."""
    return card_threads.start(monkeypatch)


def descriptors() -> list[str]:
    """What this process has open of pipes, sockets and shared memory."""
    gc.collect()
    found = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.append(str(path.readlink()))
    return sorted(name for name in found if name.startswith(("socket:", "pipe:", "/memfd:", "anon_inode:")))


def children() -> set[int]:
    """Processes that this one has started, ended or not, and not waited for."""
    return set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))


@pytest.fixture
def nothing_left(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No descriptor, thread or process is left of a test."""
    before = descriptors(), threading.active_count(), children()
    yield
    for record in caplog.get_records("call"):  # they hold errors, and these the frames that raised them
        record.msg, record.args = record.getMessage(), ()
    assert (descriptors(), threading.active_count(), children()) == before
