"""The figures of S5: versions of a whole network, at each image size."""

from __future__ import annotations

from collections.abc import Iterator

from vgg16gpu.lab.figures_data import Chart, Content, both_panels, method, number_of, table


def s5_charts(record: Content) -> Iterator[Chart]:
    """A chart for each size."""
    for name, net in (("vgg16", "VGG16 on 3x{0}x{0}"), ("own model", "a model of yours, {0} pixels a side")):
        rows = table(record, name)
        for size in dict.fromkeys(row["size"] for row in rows):
            chosen = [row for row in rows if row["size"] == size]
            panels = both_panels(record, chosen, lambda row: f"iterations: {number_of(row, 'iterations')}", method)
            title = f"S5: {net.format(size)}, an image from host to host"
            yield Chart(f"S5-versions-{size}", title, panels, "version", "time in ms (mean)", bars=True)
