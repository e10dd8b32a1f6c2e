"""The figures of S1: methods over image sizes, for every stride."""

from __future__ import annotations

from collections.abc import Iterator

from vgg16gpu_lab.experiments.s1 import LARGER
from vgg16gpu_lab.figures.data import (
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
    """Yield a chart for each stride, number of channels and of outputs; powers of two, where any, have their own."""
    for setting, rows in by_setting(table(record, "methods"), "stride", "channels", "outputs"):
        usual = [row for row in rows if size_of(row) not in LARGER]
        for name, kind, shown in (
            ("methods", "image sizes", usual),
            ("powers", "image sizes, powers of two", [row for row in rows if row not in usual]),
        ):
            if shown:
                title = f"S1: methods over {kind}, 3x3{told(setting)}"
                panels = both_panels(record, shown, method, size_of)
                yield Chart(f"S1-{name}{suffix(setting)}", title, panels, SIZE, TIME)
