"""Latency over load, as a picture: a panel for each form of requests, a line for each percentile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from vgg16gpu.bench.measure.layers import NAME
from vgg16gpu.bench.records.record import Content
from vgg16gpu.io.figure import save_figure
from vgg16gpu.io.files import atomic_writer

_COLOURS: Final = {"p50": "#0072B2", "p90": "#009E73", "p99": "#E69F00", "p99.9": "#D55E00"}
_STYLES: Final = ("-", "--", ":")  # of servers, in their order


def write_plot(content: Content, path: Path) -> None:
    """Draw the record into a .png, .svg or .pdf file. Raises InputError when it cannot be written."""
    figure = draw(content)
    with atomic_writer(path) as file:
        save_figure(figure, file, path.suffix.lower()[1:], NAME)


def draw(content: Content) -> Any:
    """The record as a matplotlib figure. Dots are closed loops; lines join the loads of open ones."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - optional, and slow to import

    rows = content["loads"]
    forms = list(dict.fromkeys(row["form"] for row in rows))
    figure = Figure(figsize=(6.5 * max(1, len(forms)), 4.8), dpi=120, layout="constrained")
    for place, form in enumerate(forms):
        axes = figure.add_subplot(1, len(forms), place + 1)
        _draw_form(axes, [row for row in rows if row["form"] == form])
    serving = content["serving"]
    figure.suptitle(f"{serving['model']}, latency over load; {content['environment']['cores']} cores with the clients")
    return figure


def _draw_form(axes: Any, rows: Sequence[Content]) -> None:
    servers = list(dict.fromkeys(row["server"] for row in rows))
    for style, server in zip(_STYLES, servers, strict=False):
        for name, colour in _COLOURS.items():
            for load in ("open", "closed"):
                points = sorted(
                    (row["amount"] if load == "open" else row["answers_per_s"], 1e3 * row["latency_s"][name])
                    for row in rows
                    if (row["server"], row["load"]) == (server, load) and row["latency_s"][name] is not None
                )
                line = style if load == "open" else "none"
                label = f"{server} {name}" if load == "open" else None
                marker = "o" if load == "open" else "x"
                x, y = [point[0] for point in points], [point[1] for point in points]
                axes.plot(x, y, linestyle=line, marker=marker, color=colour, label=label)
    axes.set_yscale("log", subs=[2, 5])
    for axis in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        axis("{x:g}")
    axes.set_xlim(left=0)
    axes.set_xlabel("requests/s (lines: open loops; crosses: closed loops)")
    axes.set_ylabel("latency, ms")
    kilobytes = rows[0]["body_nbytes"] / 1e3
    axes.set_title(f"{rows[0]['form']}, {kilobytes:.3g} KB a request", fontsize=11, loc="left", pad=44)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, frameon=False, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.3, ncols=4)
    axes.spines[["top", "right"]].set_visible(False)
