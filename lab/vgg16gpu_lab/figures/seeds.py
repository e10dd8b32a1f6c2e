"""Which figures an experiment has: those of its report, those that it announces, and a roofline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from vgg16gpu_lab.experiments.comparison import NAME as COMPARISON
from vgg16gpu_lab.figures.data import (
    TIME,
    Chart,
    Content,
    Panel,
    Picture,
    by_setting,
    method,
    our_title,
    ours,
    roofline,
    series,
    table,
    told,
)
from vgg16gpu_lab.figures.lenet import lenet_charts
from vgg16gpu_lab.figures.s1 import s1_charts
from vgg16gpu_lab.figures.s2 import s2_charts
from vgg16gpu_lab.figures.s4 import s4_pictures
from vgg16gpu_lab.figures.s5 import s5_charts


def pictures(record: Content) -> Iterator[Picture]:
    """Yield every figure of a record, those without any number too."""
    name = record["experiment"]
    if name in _FIGURES:
        yield from _FIGURES[name](record)
    yield roofline(record)


def _comparison(record: Content) -> Iterator[Picture]:
    names = ("batch", "channels", "outputs", "kernel", "stride", "padding")
    for number, (setting, rows) in enumerate(by_setting(table(record, "problems"), *names)):
        panel = Panel(our_title(record), series(rows, ours, lambda row: f"{row['size']} pixels a side", method))
        end = f"-{number + 1}" if number else ""
        yield Chart(f"{COMPARISON}-bars{end}", f"Side by side{told(setting)}", (panel,), "", TIME, bars=True)


_FIGURES: Final[Mapping[str, Callable[[Content], Iterator[Picture]]]] = {
    "S1": s1_charts,
    "S2": s2_charts,
    "S3": lenet_charts,
    "S4": s4_pictures,
    "S5": s5_charts,
    COMPARISON: _comparison,
}
