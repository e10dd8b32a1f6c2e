"""What `lab` prints: the list of variants, and an experiment's tables, ours beside theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vgg16gpu.cli.show import add_row, console, heading, table
from vgg16gpu.lab.experiment import Experiment, Row
from vgg16gpu.lab.measure import NOTES, Status
from vgg16gpu.lab.published import CARDS
from vgg16gpu.lab.stand import Stand
from vgg16gpu.lab.variant import Variant


def print_list(experiments: Sequence[Experiment], variants: Sequence[Variant]) -> None:
    """Both tables, on stdout."""
    screen = console()
    shown = table(["experiment", "title", "teaches"])
    for experiment in experiments:
        add_row(shown, experiment.name, experiment.title, experiment.teaches)
    screen.print(shown)
    shown = table(["variant", "title", "teaches", "parameters", "seeds"])
    for variant in variants:
        parameters = " ".join(f"{name}={','.join(map(str, values))}" for name, values in variant.parameters.items())
        add_row(shown, variant.name, variant.title, variant.teaches, parameters, " ".join(variant.seeds))
    screen.print(shown)


def print_rows(experiment: Experiment, rows: Sequence[Row], stand: Stand) -> None:
    """A table for each of the seed's, and how it was measured, on stdout."""
    screen, facts, ceilings = console(), stand.device.facts, stand.ceilings
    kind = " (times of a CPU)" if facts.kind == "cpu" else ""
    heading(screen, f"{experiment.name}: {experiment.title}, on {facts.name}{kind}")
    screen.print(experiment.teaches, markup=False)
    for name in dict.fromkeys(row.table for row in rows):
        heading(screen, f"{experiment.name} {name}")
        screen.print(_table([row for row in rows if row.table == name]))
    screen.print(f"{experiment.method(stand)}.", markup=False)
    screen.print(NOTES, markup=False)
    roofline = f"{ceilings.flop_per_s / 1e12:.3g} TFLOP/s FFMA, {ceilings.bytes_per_s / 1e9:.4g} GB/s copy, measured"
    card = CARDS.get(experiment.name)
    theirs = f"; theirs: {card.name}, by its data sheet" if card else "; theirs: no card is named"
    screen.print(f"Roofline of ours: {roofline}{theirs}.", markup=False)


def _table(rows: Sequence[Row]) -> Any:
    if all(row.unit == "ratio" for row in rows):
        shown = table(["size", "method", "parameter", "theirs", "ours", "remark"], right=["theirs", "ours"])
        for row in rows:
            cells = _number(row.theirs), _number(row.ours), row.remark
            style = "red" if row.status.is_fault else None
            add_row(shown, row.size, row.method, row.parameter.replace("ratio_not_ms", "ratio"), *cells, style=style)
        return shown
    numbers = ["theirs ms", "theirs %", "ours ms", "ours %", "cold ms", "convert ms", "samples", "error"]
    shown = table(["size", "method", "parameter", *numbers, "remark"], right=[*numbers])
    for row in rows:
        style = "red" if row.status.is_fault else None
        add_row(shown, row.size, row.method, row.parameter, *_cells(row), style=style)
    return shown


def _cells(row: Row) -> list[str]:
    found = row.measurement
    about = "~" if row.status is Status.ESTIMATED else ""
    cold, convert, samples, error = (None, None, "-", "-")
    if found:
        seconds = found.seconds(row.scope, cold=True)
        cold = None if seconds is None else 1e3 * seconds
        convert = 1e3 * found.convert.warm.median_s if found.convert else None
        samples = str(found.compute.warm.samples) if found.compute else "-"
        error = "-" if found.error is None else f"{found.error:.1e}"
    word = "" if row.status in (Status.RIGHT, Status.MISSING) else f"{row.status.value.upper()}: "
    return [
        _number(row.theirs),
        _percent(row.theirs_percent),
        f"{about}{_number(row.ours)}",
        _percent(row.ours_percent),
        _number(cold),
        _number(convert),
        samples,
        error,
        f"{word}{row.remark}",
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}" if value < 1000 else f"{value:.0f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}"
