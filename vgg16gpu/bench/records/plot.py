"""A result as a picture: time beside the best peer's in each precision, and where our time goes."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vgg16gpu.bench.measure.layers import NAME
from vgg16gpu.bench.measure.timing import Method, Regime
from vgg16gpu.bench.records.record import Content, batches, ceilings_text, fastest, headline, names, peers, precisions
from vgg16gpu.errors import InputError
from vgg16gpu.io.figure import save_figure
from vgg16gpu.io.files import atomic_writer
from vgg16gpu.io.shown import ending

SUFFIXES = (".png", ".svg", ".pdf")

# Apart for colour-blind readers too.
_COLOURS = {NAME: "#0072B2", "torch": "#D55E00", "jax": "#E69F00", "onnxruntime": "#8C8C8C", "tensorrt": "#009E73"}
_TF32 = "best TF32 peer"
_COLOURS[_TF32] = "#CC79A7"
_FLOOR_COLOUR = "#B8D4E8"
_LOG_FROM = 20  # ratio of the longest to the shortest bar from which on a linear axis hides the short ones
_COLUMNS = 2  # of panels
_LABEL_SIZE, _SMALL_LABEL_SIZE, _MANY_BARS = 8, 6.5, 4  # of the numbers on bars, from so many at a batch size on

Bars = dict[str, list[tuple[int, float, float]]]  # by contender: (place of the batch size, height, ms)


def check_plot(path: Path) -> None:
    """Raise InputError, before anything is measured, when a plot could not be written to `path`."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"plot '{path}' has {ending(path.suffix)}; accepted are {', '.join(SUFFIXES)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError("--plot needs matplotlib, which is not installed: pip install matplotlib")


def write_plot(content: Content, path: Path, *, layers: bool = True) -> None:
    """Draw the result into a .png, .svg or .pdf file. Raises InputError when it cannot be written."""
    figure = draw(content, layers=layers)
    with atomic_writer(path) as file:
        save_figure(figure, file, path.suffix.lower()[1:], NAME)


def draw(content: Content, *, layers: bool = True) -> Any:
    """Draw a matplotlib figure: a panel for each precision and, with `layers`, one for the first batch's."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - optional, and slow to import

    # On a CPU there is nothing to copy, and nobody but us runs back to back.
    method = Method.BACK_TO_BACK if content["device"]["kind"] == "cuda" else Method.HOST_TO_HOST
    panels = precisions(content)
    columns = min(_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    steps = content["batches"][0]["layers"] if layers else []
    bottom = [0.8 + 0.3 * len(steps)] if steps else []
    size = max(6.5 * columns, 9.0), 0.8 + 4.4 * rows + sum(bottom)
    figure = Figure(figsize=size, dpi=120, layout="constrained")
    grid = figure.add_gridspec(rows + len(bottom), columns, height_ratios=(*[4.4] * rows, *bottom))
    for place, precision in enumerate(panels):
        _draw_bars(figure.add_subplot(grid[place // columns, place % columns]), content, precision, method)
    if steps:
        _draw_layers(figure.add_subplot(grid[rows, :]), content)
    shape = "x".join(map(str, content["model"]["input_shape"]))
    figure.suptitle(
        f"{Path(content['model']['path']).name}, input {shape}, on {content['device']['name']}, {method.value}",
        fontsize=13,
    )
    return figure


def _bars(content: Content, precision: str, method: Method) -> tuple[Bars, bool]:
    """Return the fastest variant of each contender, of all TF32 the fastest, and whether heights are relative.

    They are to the best peer that computes in the precision itself; else they are ms per image.
    """
    sizes = batches(content)
    records = {batch: headline(content, precision, batch, method) for batch in sizes}
    relative = all(peers(found) for found in records.values() if found)
    found: Bars = {}
    for place, batch in enumerate(sizes):
        rival = fastest(peers(records[batch]))
        unit = rival["median_s"] if relative and rival else 1e-3 * batch
        for name, best in _best(records[batch]).items():
            found.setdefault(name, []).append((place, best["median_s"] / unit, 1e3 * best["median_s"]))
    return found, relative


def _best(records: Sequence[Content]) -> dict[str, Content]:
    """Return the records that bars are drawn from."""
    strict = [record for record in records if not record["tf32"]]
    chosen = {name: fastest(record for record in strict if record["name"] == name) for name in names(strict)}
    chosen[_TF32] = fastest(peers(records, tf32=True))
    return {name: record for name, record in chosen.items() if record is not None}


def _draw_bars(axes: Any, content: Content, precision: str, method: Method) -> None:
    bars, relative = _bars(content, precision, method)
    width = min(0.8 / len(bars), 0.3)
    for number, (name, points) in enumerate(bars.items()):
        places = [place + (number - (len(bars) - 1) / 2) * width for place, _, _ in points]
        heights = [height for _, height, _ in points]
        small = len(bars) > _MANY_BARS
        drawn = axes.bar(places, heights, width * 0.92, label=name, color=_COLOURS.get(name))
        labels = [_digits(ms if relative else height) for _, height, ms in points]
        axes.bar_label(drawn, labels, fontsize=_SMALL_LABEL_SIZE if small else _LABEL_SIZE, padding=2)
    values = [height for points in bars.values() for _, height, _ in points]
    if max(values) > _LOG_FROM * min(values):
        axes.set_yscale("log")
        axes.set_ylim(min(values) / 2, max(values) * 2)
    else:
        axes.set_ylim(0, max(values) * 1.1)
    if relative:
        axes.axhline(1.0, color="black", linewidth=0.8, linestyle=":", zorder=0)
    axes.set_xticks(range(len(batches(content))), _batch_names(content, precision, method))
    axes.set_xlim(-0.5, len(batches(content)) - 0.5)  # also where a batch size has fewer bars
    axes.set_xlabel("batch size")
    what = "time / best peer's" if relative else "ms per image (median)"
    axes.set_ylabel(what + (", log scale" if axes.get_yscale() == "log" else ""))
    _finish(axes, precision + (" (on the bars: ms per batch)" if relative else ""))


def _batch_names(content: Content, precision: str, method: Method) -> list[str]:
    """Return the batch sizes, with the regime of those that were measured under load."""
    found = []
    for batch in batches(content):
        records = headline(content, precision, batch, method)
        loaded = bool(records) and records[0]["regime"] == Regime.SUSTAINED
        found.append(f"{batch}\n{Regime.SUSTAINED.value}" if loaded else str(batch))
    return found


def _draw_layers(axes: Any, content: Content) -> None:
    batch, ceilings = content["batches"][0], content["ceilings"]
    layers: Sequence[Content] = batch["layers"]
    places = range(len(layers))
    times = [1e3 * layer["median_s"] for layer in layers]
    axes.barh(places, times, 0.72, color=_COLOURS[NAME], label="measured")
    floors = [1e3 * layer["floor_s"] for layer in layers]
    axes.barh(places, floors, 0.36, color=_FLOOR_COLOUR, label="least possible (ceilings of this device)")
    for place, time, layer in zip(places, times, layers, strict=True):
        text = f" {_digits(time)} ms, {layer['percent_of_ceiling']:.0f} %"
        axes.annotate(text, (max(time, 1e3 * layer["floor_s"]), place), va="center", fontsize=8)
    axes.set_yticks(places, [f"{place}  {layer['label']}" for place, layer in enumerate(layers)], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, max(times + floors) * 1.18)
    axes.set_xlabel(f"ms (median, each step alone); ceilings: {ceilings_text(ceilings, batch['precision'])}")
    _finish(axes, f"Steps in {batch['precision']} at batch {batch['batch']}, and percent of the ceiling")


def _finish(axes: Any, title: str) -> None:
    """Draw the title, and under it the legend, above the axes: nothing lies over a bar."""
    axes.set_title(title, fontsize=11, loc="left", pad=24)
    axes.legend(fontsize=9, frameon=False, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.3, ncols=5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)


def _digits(value: float) -> str:
    """Format three significant digits, no exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 0.01 else f"{value:.4f}"
