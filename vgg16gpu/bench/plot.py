"""A result as a picture: time per image beside the peers', and where our time goes."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vgg16gpu.bench.ours import NAME
from vgg16gpu.bench.report import Content, best_entry, names
from vgg16gpu.bench.timing import Method
from vgg16gpu.errors import InputError
from vgg16gpu.files import atomic_writer

SUFFIXES = (".png", ".svg", ".pdf")

_COLOURS = {NAME: "#0072B2", "torch": "#D55E00", "onnxruntime": "#8C8C8C"}  # apart for colour-blind readers too
_FLOOR_COLOUR = "#B8D4E8"
_LOG_FROM = 20  # ratio of the longest to the shortest bar from which on a linear axis hides the short ones


def check_plot(path: Path) -> None:
    """Raise InputError, before anything is measured, when a plot could not be written to `path`."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"plot '{path}' has the ending '{path.suffix}'; accepted are {', '.join(SUFFIXES)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError("--plot needs matplotlib, which is not installed: pip install matplotlib")


def write_plot(content: Content, path: Path) -> None:
    """Draw the result into a .png, .svg or .pdf file. Raises ModelError when it cannot be written."""
    figure = draw(content)
    with atomic_writer(path) as file:
        figure.savefig(file, format=path.suffix.lower()[1:])


def draw(content: Content) -> Any:
    """The result as a matplotlib figure."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - optional, and slow to import

    # On a CPU there is nothing to copy: both methods would show the same.
    shown = (
        (Method.BACK_TO_BACK, Method.HOST_TO_HOST) if content["device"]["kind"] == "cuda" else (Method.HOST_TO_HOST,)
    )
    layers = content["batches"][0]["layers"]
    figure = Figure(figsize=(max(6.5 * len(shown), 9.0), 5.2 + 0.3 * len(layers)), dpi=120, layout="constrained")
    grid = figure.add_gridspec(2, len(shown), height_ratios=(4.4, 0.8 + 0.3 * len(layers)))
    for column, method in enumerate(shown):
        _draw_bars(figure.add_subplot(grid[0, column]), content, method)
    _draw_layers(figure.add_subplot(grid[1, :]), content["batches"][0], content["ceilings"])
    model, device = content["model"], content["device"]
    shape = "x".join(map(str, model["input_shape"]))
    figure.suptitle(
        f"{Path(model['path']).name}, input {shape}, {model['precision']}, on {device['name']}", fontsize=13
    )
    return figure


def _bars(content: Content, method: Method) -> dict[str, list[tuple[int, float]]]:
    """For each contender (place of the batch size, ms per image) of its fastest variant."""
    found: dict[str, list[tuple[int, float]]] = {}
    for place, batch in enumerate(content["batches"]):
        for name in names(batch):
            if entry := best_entry(batch, name, method):
                milliseconds = 1e3 * entry["times"][method.value]["median_s"] / batch["batch"]
                found.setdefault(name, []).append((place, milliseconds))
    return found


def _draw_bars(axes: Any, content: Content, method: Method) -> None:
    bars = _bars(content, method)
    width = min(0.8 / len(bars), 0.3)
    for number, (name, points) in enumerate(bars.items()):
        places = [place + (number - (len(bars) - 1) / 2) * width for place, _ in points]
        heights = [height for _, height in points]
        drawn = axes.bar(places, heights, width * 0.92, label=name, color=_COLOURS.get(name))
        axes.bar_label(drawn, [_digits(height) for height in heights], fontsize=8, padding=2)
    values = [height for points in bars.values() for _, height in points]
    if max(values) > _LOG_FROM * min(values):
        axes.set_yscale("log")
        axes.set_ylim(min(values) / 2, max(values) * 2)
    else:
        axes.set_ylim(0, max(values) * 1.1)
    axes.set_xticks(range(len(content["batches"])), [str(batch["batch"]) for batch in content["batches"]])
    axes.set_xlabel("batch size")
    axes.set_ylabel("ms per image (median)" + (", log scale" if axes.get_yscale() == "log" else ""))
    place = "on the device" if method is Method.BACK_TO_BACK else "copies included"
    _finish(axes, f"{method.value.capitalize()} ({place})")


def _draw_layers(axes: Any, batch: Content, ceilings: Content) -> None:
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
    axes.set_xlabel(
        f"ms (median, each step alone); ceilings: {ceilings['flop_per_s'] / 1e12:.3g} TFLOP/s FFMA, "
        f"{ceilings['bytes_per_s'] / 1e9:.3g} GB/s copy"
    )
    _finish(axes, f"Steps at batch {batch['batch']}, and percent of the ceiling")


def _finish(axes: Any, title: str) -> None:
    """The title, and under it the legend, above the axes: nothing lies over a bar."""
    axes.set_title(title, fontsize=11, loc="left", pad=24)
    axes.legend(fontsize=9, frameon=False, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.3, ncols=3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)


def _digits(value: float) -> str:
    """Three significant digits, no exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 0.01 else f"{value:.4f}"
