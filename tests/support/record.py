"""pytest plugin behind `--record FILE`: what ran, how it ended, and where, as JSON."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

import pytest

from vgg16gpu.bench.measure.environment import environment
from vgg16gpu.devices import open_device

SLOWEST = 5


class Recorder:
    """Counts outcomes during a session and writes them at its end."""

    def __init__(self, path: Path, markers: str) -> None:
        self.path = path
        self.markers = markers
        self.started = time.time()
        self.outcomes: Counter[str] = Counter()
        self.seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.outcome] += 1
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        device, choice = open_device("cuda" if "gpu" in self.markers and "not gpu" not in self.markers else "auto")
        slowest = sorted(self.seconds, key=self.seconds.__getitem__, reverse=True)[:SLOWEST]
        content = {
            "tests": dict(self.outcomes),
            "exit_status": int(exitstatus),
            "markers": self.markers,
            "seconds": round(time.time() - self.started, 1),
            "slowest_seconds": {name: round(self.seconds[name], 2) for name in slowest},
            "device_choice": choice,
            "environment": environment(device),
        }
        device.close()
        self.path.write_text(json.dumps(content, indent=1) + "\n")
