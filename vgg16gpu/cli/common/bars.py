"""A progress bar for commands that always show one. Apart from `show.py`: rich takes a while to load it."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


def progress(*, quiet: bool = False) -> Progress:
    """A progress bar on stderr, shown on a terminal only."""
    screen = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=screen,
        transient=True,
        disable=quiet or not screen.is_terminal,
    )
