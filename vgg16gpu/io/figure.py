"""Figures of matplotlib, which is optional, as files."""

from __future__ import annotations

from typing import Any, BinaryIO, Final

_DATE: Final = {"svg": "Date", "pdf": "CreationDate"}  # what the formats call it


def save_figure(figure: Any, file: BinaryIO, suffix: str, salt: str, **options: Any) -> None:
    """Write a figure as png, svg or pdf; the same one gives the same bytes: no date, no random identifiers.

    `salt` keeps identifiers of SVG files apart that share a page; `options` are those of matplotlib's savefig.
    """
    import matplotlib as mpl  # noqa: PLC0415 - optional, and slow to import

    with mpl.rc_context({"svg.hashsalt": salt}):
        figure.savefig(file, format=suffix, metadata={_DATE[suffix]: None} if suffix in _DATE else None, **options)
