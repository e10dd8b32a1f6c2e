"""The figures of S4: cuDNN's time by ours over sizes and channels, and three problems side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from vgg16gpu_lab.figures.data import (
    TIME,
    Chart,
    Content,
    HeatMap,
    Panel,
    Picture,
    by_setting,
    method,
    our_title,
    ours,
    series,
    size_of,
    suffix,
    table,
    told,
)
from vgg16gpu_lab.measure.baseline import CUDNN, CUDNN_TF32

TABLES: Final[Mapping[str, str]] = {
    "conv2d": "published point",
    "simple": "simple kernel (ours)",
    "winograd": "Winograd's layer (ours)",
}


def s4_pictures(record: Content) -> Iterator[Picture]:
    """Yield a map for each stride, and the bars."""
    rows = table(record, "chart")
    as_many = all(row["problem"]["outputs"] == row["problem"]["channels"] for row in rows)
    shape = ", ".join(f"{edge}x{edge}" for edge in sorted({row["problem"]["kernel"] for row in rows}))
    shape += ", as many outputs as channels" if as_many else ""
    for setting, chosen in by_setting(rows, "stride", *(() if as_many else ("outputs",))):
        yield HeatMap(
            f"S4-map{suffix(setting)}",
            f"S4: cuDNN's time / the kernel's, {shape}{told(setting)}",
            tuple(_ratios(chosen).items()),
            tuple(sorted({size_of(row) for row in chosen})),
            tuple(sorted({row["problem"]["channels"] for row in chosen})),
            "above 1: faster than cuDNN",
            "no image has a time of ours and one of cuDNN",
        )
    panels = {name: _panel(table(record, name), text) for name, text in TABLES.items()}
    panels["conv2d"] = _with_claim(record, panels["conv2d"])
    shown = tuple(panel for panel in panels.values() if panel.values)
    yield Chart("S4-bars", f"S4: three problems, {our_title(record)}", shown, "", TIME, bars=True, shared_y=False)


def _panel(rows: Sequence[Content], text: str) -> Panel:
    """Return bars of one problem, the first of its table."""
    problem = rows[0]["problem"] if rows else {}
    chosen = [row for row in rows if row["problem"] == problem]
    shape = "{channels}x{height}x{width} to {outputs}, {kernel}x{kernel}".format_map(problem) if rows else ""
    return Panel(f"{text}: {shape}", series(chosen, ours, lambda _: "", method))


def _with_claim(record: Content, point: Panel) -> Panel:
    """Add the time that theirs would have by the published ratio, at the published point."""
    claim = next((row for row in table(record, "claim") if row["ours"]), None)
    library = next((row["ours"] for row in table(record, "conv2d") if row["method"] == CUDNN), None)
    if claim is None or library is None:
        return point
    text = f"\ndashed: published speed, {claim['theirs']:g} times cuDNN's"
    return replace(point, title=point.title + text, line=library / claim["theirs"])


def _ratios(rows: Sequence[Content]) -> dict[str, dict[tuple[int, int], float]]:
    """Return by method cuDNN's time / ours of a size and a number of channels, where there are both."""
    times = {(row["method"], size_of(row), row["problem"]["channels"]): row["ours"] for row in rows}
    found: dict[str, dict[tuple[int, int], float]] = {}
    for (name, *shape), time in times.items():
        size, channels = shape
        library = times.get((CUDNN, size, channels))
        if name not in (CUDNN, CUDNN_TF32) and time and library:
            found.setdefault(name.replace("_", " "), {})[size, channels] = library / time
    return found
