"""Show tables, bars and columns of numbers on a terminal."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from vgg16gpu.io.scores import finite_or_none
from vgg16gpu.io.shown import escaped_lines, printable, printable_lines


def progress(*, quiet: bool = False) -> Progress:
    """Return a progress bar on stderr, shown on a terminal only."""
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


_FRAME = 3  # characters around a column: a line and two blanks


def fitting(screen: Console, build: Callable[[Sequence[str]], Table], optional: Sequence[str]) -> Table:
    """Build a table that fits, without as few of `optional` as need be. Numbers stay on a line, text may wrap.

    `build` gets the names of the columns to leave out. Rich by itself splits words before it narrows long texts.
    """
    for count in range(len(optional) + 1):
        table = build(optional[:count])
        room = screen.width - 1 - _FRAME * len(table.columns) - sum(map(_least, table.columns))
        if room >= 0:
            _share(table.columns, room)
            break
    return table


def _share(columns: Sequence[Column], room: int) -> None:
    """Set widths: what columns need at least; beyond that those that want little get all, the others alike."""
    wanting = sorted(columns, key=lambda column: _most(column) - _least(column))
    for left, column in zip(range(len(wanting), 0, -1), wanting, strict=True):
        least = _least(column)
        column.width = min(_most(column), least + room // left)
        room -= column.width - least


def _least(column: Column) -> int:
    """Return the width of the longest word, for a number of all of it."""
    if column.justify == "right":
        return _most(column)
    return max(len(word) for text in _texts(column) for word in text.split() or [""])


def _most(column: Column) -> int:
    return max(map(len, _texts(column)))


def _texts(column: Column) -> list[str]:
    return [cell.plain if isinstance(cell, Text) else str(cell) for cell in (column.header, *column.cells)]


_PIPE_WIDTH = 160  # columns when stdout is no terminal: rich would assume 80 and cut names


class Screen(Console):
    """A console on which no text steers the terminal: models, files and folders have names and notes of others."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print texts with escapes for what cannot be shown, all else as it is."""
        super().print(*(escaped_lines(each) if isinstance(each, str) else each for each in objects), **options)


def console(*, stderr: bool = False) -> Console:
    """Return a console on stdout or stderr that neither colours nor cuts what goes into a pipe."""
    plain = Screen(stderr=stderr, highlight=False)
    return plain if plain.is_terminal else Screen(stderr=stderr, highlight=False, width=_PIPE_WIDTH)


def heading(screen: Console, text: str) -> None:
    """Print a line of plain text in bold."""
    screen.print(printable(text), style="bold", markup=False)


def from_here(path: str) -> str:
    """Strip the current folder from a path below it; any other stays, and all where that folder is gone."""
    try:
        here = f"{Path.cwd()}{os.sep}"
    except OSError:
        return path
    return path.removeprefix(here)


def print_json(content: Any) -> None:
    """Print one JSON object on stdout; NaN and infinities become null."""
    click.echo(json.dumps(finite_or_none(content), indent=2, allow_nan=False))


def table(columns: Sequence[str], *, right: Sequence[str] = ()) -> Table:
    """Return an empty table; the columns named in `right` hold numbers."""
    result = Table()
    for column in columns:
        result.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return result


def add_row(target: Table, *cells: object, end_section: bool = False, style: str | None = None) -> None:
    """Add a row of plain text: file names may hold brackets, which are rich's markup, and escape sequences."""
    target.add_row(*(Text(printable_lines(str(cell))) for cell in cells), end_section=end_section, style=style)


def sentence(text: str) -> str:
    """Capitalise the first letter; what follows keeps its own."""
    return text[:1].upper() + text[1:]


def seconds(value: float | None) -> str:
    """Format a time with three digits in the unit that suits it; a dash for None."""
    if value is None:
        return "-"
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if value * factor >= 1:
            return f"{value * factor:.3g} {unit}" if value * factor < 1000 else f"{value * factor:.0f} {unit}"
    return f"{value * 1e6:.3g} us"


def per_second(value: float) -> str:
    """Format a rate as a whole number, or two digits of one below ten: a slow machine does not do nothing."""
    return f"{value:,.0f}" if value >= 10 or not value else f"{value:.2g}"


def megabytes(nbytes: int) -> str:
    """Format bytes as decimal megabytes."""
    return f"{nbytes / 1e6:,.2f} MB"


def share_lines(shares: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line on the work of each of several devices."""
    whole = sum(share["images"] for share in shares) or 1
    for share in shares:
        problem = f"; taken out: {printable(share['problem'])}" if share["problem"] else ""
        yield f"  {share['device']}: {share['images']:,} images, {share['images'] / whole:.0%}{problem}"
