"""The figures of S2: GEMM by memory mode, block and partition, tasks by stride and size, a layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from vgg16gpu_lab.figures.data import (
    SIZE,
    TIME,
    Chart,
    Content,
    Panel,
    both_panels,
    by_setting,
    method,
    number_of,
    our_title,
    ours,
    series,
    size_of,
    suffix,
    table,
    told,
)

BLOCK: Final = "block: threads a side"
SHOWN_SIZE: Final = 1024  # of the figures that there are of one size; the largest where it was not run
SHOWN_STRIDE: Final = 2
MODES: Final = ("basic", "shared", "registers")
OWN_TILE: Final = "own tile"  # of methods without the blocks of the others


def s2_charts(record: Content) -> Iterator[Chart]:
    """Yield charts of memory modes, partitions, strides, and the layer that they left out."""
    yield from _s2_memory(record)
    yield from _s2_partition(record)
    yield from _s2_stride(record)
    for size in dict.fromkeys(row["size"] for row in table(record, "layer")):
        rows = [row for row in table(record, "layer") if row["size"] == size]
        title = f"S2: a layer of 64 output channels, image {size}x{size}, im2col included"
        panel = Panel(our_title(record), series(rows, ours, lambda _: "", method))
        yield Chart(f"S2-layer-bars-{size}", title, (panel,), "method", TIME, bars=True)


def _s2_memory(record: Content) -> Iterator[Chart]:
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


def _s2_partition(record: Content) -> Iterator[Chart]:
    for setting, rows in by_setting(table(record, "gemm_partition"), "channels", "outputs"):
        end = suffix(setting)
        shown, size = _shown(rows, size_of, SHOWN_SIZE)
        title = f"S2: GEMM by partition and block, image {size}x{size}{told(setting)}"
        panels = both_panels(record, shown, _block, method)
        yield Chart(f"S2-partition-bars{end}", title, panels, "partition", TIME, bars=True)
        panels = both_panels(record, shown, method, lambda row: number_of(row, "block"))
        yield Chart(f"S2-partition-lines{end}", title, panels, BLOCK, TIME)


def _s2_stride(record: Content) -> Iterator[Chart]:
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
    """Return the rows of the number wanted, or of the largest that there is; and that number."""
    known = {number(row) for row in rows}
    chosen = wanted if wanted in known else max(known, default=wanted)
    return [row for row in rows if number(row) == chosen], chosen


def _stride(row: Content) -> int:
    return int(row["problem"]["stride"])


def _block(row: Content) -> str:
    block = number_of(row, "block")
    return f"block {block}" if block else OWN_TILE


def _block_or_method(row: Content) -> str:
    return _block(row) if number_of(row, "block") else method(row)
