"""How far a long command is: a bar on a terminal, else a line on stderr now and then."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from vgg16gpu.cli.common.show import console, per_second
from vgg16gpu.cli.common.tell import tell

if TYPE_CHECKING:
    from rich.progress import Progress

EVERY = 10.0  # seconds from line to line


class Counter:
    """Counts `what` up to `total`, which may grow, with the rate and the time that is left.

    quiet: say nothing at all.
    """

    def __init__(self, what: str, total: int, *, quiet: bool = False) -> None:
        self._what, self._total, self._quiet = what, total, quiet
        self._done = 0
        self._start = self._told = time.monotonic()
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        if not self._quiet and console(stderr=True).is_terminal:
            self._bar = _bar()
            self._bar.add_task(self._what, total=self._total, rate="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def add(self, count: int) -> None:
        """Add `count` to what is done."""
        self._done += count
        self._total = max(self._total, self._done)
        now = time.monotonic()
        if self._bar:
            rate = f"{per_second(self._done / max(now - self._start, 1e-9))}/s"
            self._bar.update(self._bar.task_ids[0], completed=self._done, total=self._total, rate=rate)
        elif not self._quiet and now - self._told >= EVERY:
            self._told = now
            tell(self._line(now - self._start))

    def _line(self, seconds: float) -> str:
        rate = self._done / seconds
        left = (self._total - self._done) / rate if rate else 0.0
        share = f"{self._done:,} of {self._total:,} {self._what} ({self._done / self._total:.0%})"
        return f"{share}, {per_second(rate)}/s, {_duration(left)} left"


def _bar() -> Progress:
    from rich.progress import (  # noqa: PLC0415 - of terminals alone
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console(stderr=True), transient=True)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
