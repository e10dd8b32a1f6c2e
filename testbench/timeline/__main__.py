"""Draw when each block of a run computes: `python -m testbench.timeline MODEL --page FILE.html`.

By kernels that note, for every block of every launch, when it began, had its operands, its sums, and ended, and on
which multiprocessor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from testbench.timeline.measure import Timeline, Wanted, measure
from testbench.timeline.page import page
from testbench.timeline.summary import COLUMNS, content, lines
from vgg16gpu.cli import OneLineErrors, main
from vgg16gpu.cli.bench.deliver import deliver, progress
from vgg16gpu.cli.common.options import (
    batch_option,
    device_option,
    find_model,
    json_option,
    kernels_option,
    model_argument,
    outputs_option,
    precisions_option,
    size_option,
)
from vgg16gpu.cli.common.show import add_row, console, table
from vgg16gpu.compiler.model import Model
from vgg16gpu.io.files import atomic_writer, check_outputs


@dataclass(frozen=True)
class Options:
    """The command line, as values."""

    model: str | None
    device: str
    precisions: tuple[str, ...]
    kernels: str
    size: tuple[int, int] | None
    outputs: tuple[str, ...] | None
    batch: int | None
    page: Path
    output: Path | None
    as_json: bool


@click.command("timeline", cls=OneLineErrors)
@model_argument()
@device_option
@precisions_option("fp32")
@kernels_option
@size_option
@outputs_option
@batch_option()
@click.option("--page", type=click.Path(path_type=Path), required=True, metavar="FILE", help="The .html to write.")
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the numbers as JSON.")
@json_option
def timeline_command(**values: Any) -> None:
    """Draw when each block of a run (of --batch 1) begins, has its operands, its sums, and ends."""
    options = Options(**values)
    check_outputs({"--page": options.page, "--output": options.output}, [("the model", find_model(options.model))])
    wanted = Wanted(
        Model(find_model(options.model)),
        options.device,
        options.precisions,
        options.kernels,
        options.size,
        options.batch or 1,
        options.outputs,
    )
    timelines, say = [], progress(options)
    for precision in wanted.precisions:
        say(f"{precision}: building the engine, with stamps in its kernels")
        timelines.append(measure(wanted, precision))
    with atomic_writer(options.page) as file:
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


if __name__ == "__main__":
    main(timeline_command, "python -m testbench.timeline")
