"""Workers of pytest-xdist: how many, how they share the cores, what they cannot send."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

import pytest

from vgg16gpu.devices.platforms import usable_cores

MOST: Final = 16  # each has memory of its own, on the GPU too
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
