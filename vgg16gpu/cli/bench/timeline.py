"""`bench --timeline`: when each block of a run computes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from vgg16gpu.bench.timeline.measure import Timeline, Wanted, measure
from vgg16gpu.bench.timeline.page import page
from vgg16gpu.bench.timeline.summary import COLUMNS, content, lines
from vgg16gpu.cli.bench.deliver import deliver
from vgg16gpu.cli.bench.options import Options
from vgg16gpu.cli.common.options import find_model
from vgg16gpu.cli.common.show import add_row, console, table
from vgg16gpu.compiler.model import Model
from vgg16gpu.io.files import atomic_writer


def draw_timeline(options: Options, say: Callable[[str], None]) -> None:
    """Measure each precision, write the page, show the tables."""
    assert options.timeline is not None  # or it would be another benchmark
    wanted = Wanted(
        Model(find_model(options.model)),
        options.device,
        options.precisions,
        options.kernels,
        options.size,
        max(options.batches, default=1),
        options.outputs,
    )
    timelines = []
    for precision in wanted.precisions:
        say(f"{precision}: building the engine, with stamps in its kernels")
        timelines.append(measure(wanted, precision))
    with atomic_writer(options.timeline) as file:
        file.write(page(wanted.model.name, timelines).encode())
    deliver(content(timelines), options, lambda _: _show(timelines))


def _show(timelines: Sequence[Timeline]) -> None:
    for timeline in timelines:
        _show_one(timeline)


def _show_one(timeline: Timeline) -> None:
    columns = ["microseconds", "blocks", *COLUMNS]
    shown = table(columns, right=columns[1:])
    for line in lines(timeline):
        add_row(shown, line.label, line.blocks, *("" if math.isnan(each) else f"{each:.2f}" for each in line.numbers))
    screen = console()
    screen.print(f"{timeline.precision}, batch {timeline.batch}, {timeline.device}: {timeline.span_us:.1f} us")
    screen.print(shown)
