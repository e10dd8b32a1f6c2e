"""Draws what `data.py` describes with matplotlib: bars, lines, heat maps and rooflines."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, Final

from vgg16gpu_lab.figures.data import ESTIMATED, Cell, Chart, HeatMap, Panel, Picture, Place, Roof, Roofline, Series

# Okabe and Ito's colours, apart for colour-blind readers too; its yellow, which is too light on white, is grey.
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C8C8C")
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "*")  # with the next round of colours come other ones
DASHES: Final = ("-", "--", ":")
HOLLOW: Final = "hollow: "  # in legends, of points

_LOG_FROM: Final = 20  # ratio of the largest to the smallest number from which on a linear axis hides the small ones
_HEIGHT: Final = 4.2  # inches, of axes with their labels
_BAR: Final = 0.4  # inches: room for six characters above
_LEGEND: Final = 1.6  # inches beside the axes
_CHARACTER: Final = 0.095  # inches, of a title
_WIDEST: Final = 15.0  # inches that panels beside each other may take
_GAPS: Final = (0.7, 1.0)  # between groups, in bars: of one bar each, of several
_SMALL: Final = 7  # points
_GRID: Final = {"color": "#DDDDDD", "linewidth": 0.6}


def draw_picture(picture: Picture) -> Any:
    """Draw a matplotlib figure."""
    if isinstance(picture, Chart):
        return _draw_bars(picture) if picture.bars else _draw_lines(picture)
    return _draw_maps(picture) if isinstance(picture, HeatMap) else _draw_roofs(picture)


def digits(value: float) -> str:
    """Format at most six characters: three significant digits, two of small numbers."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}" if value >= 1e-2 else f"{value:.2g}" if value >= 1e-4 else f"{value:.0e}"


# Bars


def _draw_bars(chart: Chart) -> Any:
    widths = [1.2 + _BAR * _bar_count(panel) for panel in chart.panels]
    beside = sum(widths) <= _WIDEST
    count = len(chart.panels)
    size = (_LEGEND + (sum(widths) if beside else max(widths)), _HEIGHT if beside else _HEIGHT * count)
    ratios = {"width_ratios": widths} if beside else {}
    share = chart.shared_y
    figure, axes = _figure(chart.title, (1, count) if beside else (count, 1), size, share_y=share, **ratios)
    labels = _labels(chart.panels)
    for at, panel in zip(axes, chart.panels, strict=True):
        _scale_bars(at, chart.panels if chart.shared_y else [panel])
        _draw_groups(at, panel, labels)
        if panel.line is not None:
            at.axhline(panel.line, color="black", linewidth=1, linestyle="--")
        _name_axes(at, panel.title, chart.x_label, chart.y_label)
    if any(labels):  # not of panels with a single, nameless series
        _legend(figure, chart.panels, labels)
    return figure


def _bar_count(panel: Panel) -> float:
    groups = len(_places(panel))
    return sum(len(series.cells) for series in panel.series) + _gap(panel) * groups


def _gap(panel: Panel) -> float:
    return _GAPS[len(panel.series) > 1]


def _draw_groups(axes: Any, panel: Panel, labels: Sequence[str]) -> None:
    """Draw groups of bars; a group has a bar for each series that has something to say there."""
    at: dict[tuple[str, Place], float] = {}
    ticks: dict[Place, float] = {}
    end, gap = 0.0, _gap(panel)
    for place in _places(panel):
        there = [series.label for series in panel.series if place in series.cells]
        at |= {(label, place): end + number for number, label in enumerate(there)}
        ticks[place] = end + (len(there) - 1) / 2
        end += len(there) + gap
    for series in panel.series:
        numbers = [
            (at[series.label, place], cell.value, cell)
            for place, cell in series.cells.items()
            if cell.value is not None
        ]
        colour = COLOURS[labels.index(series.label) % len(COLOURS)]
        bars = axes.bar(
            [x for x, _, _ in numbers], [value for _, value, _ in numbers], 0.9, color=colour, label=series.label
        )
        for bar, (x, value, cell) in zip(bars, numbers, strict=True):
            _label_bar(axes, bar, x, value, cell)
        for place, cell in series.cells.items():
            if cell.value is None:
                _write_upright(axes, at[series.label, place], cell.note)
    axes.set_xticks(list(ticks.values()), [_wrapped(str(place)) for place in ticks], fontsize=8)
    axes.set_xlim(-0.5 - gap / 2, end - 0.5 - gap / 2)
    axes.tick_params(axis="x", length=0)


def _label_bar(axes: Any, bar: Any, x: float, value: float, cell: Cell) -> None:
    text = digits(value)
    if cell.note:
        bar.set(hatch="////", edgecolor="white", linewidth=0)
        text = f"~{text}" if cell.note == ESTIMATED else f"{text} {cell.note}"
    upright = len(text) > 6
    axes.annotate(
        text,
        (x, value),
        (0, 2),
        textcoords="offset points",
        fontsize=_SMALL,
        ha="center",
        va="bottom",
        rotation=90 if upright else 0,
    )


def _write_upright(axes: Any, x: float, text: str) -> None:
    """Write a text in the place of a bar."""
    axes.annotate(
        text,
        (x, 0),
        (0, 3),
        xycoords=axes.get_xaxis_transform(),
        textcoords="offset points",
        fontsize=_SMALL,
        ha="center",
        va="bottom",
        rotation=90,
        color="#555555",
    )


def _scale_bars(axes: Any, panels: Iterable[Panel]) -> None:
    values = [value for panel in panels for value in panel.values]
    if max(values) > _LOG_FROM * min(values):
        axes.set_yscale("log")
        axes.set_ylim(min(values) / 2, max(values) * 2)
    else:
        axes.set_ylim(0, max(values) * 1.12)


# Lines


def _draw_lines(chart: Chart) -> Any:
    count = len(chart.panels)
    shape = (1, count) if count < 4 else (2, math.ceil(count / 2))
    size = (_LEGEND + 4.2 * shape[1], 0.4 + _HEIGHT * shape[0])
    figure, axes = _figure(chart.title, shape, size, share_y=chart.shared_y)
    labels = _labels(chart.panels)
    values = [value for panel in chart.panels for value in panel.values]
    for at, panel in zip(axes, chart.panels, strict=True):
        for series in panel.series:
            _draw_line(at, series, labels.index(series.label))
        if max(values) > _LOG_FROM * min(values):
            at.set_yscale("log")
        else:
            at.set_ylim(0, max(values) * 1.08)
        _scale_x(at, chart.panels)
        _name_axes(at, panel.title, chart.x_label, chart.y_label)
    _legend(figure, chart.panels, labels)
    return figure


def _draw_line(axes: Any, series: Series, number: int) -> None:
    """Draw a line, hollow where the number was not measured."""
    points = sorted((int(x), cell.value, cell.note) for x, cell in series.cells.items() if cell.value is not None)
    colour, marker, dashes = _style(number)
    axes.plot(
        [x for x, _, _ in points],
        [y for _, y, _ in points],
        dashes,
        color=colour,
        marker=marker,
        markersize=5,
        linewidth=1.4,
        label=series.label,
    )
    for word in dict.fromkeys(note for _, _, note in points if note):
        noted = [(x, y) for x, y, note in points if note == word]
        hollow = {"linestyle": "", "marker": marker, "markersize": 5, "color": colour, "mfc": "white"}
        axes.plot(*zip(*noted, strict=True), label=f"{HOLLOW}{word}", **hollow)


def _scale_x(axes: Any, panels: Iterable[Panel]) -> None:
    """Set a tick at each number; doubling ones are equally far apart."""
    ticks = sorted({int(x) for panel in panels for series in panel.series for x in series.cells})
    if ticks[-1] >= 4 * ticks[0]:
        axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xticks([], minor=True)
    if len(ticks) == 1:
        axes.set_xlim(ticks[0] / 2, ticks[0] * 2)


# Heat maps


def _draw_maps(chart: HeatMap) -> Any:
    from matplotlib.colors import LogNorm  # noqa: PLC0415 - optional, and slow to import

    count = len(chart.panels)
    size = (1.8 + count * (1.2 + 0.62 * len(chart.sizes)), 1.9 + 0.42 * len(chart.channels))
    figure, axes = _figure(chart.title, (1, count), size, share_y=True)
    farthest = max(2.0, *(max(value, 1 / value) for _, cells in chart.panels for value in cells.values()))
    norm = LogNorm(1 / farthest, farthest)
    for at, (title, cells) in zip(axes, chart.panels, strict=True):
        rows = [[cells.get((size, channels), math.nan) for size in chart.sizes] for channels in chart.channels]
        image = at.imshow(rows, cmap="PuOr", norm=norm, origin="lower", aspect="auto")
        for (pixels, channels), value in cells.items():
            dark = abs(math.log(value)) > 0.6 * math.log(farthest)
            place = chart.sizes.index(pixels), chart.channels.index(channels)
            at.text(*place, digits(value), ha="center", va="center", fontsize=8, color="white" if dark else "black")
        at.set_xticks(range(len(chart.sizes)), [str(size) for size in chart.sizes])
        at.set_yticks(range(len(chart.channels)), [str(channels) for channels in chart.channels])
        at.set_title(title, fontsize=10, loc="left")
        at.set_xlabel("image: pixels a side")
    axes[0].set_ylabel("channels")
    most = math.floor(math.log2(farthest))
    ticks = [2.0**power for power in range(-most, most + 1)]
    bar = figure.colorbar(image, ax=list(axes), label=f"{chart.label}, log scale", ticks=ticks, format="{x:g}")
    bar.ax.minorticks_off()
    return figure


# Rooflines


def _draw_roofs(chart: Roofline) -> Any:
    count = len(chart.panels)
    figure, axes = _figure(chart.title, (1, count), (3.0 + 5.0 * count, 5.0), share_y=True)
    labels = list(dict.fromkeys(dot.label for roof in chart.panels for dot in roof.dots))
    reach = [dot.intensity for roof in chart.panels for dot in roof.dots]
    reach += [roof.flop_per_s / roof.bytes_per_s for roof in chart.panels]
    ends = min(reach) / 2, max(reach) * 2
    for at, roof in zip(axes, chart.panels, strict=True):
        _draw_roof(at, roof, ends)
        for label in labels:
            dots = [dot for dot in roof.dots if dot.label == label]
            colour, marker, _ = _style(labels.index(label))
            x, y = [dot.intensity for dot in dots], [dot.flop_per_s / 1e9 for dot in dots]
            at.plot(x, y, linestyle="", color=colour, marker=marker, markersize=6.5, mfc="none", mew=1.7, label=label)
        at.set_xscale("log", base=2)
        at.set_yscale("log")
        at.set_xlim(*ends)
        at.xaxis.set_major_formatter("{x:g}")
        at.tick_params(axis="x", pad=8)  # below the lowest number of the y axis
        _name_axes(at, _roof_title(roof), "arithmetic intensity in FLOP/B", "GFLOP/s, those of a direct computation")
    handles = {text: handle for at in axes for handle, text in zip(*at.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles, loc="outside right center", fontsize=8, frameon=False)
    return figure


def _draw_roof(axes: Any, roof: Roof, ends: tuple[float, float]) -> None:
    ridge = roof.flop_per_s / roof.bytes_per_s
    slope = [ends[0], ridge], [ends[0] * roof.bytes_per_s / 1e9, roof.flop_per_s / 1e9]
    axes.plot(*slope, color="#555555", linewidth=1.3, label="ceiling: memory")
    flat = [ridge, ends[1]], [roof.flop_per_s / 1e9] * 2
    axes.plot(*flat, color="#555555", linewidth=1.3, linestyle="--", label="ceiling: float32 FMA")


def _roof_title(roof: Roof) -> str:
    return f"{roof.title}\n{digits(roof.bytes_per_s / 1e9)} GB/s, {digits(roof.flop_per_s / 1e9)} GFLOP/s"


# What they share


def _figure(
    title: str, shape: tuple[int, int], size: tuple[float, float], *, share_y: bool, **ratios: Any
) -> tuple[Any, Sequence[Any]]:
    from matplotlib.figure import Figure  # noqa: PLC0415 - optional, and slow to import

    figure = Figure(figsize=size, dpi=120, layout="constrained")
    figure.suptitle(textwrap.fill(title, int(size[0] / _CHARACTER)), fontsize=12, x=0.01, ha="left")
    return figure, list(figure.subplots(*shape, sharey=share_y, squeeze=False, **ratios).flat)


def _name_axes(axes: Any, title: str, x_label: str, y_label: str) -> None:
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label + (", log scale" if axes.get_yscale() == "log" else ""))
    if axes.get_shared_y_axes().joined(axes, axes.figure.axes[0]) and axes.get_subplotspec().colspan.start:
        axes.set_ylabel("")  # the first one's is theirs, too
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(axis="y", **_GRID)


def _legend(figure: Any, panels: Sequence[Panel], labels: Sequence[str]) -> None:
    """Draw the legend beside the axes, where it covers nothing; a series without any number says why."""
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    missing = _missing(panels)
    labels = [*labels, *(label for label in handles if label.startswith(HOLLOW))]
    texts = [f"{label}\n({missing[label]})" if label in missing else label for label in labels]
    figure.legend([handles[label] for label in labels], texts, loc="outside right center", fontsize=8, frameon=False)


def _missing(panels: Sequence[Panel]) -> dict[str, str]:
    """Return why a series of the last panel, ours, has no number at all."""
    return {
        series.label: f"ours: {next(iter(series.cells.values())).note}"
        for series in panels[-1].series
        if all(cell.value is None for cell in series.cells.values())
    }


def _labels(panels: Sequence[Panel]) -> list[str]:
    """Return the labels of every series, ours, which are in the last panel, first."""
    return list(dict.fromkeys(series.label for panel in reversed(panels) for series in panel.series))


def _places(panel: Panel) -> list[Place]:
    return list(dict.fromkeys(place for series in panel.series for place in series.cells))


def _style(number: int) -> tuple[str, str, str]:
    """Return colour, marker and dashes of a series."""
    rounds = number // len(COLOURS)
    marker = MARKERS[(number + rounds) % len(MARKERS)]
    return COLOURS[number % len(COLOURS)], marker, DASHES[rounds % len(DASHES)]


def _wrapped(text: str) -> str:
    """Split a name of several words into several lines."""
    return text.replace(" ", "\n").replace("-", "-\n")
