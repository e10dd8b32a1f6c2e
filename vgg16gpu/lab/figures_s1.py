"""The figures of S1: methods over image sizes, for every stride."""

from __future__ import annotations

from collections.abc import Iterator

from vgg16gpu.lab.figures_data import (
    SIZE,
    TIME,
    Chart,
    Content,
    both_panels,
    by_setting,
    method,
    size_of,
    suffix,
    table,
    told,
)


def s1_charts(record: Content) -> Iterator[Chart]:
    """A chart for each stride, and for each number of channels and outputs."""
    for setting, rows in by_setting(table(record, "methods"), "stride", "channels", "outputs"):
        title = f"S1: methods over image sizes, 3x3{told(setting)}"
        yield Chart(f"S1-methods{suffix(setting)}", title, both_panels(record, rows, method, size_of), SIZE, TIME)
