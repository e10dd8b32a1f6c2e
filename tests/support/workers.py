"""Workers of pytest-xdist: how many, how they share the cores, what they cannot send."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

import pytest
from _pytest.runner import runtestprotocol

from vgg16gpu.devices.platforms import usable_cores

MOST: Final = 16  # each has memory of its own, on the GPU too
TOLD_SECONDS: Final = 0.1
_THREADS: Final = ("VGG16GPU_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def count() -> int:
    """Return the workers that `-n auto` starts: one for each core, at most `MOST`."""
    return min(usable_cores(), MOST)


def share_cores(workers: int) -> None:
    """Set the threads of libraries, in the environment that workers start with, so that each has its part."""
    for name in _THREADS:
        os.environ.setdefault(name, str(max(1, usable_cores() // workers)))


def place(config: pytest.Config) -> tuple[int, int]:
    """Return the number of this worker, and how many there are; (0, 1) without pytest-xdist."""
    given = getattr(config, "workerinput", None)
    return (int(given["workerid"].removeprefix("gw")), given["workercount"]) if given else (0, 1)


def alone(config: pytest.Config, items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the items that must not run beside others, where others run: `-m alone` runs them in one process."""
    if place(config)[1] == 1:
        return []
    return [item for item in items if item.get_closest_marker("alone")]


def run(item: pytest.Item, following: pytest.Item | None) -> bool:
    """Run a test as pytest does, and report what somebody may want to know.

    Six messages of each test cost more than most tests. A setup or teardown that went well in no time is none of them.
    """
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in runtestprotocol(item, log=False, nextitem=following):
        if report.when == "call" or not report.passed or report.duration > TOLD_SECONDS:
            item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def report_to_send(report: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a report as it is sent, without its keywords: nothing reads them there, and they are most of its text."""
    return None if report is None else sendable({**report, "keywords": {}})


def sendable(content: Any) -> Any:
    """Replace what execnet cannot send: surrogates, which logs about files of any name hold."""
    match content:
        case str():
            return content.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {sendable(key): sendable(value) for key, value in content.items()}
        case list() | tuple():
            return type(content)(map(sendable, content))
    return content
