"""What `lab` prints: the list of variants, and an experiment's tables, ours beside theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias

from rich.console import Console
from rich.table import Table

from vgg16gpu.cli.common.show import add_row, console, fitting, heading, table
from vgg16gpu.io.shown import printable_lines
from vgg16gpu_lab.experiment import Experiment, Row
from vgg16gpu_lab.measure.bench_rig import BenchRig
from vgg16gpu_lab.measure.measure import NOTES, Status
from vgg16gpu_lab.published import CARDS
from vgg16gpu_lab.variant import Variant

_LEAST_NEEDED: Final = ("theirs %", "samples", "cold ms", "ours %", "convert ms", "error", "parameter")  # first to go
_TEXTS: Final = ("size", "method", "parameter", "remark")  # the other columns are numbers

Note: TypeAlias = tuple[str, str]  # a remark, and what a compiler wrote
Notes: TypeAlias = Mapping[Note, int]  # their numbers


def print_list(experiments: Sequence[Experiment], variants: Sequence[Variant]) -> None:
    """Print both tables on stdout."""
    screen = console()
    screen.print(fitting(screen, partial(_experiments, experiments), ()))
    screen.print(fitting(screen, partial(_variants, variants), ("seeds", "parameters")))


def print_rows(experiment: Experiment, rows: Sequence[Row], rig: BenchRig) -> None:
    """Print each of the seed's tables with its remarks below, and how it was measured, on stdout."""
    screen, facts, ceilings = console(), rig.device.facts, rig.ceilings
    kind = " (times of a CPU)" if facts.kind == "cpu" else ""
    heading(screen, f"{experiment.name}: {experiment.title}, on {facts.name}{kind}")
    screen.print(experiment.teaches, markup=False)
    for name in dict.fromkeys(row.table for row in rows):
        heading(screen, f"{experiment.name} {name}")
        _print_table(screen, [row for row in rows if row.table == name])
    screen.print(f"{experiment.method(rig)}.", markup=False)
    screen.print(NOTES, markup=False)
    roofline = f"{ceilings.flop_per_s / 1e12:.3g} TFLOP/s FFMA, {ceilings.bytes_per_s / 1e9:.4g} GB/s copy, measured"
    card = CARDS.get(experiment.name)
    theirs = f"; theirs: {card.name}, by its data sheet" if card else "; theirs: no card is named"
    screen.print(f"Roofline of ours: {roofline}{theirs}.", markup=False)


def _experiments(shown: Sequence[Experiment], _: Sequence[str]) -> Table:
    target = table(["experiment", "title", "teaches"])
    for experiment in shown:
        add_row(target, experiment.name, experiment.title, experiment.teaches)
    return target


def _variants(shown: Sequence[Variant], omitted: Sequence[str]) -> Table:
    columns = [name for name in ("variant", "title", "teaches", "parameters", "seeds") if name not in omitted]
    target = table(columns)
    for variant in shown:
        cells = {
            "variant": variant.name,
            "title": variant.title,
            "teaches": variant.teaches,
            "parameters": " ".join(
                f"{name}={','.join(map(str, values))}" for name, values in variant.parameters.items()
            ),
            "seeds": " ".join(variant.seeds),
        }
        add_row(target, *(cells[name] for name in columns))
    return target


def _print_table(screen: Console, rows: Sequence[Row]) -> None:
    """Print a table, remarks as numbered lines: in a column they would take the room of the numbers."""
    found = [note for note in dict.fromkeys(map(_note, rows)) if any(note)]
    notes = {note: number for number, note in enumerate(found, 1)}
    screen.print(fitting(screen, partial(_table, rows, notes), _LEAST_NEEDED))
    for (remark, output), number in notes.items():
        screen.print(f"({number}) {remark}", markup=False)
        if output:
            screen.print(printable_lines(output), markup=False, soft_wrap=True)


def _note(row: Row) -> Note:
    return row.remark, row.measurement.output if row.measurement else ""


def _table(rows: Sequence[Row], notes: Notes, omitted: Sequence[str]) -> Table:
    unit = "" if all(row.unit == "ratio" for row in rows) else " ms"
    lines = [_cells(row, unit, notes) for row in rows]
    columns = [name for name in lines[0] if name not in omitted and any(line[name] not in ("", "-") for line in lines)]
    shown = table(columns, right=[name for name in columns if name not in _TEXTS])
    for row, line in zip(rows, lines, strict=True):
        add_row(shown, *(line[name] for name in columns), style="red" if row.status.is_fault else None)
    return shown


def _cells(row: Row, unit: str, notes: Notes) -> dict[str, str]:
    """Return a row's cells by column."""
    found = row.measurement
    about = "~" if row.status is Status.ESTIMATED else ""
    cold, convert, samples, error = (None, None, "-", "-")
    if found:
        seconds = found.seconds(row.scope, cold=True)
        cold = None if seconds is None else 1e3 * seconds
        convert = 1e3 * found.convert.warm.median_s if found.convert else None
        samples = str(found.compute.warm.samples) if found.compute else "-"
        error = "-" if found.error is None else f"{found.error:.1e}"
    word = "" if row.status in (Status.RIGHT, Status.MISSING) else row.status.value.upper()
    number = notes.get(_note(row))
    return {
        "size": row.size,
        "method": row.method,
        "parameter": row.parameter.replace("ratio_not_ms", "ratio"),
        f"theirs{unit}": _number(row.theirs),
        "theirs %": _percent(row.theirs_percent),
        f"ours{unit}": f"{about}{_number(row.ours)}",
        "ours %": _percent(row.ours_percent),
        "cold ms": _number(cold),
        "convert ms": _number(convert),
        "samples": samples,
        "error": error,
        "remark": " ".join(part for part in (word, f"({number})" if number else "") if part),
    }


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}" if value < 1000 else f"{value:.0f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}"
