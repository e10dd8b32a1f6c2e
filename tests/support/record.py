"""pytest plugin behind `--record FILE`: what ran, how it ended, and where, as JSON."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from vgg16gpu.bench.measure.environment import environment
from vgg16gpu.bench.records.record import write
from vgg16gpu.devices import open_device

SLOWEST = 5
LINES = 200  # of what a failure says, its last: the stacks of many threads


class Recorder:
    """Counts outcomes during a session and writes them at its end; and at each failure, as the end may not come."""

    def __init__(self, path: Path, markers: str) -> None:
        self.path = path
        self.markers = markers
        self.started = time.time()
        self.outcomes: Counter[str] = Counter()
        self.seconds: dict[str, float] = {}
        self.failed: dict[str, list[str]] = {}  # what each of them says
        self.under_way: set[str] = set()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.under_way.add(nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.under_way.discard(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.outcome] += 1
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            self.failed[report.nodeid] = report.longreprtext.splitlines()[-LINES:]
            write(self.path, {"exit_status": None, **self._so_far(), "under_way": sorted(self.under_way)})

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        device, choice = open_device("cuda" if "gpu" in self.markers and "not gpu" not in self.markers else "auto")
        content = {
            "exit_status": int(exitstatus),
            **self._so_far(),
            "device_choice": choice,
            "environment": environment(device),
        }
        device.close()
        write(self.path, content)

    def _so_far(self) -> dict[str, Any]:
        slowest = sorted(self.seconds, key=self.seconds.__getitem__, reverse=True)[:SLOWEST]
        return {
            "tests": dict(self.outcomes),
            "markers": self.markers,
            "seconds": round(time.time() - self.started, 1),
            "slowest_seconds": {name: round(self.seconds[name], 2) for name in slowest},
            **({"failed": self.failed} if self.failed else {}),
        }
