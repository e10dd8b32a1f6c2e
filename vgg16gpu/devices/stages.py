"""Where a start goes: what is done one after the other, and how long each takes, as lines of the log.

    with stage("context"):
        ...

gives "start: context 182.0 ms" at level info; nothing is measured where nobody listens. What runs in a thread beside
the others says so in its name, and is no part of their sum. A whole run tells its report at level debug (`tell_run`),
a line of JSON for each part, as the log shortens long lines; for who has started it and does not want its screen.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concurrent.futures import Future

BESIDE = " (beside)"  # how the name of a stage ends that runs while others do

PATIENCE = 1.0  # seconds that a command may be silent

_log = logging.getLogger(__name__)
_waiting = logging.getLogger("vgg16gpu.waiting")
_has_told = False
_LINE = re.compile(r"start: (.+) (\d+\.\d) ms$", re.MULTILINE)
_RUN = re.compile(r"run: (\w+) (.*)$", re.MULTILINE)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Log how long the block takes; one that raises took no time worth telling."""
    if not _log.isEnabledFor(logging.INFO):
        yield
        return
    started = time.perf_counter()
    yield
    tell_stage(name, time.perf_counter() - started)


def tell_stage(name: str, seconds: float) -> None:
    """Log a stage whose time is known already."""
    _log.info("start: %s %.1f ms", name, 1e3 * seconds)


def tell_compiling(compilations: Collection[Future[Any]]) -> None:
    """Wait a moment for kernels that are being compiled; log at level info that it takes longer, once in a process.

    The logger is its own, "vgg16gpu.waiting", so that a command line shows this line and not all of level info.
    """
    from concurrent.futures import FIRST_EXCEPTION, wait  # noqa: PLC0415 - `infer` has this module before its threads

    global _has_told  # noqa: PLW0603 - of this process
    if not _has_told and wait(compilations, PATIENCE, FIRST_EXCEPTION).not_done:
        _has_told = True
        _waiting.info("compiling %d kernels; where the kernel cache keeps them, later runs need not", len(compilations))


def read_stages(text: str) -> dict[str, float]:
    """Return the seconds of each stage in a log, in order; those of one name together."""
    found: dict[str, float] = {}
    for name, milliseconds in _LINE.findall(text):
        found[name] = found.get(name, 0.0) + float(milliseconds) / 1e3
    return found


def tell_run(report: Mapping[str, Any]) -> None:
    """Log what a whole run says of itself; plain data, by name."""
    if _log.isEnabledFor(logging.DEBUG):
        for name, part in report.items():
            _log.debug("run: %s %s", name, json.dumps(part))


def read_run(text: str) -> dict[str, Any] | None:
    """Return the last report in a log; None without one."""
    return {name: json.loads(part) for name, part in _RUN.findall(text)} or None
