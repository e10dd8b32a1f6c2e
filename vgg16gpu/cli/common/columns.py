"""Tables that fit into the terminal: text wraps between words, columns are left out before a word is split."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

_FRAME = 3  # characters around a column: a line and two blanks


def fitting(screen: Console, build: Callable[[Sequence[str]], Table], optional: Sequence[str]) -> Table:
    """The table without the first so many of `optional`, as few as need be. Numbers stay on a line, text may wrap.

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
    """Widths: what columns need at least; of the room beyond that those that want little get all, the others alike."""
    wanting = sorted(columns, key=lambda column: _most(column) - _least(column))
    for left, column in zip(range(len(wanting), 0, -1), wanting, strict=True):
        least = _least(column)
        column.width = min(_most(column), least + room // left)
        room -= column.width - least


def _least(column: Column) -> int:
    """The width of the longest word, of a number that of all of it."""
    if column.justify == "right":
        return _most(column)
    return max(len(word) for text in _texts(column) for word in text.split() or [""])


def _most(column: Column) -> int:
    return max(map(len, _texts(column)))


def _texts(column: Column) -> list[str]:
    return [cell.plain if isinstance(cell, Text) else str(cell) for cell in (column.header, *column.cells)]
