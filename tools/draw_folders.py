"""Draw the folders of the package and who imports whom: docs/images/folders-light.svg and folders-dark.svg.

Everything comes from the import statements of vgg16gpu/. --check writes nothing.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from html import escape
from itertools import pairwise, permutations
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from readme_table import settle

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGE: Final = ROOT / "vgg16gpu"
IMAGES: Final = ROOT / "docs" / "images"
TITLE: Final = "Folders of vgg16gpu and their imports"

Imports: TypeAlias = Mapping[str, frozenset[str]]  # of each folder those that it imports
Rows: TypeAlias = list[tuple[str, ...]]  # from the top; an item that begins with "|" is an arrow that passes by

ROW: Final = 96  # pixels from one row to the next
HEIGHT: Final = 52  # of a box
GAP: Final = 36  # between neighbours
MARGIN: Final = 16
LETTER: Final = 6.6  # pixels of a letter of the small text, at most
PAD: Final = 14  # of a box, on either side of its text
PASSING: Final = 12  # width of an arrow that passes by
SWEEPS: Final = 8  # over the rows, until their order has settled


class Theme(NamedTuple):
    """The colours of a picture."""

    page: str
    box: str
    edge: str
    text: str
    small: str
    arrow: str


THEMES: Final = {
    "light": Theme("#ffffff", "#eef4fb", "#3b6ea5", "#1f2328", "#59636e", "#59636e"),
    "dark": Theme("#0d1117", "#172334", "#6ea8e0", "#f0f6fc", "#9198a1", "#9198a1"),
}


def folders() -> tuple[str, ...]:
    """Return the names of the package's folders that hold Python, in order."""
    return inner_folders(PACKAGE)


@cache
def inner_folders(folder: Path) -> tuple[str, ...]:
    """Return the names of the folders directly inside a folder that hold Python, in order."""
    return tuple(sorted(path.parent.name for path in folder.glob("*/__init__.py")))


def imports() -> Imports:
    """Return which folders each folder imports, at the top of a module or within a function."""
    known = set(folders())
    found = {name: {target for path in _modules(name) for target in _targets(path)} for name in known}
    return {name: frozenset(targets & known - {name}) for name, targets in found.items()}


def _modules(name: str) -> list[Path]:
    return sorted((PACKAGE / name).rglob("*.py"))


def _targets(path: Path) -> Iterator[str]:
    """Yield the folder of each import of the package in a module."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module] if node.module != PACKAGE.name else [f"{node.module}.{a.name}" for a in node.names]
        for name in names:
            package, _, rest = name.partition(".")
            if package == PACKAGE.name and rest:
                yield rest.split(".")[0]


def heights(edges: Imports) -> dict[str, int]:
    """Return the row of each folder, counted from below: one above the highest that it imports.

    Raises ValueError for folders that import each other in a circle.
    """
    found: dict[str, int] = {}
    while len(found) < len(edges):
        ready = [name for name, targets in edges.items() if name not in found and targets <= found.keys()]
        if not ready:
            raise ValueError(f"imports go in a circle: {', '.join(sorted(edges.keys() - found.keys()))}")
        found |= {name: 1 + max((found[target] for target in edges[name]), default=-1) for name in ready}
    return found


def reduced(edges: Imports) -> Imports:
    """Return the imports without those that a path of others goes along as well."""
    rows = heights(edges)
    below: dict[str, frozenset[str]] = {}
    for name in sorted(edges, key=rows.__getitem__):
        below[name] = edges[name].union(*(below[target] for target in edges[name]))
    return {
        name: frozenset(one for one in targets if not any(one in below[other] for other in targets - {one}))
        for name, targets in edges.items()
    }


def paths(edges: Imports) -> list[tuple[str, ...]]:
    """Return each import as the items that its arrow goes through, row by row: two folders, "|..." between them."""
    rows = heights(edges)
    found = []
    for name in sorted(edges):
        for target in sorted(edges[name]):
            between = range(rows[name] - 1, rows[target], -1)
            found.append((name, *(f"|{name} {target} {row}" for row in between), target))
    return found


def ordered_rows(edges: Imports) -> Rows:
    """Return the rows from the top, each in the order in which the fewest arrows cross and arrows are short."""
    place, ways = heights(edges), paths(edges)
    top = max(place.values())
    rows: Rows = [() for _ in range(top + 1)]
    for name in sorted(place):
        rows[top - place[name]] += (name,)
    for way in ways:
        for number, item in enumerate(way[1:-1], top - place[way[0]] + 1):
            rows[number] += (item,)
    links = sorted({pair for way in ways for pair in pairwise(way)})
    for _ in range(SWEEPS):
        for number, row in enumerate(rows):
            tried = (_with(rows, number, order) for order in permutations(sorted(row)))
            rows = min(tried, key=lambda each: (_crossings(each, links), _length(each, links)))
    return rows


def _with(rows: Rows, number: int, order: tuple[str, ...]) -> Rows:
    return [*rows[:number], order, *rows[number + 1 :]]


def _crossings(rows: Rows, links: Sequence[tuple[str, str]]) -> int:
    """Return how many pairs of arrows between neighbouring rows cross."""
    index = {item: place for row in rows for place, item in enumerate(row)}
    row_of = {item: number for number, row in enumerate(rows) for item in row}
    found = 0
    for number, (a, b) in enumerate(links):
        for c, d in links[number + 1 :]:
            found += row_of[a] == row_of[c] and (index[a] - index[c]) * (index[b] - index[d]) < 0
    return found


def _length(rows: Rows, links: Sequence[tuple[str, str]]) -> float:
    """Return how far arrows lead to the side, in pixels."""
    centres = _centres(rows)
    return round(sum(abs(centres[a] - centres[b]) for a, b in links), 3)


def _width(item: str) -> float:
    """Return the width of a box, or of an arrow that passes by, in pixels."""
    if item.startswith("|"):
        return PASSING
    return 2 * PAD + LETTER * max(1.35 * len(item), len(_inside(item)))


def _inside(name: str) -> str:
    """Return the small text of a box."""
    return " · ".join(inner_folders(PACKAGE / name))


def _centres(rows: Rows) -> dict[str, float]:
    """Return the middle of each item, in pixels from the middle of the picture."""
    found: dict[str, float] = {}
    for row in rows:
        left = -(sum(map(_width, row)) + GAP * (len(row) - 1)) / 2
        for item in row:
            found[item] = left + _width(item) / 2
            left += _width(item) + GAP
    return found


def _straightened(centres: Mapping[str, float], rows: Rows, ways: Sequence[tuple[str, ...]]) -> dict[str, float]:
    """Return the middles of items, arrows that pass by several rows straight where they pass outside of all boxes."""
    found = dict(centres)
    for _, *passing, _ in ways:
        ends = {row[side] for row in rows for side in (0, -1)}
        if passing and ends.issuperset(passing):
            found |= dict.fromkeys(passing, max((centres[item] for item in passing), key=abs))
    return found


def drawing(theme: Theme) -> str:
    """Return the picture as SVG: the importing folder above, an arrow to each that it imports."""
    edges = reduced(imports())
    rows = ordered_rows(edges)
    centres = _straightened(_centres(rows), rows, paths(edges))
    half = MARGIN + max(abs(centre) + _width(item) / 2 for item, centre in centres.items())
    height = 2 * MARGIN + HEIGHT + ROW * (len(rows) - 1)
    tops = {item: MARGIN + ROW * number for number, row in enumerate(rows) for item in row}
    size = f"{2 * half:.0f} {height}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" width="{2 * half:.0f}" height="{height}" '
        'font-family="system-ui, Helvetica, Arial, sans-serif" text-anchor="middle" role="img">',
        f"<title>{TITLE}</title>",
        f"<desc>{escape(_sentences(edges))}</desc>",
        f'<marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        f'<path d="M0 0L8 4L0 8z" fill="{theme.arrow}"/></marker>',
        f'<rect width="100%" height="100%" fill="{theme.page}"/>',
    ]
    lines += [_arrow([(half + centres[item], tops[item]) for item in way], theme) for way in paths(edges)]
    for item, top in tops.items():
        if not item.startswith("|"):
            lines += _box(item, half + centres[item], top, theme)
    return "\n".join([*lines, "</svg>", ""])


def _sentences(edges: Imports) -> str:
    """Return the picture in words, for readers who do not see it."""
    rows = heights(edges)
    names = sorted((name for name in edges if edges[name]), key=lambda name: (-rows[name], name))
    return " ".join(f"{name} imports {', '.join(sorted(edges[name]))}." for name in names)


def _arrow(points: Sequence[tuple[float, float]], theme: Theme) -> str:
    """Return an arrow from below the first box to the top of the last, straight down past the boxes between."""
    x, y = points[0]
    path = f"M{x:.1f} {y + HEIGHT}"
    y += HEIGHT
    for number, (to, top) in enumerate(points[1:], 2):
        bend = (top - y) / 2
        path += f"C{x:.1f} {y + bend:.1f} {to:.1f} {top - bend:.1f} {to:.1f} {top}"
        x, y = to, top
        if number < len(points):
            y += HEIGHT
            path += f"V{y}"
    return f'<path d="{path}" fill="none" stroke="{theme.arrow}" stroke-width="1.5" marker-end="url(#tip)"/>'


def _box(name: str, centre: float, top: float, theme: Theme) -> Iterator[str]:
    """Yield the box of a folder, its name, and the folders inside."""
    inside, width = _inside(name), _width(name)
    yield (
        f'<rect x="{centre - width / 2:.1f}" y="{top}" width="{width:.1f}" height="{HEIGHT}" rx="6" '
        f'fill="{theme.box}" stroke="{theme.edge}"/>'
    )
    base = top + (23 if inside else 31)
    yield f'<text x="{centre:.1f}" y="{base}" font-size="15" font-weight="600" fill="{theme.text}">{name}/</text>'
    if inside:
        yield f'<text x="{centre:.1f}" y="{top + 41}" font-size="12" fill="{theme.small}">{inside}</text>'


def main(arguments: Sequence[str] | None = None) -> int:
    """Write both pictures; with --check return 1 when one is out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args(arguments).check
    files = {IMAGES / f"folders-{name}.svg": drawing(theme) for name, theme in THEMES.items()}
    return max(settle(path, text, "tools/draw_folders.py", check=check) for path, text in files.items())


if __name__ == "__main__":
    sys.exit(main())
