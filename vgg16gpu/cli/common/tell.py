"""Remarks on stderr, one form for all: what commands say themselves, warnings, and what the package logs."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import click

from vgg16gpu.io.shown import printable_lines

_log = logging.getLogger("vgg16gpu")
_waiting = logging.getLogger("vgg16gpu.waiting")  # what a command waits for
_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)  # by the number of -v


def tell(message: str) -> None:
    """Write a remark that begins with the program's name; none where stderr is full or closed: the exit code stands."""
    with suppress(OSError):
        click.echo(f"vgg16gpu: {printable_lines(message)}", err=True)


def never_fail_on_text() -> None:
    """Write characters that the encoding of stdout or stderr does not have as escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class Teller(logging.Handler):
    """Shows what the package logs, and remembers it."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Print one remark."""
        message = record.getMessage()
        self.told.append(message)
        tell(message)


_teller = Teller()


@contextmanager
def telling_log() -> Iterator[None]:
    """Show warnings that the package logs, and what else `set_verbosity` asks for; afterwards all is as it was."""
    level = _log.level
    _teller.told.clear()
    _log.addHandler(_teller)
    try:
        yield
    finally:
        _log.removeHandler(_teller)
        _log.setLevel(level)
        _waiting.setLevel(logging.NOTSET)


def set_verbosity(verbosity: int) -> None:
    """Set what is shown of the log: at 0 warnings, at 1 also what the package does, at 2 all; at -1 errors alone."""
    _log.setLevel(logging.ERROR if verbosity < 0 else _LEVELS[min(verbosity, 2)])
    _waiting.setLevel(logging.ERROR if verbosity < 0 else min(_log.level, logging.INFO))


def device_words(choice: str) -> str:
    """Return which device was chosen and why, unless a warning has said why already."""
    kind, _, reason = choice.partition(": ")
    was_told = any(reason in message for message in _teller.told)
    return f"{kind}, for the reason above" if was_told else choice
