"""Draw the README's chart: the speed-up over the best peer, by arithmetic and batch size, on one scale."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from result_tables import Match, matches

from vgg16gpu.bench.records.record import Content, batches
from vgg16gpu.io.figure import save_figure
from vgg16gpu.io.files import atomic_writer

SHADES: Final = ("#9ECAE1", "#4292C6", "#2171B5", "#08306B")  # a batch size each, the largest darkest
_WIDTH: Final = 0.8  # of the bars of one arithmetic together


def write_chart(bench: Content, path: Path) -> None:
    """Draw a benchmark with peers into a .png file. Raises InputError when it cannot be written."""
    with atomic_writer(path) as file:
        save_figure(draw(bench), file, "png", "vgg16gpu")


def draw(bench: Content) -> Any:
    """Return a matplotlib figure: a group of bars for each arithmetic that has peers, a bar for each batch size."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - optional, and slow to import

    groups = [match for match in matches(bench) if any(match.theirs)]
    sizes = batches(bench)
    figure = Figure(figsize=(9, 3.6), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    axes.axhline(1, color="black", linewidth=1, linestyle=":")
    for i, size in enumerate(sizes):
        bars = [(place, match.ratios[i]) for place, match in enumerate(groups)]
        shown = [(place + _WIDTH * ((i + 0.5) / len(sizes) - 0.5), ratio) for place, ratio in bars if ratio]
        drawn = axes.bar(
            [place for place, _ in shown],
            [ratio for _, ratio in shown],
            _WIDTH / len(sizes),
            color=SHADES[i % len(SHADES)],
            label=f"batch {size}",
        )
        axes.bar_label(drawn, fmt="%.1f", fontsize=8)
    axes.set_xticks(range(len(groups)), [_name(match) for match in groups])
    axes.set_ylabel("times as fast as the best peer")
    axes.set_title(f"VGG16 on one {bench['device']['name']}: best peer's time / vgg16gpu's", fontsize=11)
    axes.legend(ncols=len(sizes), frameon=False, loc="upper right")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_ylim(0, 1.15 * max(ratio for match in groups for ratio in match.ratios if ratio))
    return figure


def _name(match: Match) -> str:
    """Return what stands below a group: our precision, and the peers' arithmetic where it is another one."""
    return match.precision if match.arithmetic == match.precision else f"{match.precision}\nbeside {match.arithmetic}"
