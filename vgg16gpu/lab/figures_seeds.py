"""Which figures an experiment has: those of its report, those that it announces, and a roofline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from vgg16gpu.lab.baseline import CUDNN
from vgg16gpu.lab.comparison import NAME as COMPARISON
from vgg16gpu.lab.figures_data import (
    SIZE,
    TIME,
    Chart,
    Content,
    HeatMap,
    Panel,
    Picture,
    both_panels,
    by_setting,
    method,
    number_of,
    our_title,
    ours,
    roofline,
    series,
    size_of,
    suffix,
    table,
    told,
)
from vgg16gpu.lab.figures_lenet import lenet_charts

BLOCK: Final = "block: threads a side"
SHOWN_SIZE: Final = 1024  # of the figures that S2 has of one size; the largest where it was not run
SHOWN_STRIDE: Final = 2
MODES: Final = ("basic", "shared", "registers")
OWN_TILE: Final = "own tile"  # of methods without the blocks of the others
S4_TABLES: Final[Mapping[str, str]] = {
    "conv2d": "published point",
    "simple": "simple kernel",
    "winograd": "Winograd's layer",
}


def pictures(record: Content) -> Iterator[Picture]:
    """Every figure of a record, those without any number too."""
    name = record["experiment"]
    if name in _FIGURES:
        yield from _FIGURES[name](record)
    yield roofline(record)


def _s1(record: Content) -> Iterator[Picture]:
    for setting, rows in by_setting(table(record, "methods"), "stride", "channels", "outputs"):
        title = f"S1: methods over image sizes, 3x3{told(setting)}"
        yield Chart(f"S1-methods{suffix(setting)}", title, both_panels(record, rows, method, size_of), SIZE, TIME)


def _s2(record: Content) -> Iterator[Picture]:
    yield from _s2_memory(record)
    yield from _s2_partition(record)
    yield from _s2_stride(record)
    for size in dict.fromkeys(row["size"] for row in table(record, "layer")):
        rows = [row for row in table(record, "layer") if row["size"] == size]
        title = f"S2: a layer of 64 output channels, image {size}x{size}, im2col included"
        panel = Panel(our_title(record), series(rows, ours, lambda _: "", method))
        yield Chart(f"S2-layer-bars-{size}", title, (panel,), "method", TIME, bars=True)


def _s2_memory(record: Content) -> Iterator[Picture]:
    for setting, rows in by_setting(table(record, "gemm_memory"), "channels", "outputs"):
        end, text = suffix(setting), told(setting)
        shown, size = _shown(rows, size_of, SHOWN_SIZE)
        title = f"S2: GEMM by memory mode and block, image {size}x{size}{text}"
        panels = both_panels(record, shown, _block, method)
        yield Chart(f"S2-memory-bars{end}", title, panels, "memory mode", TIME, bars=True)
        for mode in MODES:
            alone = mode == "registers"  # a method without blocks is drawn beside it: a true register tile
            chosen = [row for row in rows if row["method"] == mode or (alone and not number_of(row, "block"))]
            title = f"S2: GEMM, memory mode '{mode}', by image size and block{text}"
            panels = both_panels(record, chosen, _block_or_method, size_of)
            yield Chart(f"S2-memory-{mode}-lines{end}", title, panels, SIZE, TIME)


def _s2_partition(record: Content) -> Iterator[Picture]:
    for setting, rows in by_setting(table(record, "gemm_partition"), "channels", "outputs"):
        end = suffix(setting)
        shown, size = _shown(rows, size_of, SHOWN_SIZE)
        title = f"S2: GEMM by partition and block, image {size}x{size}{told(setting)}"
        panels = both_panels(record, shown, _block, method)
        yield Chart(f"S2-partition-bars{end}", title, panels, "partition", TIME, bars=True)
        panels = both_panels(record, shown, method, lambda row: number_of(row, "block"))
        yield Chart(f"S2-partition-lines{end}", title, panels, BLOCK, TIME)


def _s2_stride(record: Content) -> Iterator[Picture]:
    for setting, rows in by_setting(table(record, "stride"), "channels", "outputs"):
        end, text = suffix(setting), told(setting)
        shown, size = _shown(rows, size_of, SHOWN_SIZE)
        title = f"S2: tasks by stride, image {size}x{size}{text}"
        yield from _bars_and_lines(record, ("S2-stride", end), title, shown, _stride, "stride")
        shown, stride = _shown(rows, _stride, SHOWN_STRIDE)
        title = f"S2: tasks by image size, stride {stride}{text}"
        yield from _bars_and_lines(record, ("S2-size", end), title, shown, size_of, SIZE)


def _bars_and_lines(
    record: Content,
    name: tuple[str, str],
    title: str,
    rows: Sequence[Content],
    place: Callable[[Content], int],
    x_label: str,
) -> Iterator[Chart]:
    begin, end = name
    panels = both_panels(record, rows, method, lambda row: str(place(row)))
    yield Chart(f"{begin}-bars{end}", title, panels, x_label, TIME, bars=True)
    yield Chart(f"{begin}-lines{end}", title, both_panels(record, rows, method, place), x_label, TIME)


def _shown(rows: Sequence[Content], number: Callable[[Content], int], wanted: int) -> tuple[list[Content], int]:
    """The rows of the number wanted, or of the largest that there is; and that number."""
    known = {number(row) for row in rows}
    chosen = wanted if wanted in known else max(known, default=wanted)
    return [row for row in rows if number(row) == chosen], chosen


def _s4(record: Content) -> Iterator[Picture]:
    rows = table(record, "chart")
    as_many = all(row["problem"]["outputs"] == row["problem"]["channels"] for row in rows)
    for setting, chosen in by_setting(rows, "stride", *(() if as_many else ("outputs",))):
        yield HeatMap(
            f"S4-map{suffix(setting)}",
            f"S4: cuDNN's time / ours{', as many outputs as channels' if as_many else ''}{told(setting)}",
            tuple(_ratios(chosen).items()),
            tuple(sorted({size_of(row) for row in chosen})),
            tuple(sorted({row["problem"]["channels"] for row in chosen})),
            "above 1: ours is faster",
            "no image has a time of ours and one of cuDNN",
        )
    panels = {name: _s4_panel(table(record, name), text) for name, text in S4_TABLES.items()}
    panels["conv2d"] = _with_claim(record, panels["conv2d"])
    shown = tuple(panel for panel in panels.values() if panel.values)
    yield Chart("S4-bars", f"S4: three problems, {our_title(record)}", shown, "", TIME, bars=True, shared_y=False)


def _s4_panel(rows: Sequence[Content], text: str) -> Panel:
    """Bars of one problem."""
    problem = rows[0]["problem"] if rows else {}
    shape = "{channels}x{height}x{width} to {outputs}, {kernel}x{kernel}".format_map(problem) if rows else ""
    return Panel(f"{text}: {shape}", series(rows, ours, lambda _: "", method))


def _with_claim(record: Content, point: Panel) -> Panel:
    """The time that theirs would have by the published ratio, at the published point."""
    claim = next((row for row in table(record, "claim") if row["ours"]), None)
    library = next((row["ours"] for row in table(record, "conv2d") if row["method"] == CUDNN), None)
    if claim is None or library is None:
        return point
    text = f"\ndashed: published speed, {claim['theirs']:g} times cuDNN's"
    return replace(point, title=point.title + text, line=library / claim["theirs"])


def _ratios(rows: Sequence[Content]) -> dict[str, dict[tuple[int, int], float]]:
    """By method: CuDNN's time / ours of a size and a number of channels, where there are both."""
    times = {(row["method"], size_of(row), row["problem"]["channels"]): row["ours"] for row in rows}
    found: dict[str, dict[tuple[int, int], float]] = {}
    for (name, *shape), time in times.items():
        size, channels = shape
        library = times.get((CUDNN, size, channels))
        if name != CUDNN and time and library:
            found.setdefault(name.replace("_", " "), {})[size, channels] = library / time
    return found


def _s5(record: Content) -> Iterator[Picture]:
    for name, net in (("vgg16", "VGG16 on 3x{0}x{0}"), ("own model", "a model of yours, {0} pixels a side")):
        rows = table(record, name)
        for size in dict.fromkeys(row["size"] for row in rows):
            chosen = [row for row in rows if row["size"] == size]
            panels = both_panels(record, chosen, lambda row: f"iterations: {number_of(row, 'iterations')}", method)
            title = f"S5: {net.format(size)}, an image from host to host"
            yield Chart(f"S5-versions-{size}", title, panels, "version", "time in ms (mean)", bars=True)


def _comparison(record: Content) -> Iterator[Picture]:
    names = ("batch", "channels", "outputs", "kernel", "stride", "padding")
    for number, (setting, rows) in enumerate(by_setting(table(record, "problems"), *names)):
        panel = Panel(our_title(record), series(rows, ours, lambda row: f"{row['size']} pixels a side", method))
        end = f"-{number + 1}" if number else ""
        yield Chart(f"{COMPARISON}-bars{end}", f"Side by side{told(setting)}", (panel,), "", TIME, bars=True)


def _stride(row: Content) -> int:
    return int(row["problem"]["stride"])


def _block(row: Content) -> str:
    block = number_of(row, "block")
    return f"block {block}" if block else OWN_TILE


def _block_or_method(row: Content) -> str:
    return _block(row) if number_of(row, "block") else method(row)


_FIGURES: Final[Mapping[str, Callable[[Content], Iterator[Picture]]]] = {
    "S1": _s1,
    "S2": _s2,
    "S3": lenet_charts,
    "S4": _s4,
    "S5": _s5,
    COMPARISON: _comparison,
}
