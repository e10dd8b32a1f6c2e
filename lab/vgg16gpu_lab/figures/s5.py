"""The figures of S5: versions of a whole network, its causes in every order, and version B layer by layer."""

from __future__ import annotations

from collections.abc import Iterator

from vgg16gpu_lab.figures.data import (
    Cell,
    Chart,
    Content,
    Panel,
    both_panels,
    method,
    number_of,
    our_title,
    ours,
    series,
    table,
)


def s5_charts(record: Content) -> Iterator[Chart]:
    """Yield a chart of each for each size."""
    for name, net in (("vgg16", "VGG16 on 3x{0}x{0}"), ("own model", "a model of yours, {0} pixels a side")):
        for size, rows in _by_size(record, name):
            panels = both_panels(record, rows, lambda row: f"iterations: {number_of(row, 'iterations')}", method)
            title = f"S5: {net.format(size)}, an image from host to host"
            yield Chart(f"S5-versions-{size}", title, panels, "version", "time in ms (mean)", bars=True)
    for size, rows in _by_size(record, "causes"):
        panel = Panel(our_title(record), series(rows, ours, lambda row: f"grid: {row['method'][-2:]}", _without_grid))
        title = f"S5: three causes, alone and together, 3x{size}x{size}"
        yield Chart(f"S5-causes-{size}", title, (panel,), "bias, ReLU and padding; sum", "time in ms (mean)", bars=True)
    for size, rows in _by_size(record, "layers"):
        panel = Panel(our_title(record), series(rows, _a_product, method, _layer))
        title = f"S5: version B layer by layer, 3x{size}x{size}"
        yield Chart(f"S5-layers-{size}", title, (panel,), "layer", "time of a product in ns", bars=True)


def _by_size(record: Content, name: str) -> Iterator[tuple[str, list[Content]]]:
    rows = table(record, name)
    for size in dict.fromkeys(row["size"] for row in rows):
        yield size, [row for row in rows if row["size"] == size]


def _without_grid(row: Content) -> str:
    return str(row["method"][:-3])


def _layer(row: Content) -> str | None:
    """Return the layer; None for a pool, which multiplies nothing."""
    name = str(row["parameter"])
    return None if name.startswith("pool") else name


def _a_product(row: Content) -> Cell:
    found = row["details"].get("ns_a_product")
    return Cell(found, ours(row).note)
