"""A climb as a chart: a bar a rung on a logarithmic scale, what was predicted of it, and the line to beat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from vgg16gpu.io.figure import save_figure
from vgg16gpu.io.files import atomic_writer
from vgg16gpu_lab.ladder.content import Content

_BAR, _LINE, _PREDICTED, _PUBLISHED = "#0072B2", "#D55E00", "#000000", "#8C8C8C"
_COLUMNS = (1.07, 1.15, 1.25)  # right ends of the numbers, in widths of the chart
PUBLISHED_SIZE: Final = 244  # pixels, of the report


def write_plot(content: Content, path: Path) -> None:
    """Draw it into a .png, .svg or .pdf file."""
    figure = draw(content)
    with atomic_writer(path) as file:
        save_figure(figure, file, path.suffix.lower()[1:], "ladder", bbox_inches="tight", pad_inches=0.15)


def draw(content: Content) -> Any:
    """Draw the chart as a matplotlib figure. Rungs without a time have their place and say why they have none."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - optional, and slow to import

    rungs, line = content["rungs"], 1e3 * content["onnxruntime"]["median_s"]
    figure = Figure(figsize=(11, 1.9 + 0.42 * len(rungs)), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    times = {place: 1e3 * rung["times"]["median_s"] for place, rung in enumerate(rungs) if rung["times"]}
    axes.set_xscale("log")
    axes.barh(list(times), list(times.values()), 0.66, color=_BAR, label="measured")
    axes.axvline(line, color=_LINE, linestyle="--", linewidth=1.2, label=f"onnxruntime, CPU: {digits(line)} ms")
    shown = [line, *times.values(), *_draw_marks(axes, content, times)]
    axes.set_xlim(min(shown) / 2.5, max(shown) * 1.5)
    axes.set_yticks(range(len(rungs)), [f"{rung['letter']}  {rung['name']}" for rung in rungs], fontsize=9)
    axes.set_ylim(len(rungs) - 0.4, -0.6)
    _write_columns(axes, rungs)
    on = "a CPU: " if content["device"]["kind"] == "cpu" else ""
    axes.set_xlabel(f"ms an image, from host to host (median), log scale; on {on}{content['device']['name']}")
    shape = "x".join(map(str, content["model"]["input_shape"]))
    name = Path(content["model"]["path"]).name
    axes.set_title(f"{name}, input {shape}: from naive kernels to the fastest", fontsize=12, loc="left", pad=28)
    axes.legend(fontsize=8, frameon=False, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.3, ncols=4)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(axis="x", color="#DDDDDD", linewidth=0.6)
    return figure


def digits(value: float) -> str:
    """Format three significant digits, no exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _draw_marks(axes: Any, content: Content, times: Mapping[int, float]) -> list[float]:
    """Draw a rung's prediction, from the time of the one before, and the report's time. Return where they stand."""
    rungs: list[Content] = content["rungs"]
    marks: list[float] = []
    if content["device"]["kind"] == "cuda":  # what predictions are for
        predicted = {
            place: times[place] * rungs[place]["gain"]["measured"] / rungs[place]["gain"]["predicted"]
            for place in times
            if rungs[place]["gain"]["measured"]
        }
        axes.plot(list(predicted.values()), list(predicted), "|", color=_PREDICTED, markersize=15, label="predicted")
        marks += predicted.values()
    if content["model"]["input_shape"][-1] == PUBLISHED_SIZE:
        published = {place: rung["published_ms"] for place, rung in enumerate(rungs) if rung["published_ms"]}
        label = "published, another card"
        axes.plot(list(published.values()), list(published), "D", color=_PUBLISHED, markersize=5, label=label)
        marks += published.values()
    return marks


def _write_columns(axes: Any, rungs: Sequence[Content]) -> None:
    """Write times and gains to the right of the bars, where nothing is in their way."""
    style = {"xycoords": axes.get_yaxis_transform(), "va": "center", "ha": "right", "fontsize": 8.5}
    for head, at in zip(("ms", "gain", "predicted"), _COLUMNS, strict=True):
        axes.annotate(head, (at, -0.9), annotation_clip=False, **{**style, "color": _PUBLISHED})
    for place, rung in enumerate(rungs):
        if not rung["times"]:
            text = "wrong scores" if rung["status"] == "wrong" else "not here"
            axes.annotate(text, (_COLUMNS[-1], place), **{**style, "color": _PUBLISHED})
            continue
        gain = rung["gain"]
        cells = (digits(1e3 * rung["times"]["median_s"]), *(_times(gain[key]) for key in ("measured", "predicted")))
        for text, at in zip(cells, _COLUMNS, strict=True):
            axes.annotate(text, (at, place), **style)


def _times(gain: float | None) -> str:
    return f"{digits(gain)}x" if gain else ""
