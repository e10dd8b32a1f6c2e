"""Tests side by side: as many processes as there are cores, by pytest-xdist where that is installed.

A test marked `alone` measures time, or what the whole machine or GPU has left: nothing else runs meanwhile.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from vgg16gpu.devices.cpu.device import usable_cores

MOST_WORKERS: Final = 8  # each has memory of its own, on the GPU too
_LOCKS: Final = "VGG16GPU_TEST_LOCKS"  # from the process that starts the workers to them
_THREADS: Final = ("VGG16GPU_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def add_option(parser: pytest.Parser) -> None:
    """--workers."""
    text = f"processes; auto: one for each core, at most {MOST_WORKERS}; without pytest-xdist one"
    parser.addoption("--workers", metavar="N", default="1", help=text)


_folder: Path | None = None  # of this worker's locks


def start(config: pytest.Config) -> None:
    """Hand the wish to pytest-xdist, and share the cores among its workers."""
    if hasattr(config, "workerinput"):
        global _folder  # noqa: PLW0603 - one worker is one process
        # Not left in the environment: a pytest that a test starts must not wait for a turn of its own.
        _folder = Path(os.environ.pop(_LOCKS)) if _LOCKS in os.environ else None
        return
    if config.option.collectonly:
        return
    workers = wanted(config.option.workers)
    if workers == 1 or not config.pluginmanager.hasplugin("xdist") or config.option.numprocesses is not None:
        return
    config.option.numprocesses, config.option.dist = workers, "worksteal"
    for name in _THREADS:
        os.environ.setdefault(name, str(max(1, usable_cores() // workers)))
    folder = tempfile.TemporaryDirectory(prefix="vgg16gpu-tests-")
    config.add_cleanup(folder.cleanup)
    os.environ[_LOCKS] = folder.name


def wanted(text: str) -> int:
    """The number of processes that `--workers` asks for. Raises pytest.UsageError."""
    if text == "auto":
        return min(usable_cores(), MOST_WORKERS)
    if not text.isdecimal() or not int(text):
        raise pytest.UsageError(f"--workers {text}: a number from 1 on is needed, or auto")
    return int(text)


def place(config: pytest.Config) -> tuple[int, int]:
    """The number of this worker, and how many there are."""
    given = getattr(config, "workerinput", None)
    return (int(given["workerid"].removeprefix("gw")), given["workercount"]) if given else (0, 1)


def sendable(content: Any) -> Any:
    """What a worker reports, without what execnet cannot send: surrogates, which logs about files of any name hold."""
    match content:
        case str():
            return content.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {sendable(key): sendable(value) for key, value in content.items()}
        case list() | tuple():
            return type(content)(map(sendable, content))
    return content


@contextmanager
def turn(alone: bool) -> Iterator[None]:
    """While a test runs: beside others, or with all others waiting.

    Who comes passes a door first. A test that wants to be alone keeps it shut until the others are done: without a
    door new ones would always be among them.
    """
    if _folder is None:
        yield
        return
    with ExitStack() as stack:
        with _locked(_folder / "door", fcntl.LOCK_EX):
            stack.enter_context(_locked(_folder / "room", fcntl.LOCK_EX if alone else fcntl.LOCK_SH))
        yield


@contextmanager
def _locked(path: Path, how: int) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, how)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # closing would not do: a forked child has the file too
