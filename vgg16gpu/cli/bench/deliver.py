"""What becomes of a result of a benchmark, whichever it is of."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import click

from vgg16gpu.bench.records.record import Content, write
from vgg16gpu.cli.common.show import console, print_json


class Outputs(Protocol):
    """Where a result goes: a file of JSON, and the screen, as JSON or as tables."""

    @property
    def output(self) -> Path | None:
        """The file; None: none."""

    @property
    def as_json(self) -> bool:
        """Return whether the screen shows JSON."""


def deliver(
    result: Content,
    options: Outputs,
    show: Callable[[Content], None],
    plot: Callable[[Content, Path], None] | None = None,
    picture: Path | None = None,
) -> None:
    """Write the result, draw `picture` by `plot`, and print it, as JSON or by `show`. Raises what these raise."""
    if options.output:
        write(options.output, result)
    if plot and picture:
        plot(result, picture)
    if options.as_json:
        print_json(result)
    else:
        show(result)


def progress(options: Outputs) -> Callable[[str], None]:
    """Return what tells a person at a terminal, or the log of a run that writes a file, how far the benchmark is."""
    is_wanted = not options.as_json and (options.output is not None or console(stderr=True).is_terminal)
    start = time.monotonic()

    def say(text: str) -> None:
        if is_wanted:
            click.echo(f"bench {time.monotonic() - start:5.1f} s: {text} ...", err=True)

    return say
