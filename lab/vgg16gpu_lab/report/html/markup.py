"""HTML out of small functions. What is no `Html` yet is text: it is escaped, whatever a record holds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from html import escape
from typing import Final

NONE: Final = "-"  # in the place of a number

_VOID: Final = ("img", "meta", "wbr")  # elements without an end


class Html(str):
    """Markup, as opposed to text."""

    __slots__ = ()


def element(tag: str, *children: object, **attributes: object) -> Html:
    """Return an element. None is no child; None, False no attribute; `text_anchor` is text-anchor, `class_` class."""
    named = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
    told = "".join(_attribute(name, value) for name, value in named.items())
    if tag in _VOID:
        return Html(f"<{tag}{told}>")
    return Html(f"<{tag}{told}>{joined(children)}</{tag}>")


def joined(parts: Iterable[object]) -> Html:
    """Join parts, escaping those that are not Html."""
    return Html("".join(part if isinstance(part, Html) else escape(str(part)) for part in parts if part is not None))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], right: Collection[str] = ()) -> Html:
    """Return a table that scrolls where it is wider than the page; the columns named in `right` hold numbers."""
    kinds = ["n" if column in right else None for column in columns]
    head = [element("th", column, class_=kind, scope="col") for column, kind in zip(columns, kinds, strict=True)]
    body = [
        element("tr", *(element("td", cell, class_=kind) for cell, kind in zip(row, kinds, strict=True)))
        for row in rows
    ]
    whole = element("table", element("thead", element("tr", *head)), element("tbody", *body))
    return wide(whole)


def wide(*children: object) -> Html:
    """Return an element that may be wider than the page, with a scroll bar of its own."""
    return element("div", *children, class_="wide", tabindex="0")


def fold(summary: object, *children: object, is_open: bool = False, anchor: str | None = None) -> Html:
    """Return an element that is hidden until it is asked for; a link to its `anchor` opens it."""
    return element("details", element("summary", summary), *children, open=is_open, id=anchor)


def paragraph(*children: object) -> Html:
    """Return a paragraph."""
    return element("p", *children)


def missing(what: str, command: str) -> Html:
    """Return the line in the place of a missing record."""
    return element("p", f"No record of {what} yet: ", element("code", command), " makes it.", class_="missing")


def number(value: float | None) -> str:
    """Format three significant digits without an exponent, but for very small numbers; a dash for None."""
    if value is None:
        return NONE
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:#.3g}".rstrip(".") if abs(value) >= 1e-3 else f"{value:.1e}"


def error(value: float | None) -> str:
    """Format two digits and an exponent; a dash for None."""
    return NONE if value is None else f"{value:.1e}"


def _attribute(name: str, value: object) -> str:
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'
