"""What the processes of a server hold."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.serving.running import Running

STILL: Final = 0.5  # seconds


@dataclass(frozen=True)
class Usage:
    """Of a process. rss: MB."""

    rss: float
    handles: int
    threads: int


def usage(server: Running) -> dict[int, Usage]:
    """Of all processes of a server."""
    tree = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    return {pid: _usage(pid) for pid in (server.process.pid, *map(int, tree))}


def settled(server: Running, seconds: float = 30.0) -> dict[int, Usage]:
    """The same, once all processes have started: the one that explains imports while others answer already."""
    found, end = usage(server), time.monotonic() + seconds
    while time.monotonic() < end:
        before = found
        time.sleep(STILL)
        found = usage(server)
        if found.keys() == before.keys() and all(abs(last.rss - before[pid].rss) < 0.1 for pid, last in found.items()):
            break
    return found


def _usage(pid: int) -> Usage:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    told = {name: value.split()[0] for name, _, value in (line.partition(":") for line in lines) if value.split()}
    return Usage(int(told["VmRSS"]) / 1024, len(list(Path(f"/proc/{pid}/fd").iterdir())), int(told["Threads"]))


def require_flat(before: dict[int, Usage], after: dict[int, Usage], rss: float = 8.0, handles: int = 4) -> None:
    """The same processes, which hold no more than before, but for a few MB and handles."""
    assert set(before) == set(after)
    for pid, first in before.items():
        last = after[pid]
        assert last.rss - first.rss < rss, (first, last)
        assert last.handles - first.handles <= handles, (first, last)
        assert last.threads - first.threads <= handles, (first, last)
