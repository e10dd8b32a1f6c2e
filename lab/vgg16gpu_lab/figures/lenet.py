"""The figures of S3: versions of LeNet, what of a pass is a convolution, the sweeps of batch sizes and of tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from vgg16gpu_lab.figures.data import (
    TIME,
    Cell,
    Chart,
    Content,
    Panel,
    Place,
    Series,
    both_panels,
    method,
    our_title,
    ours,
    published_title,
    series,
    table,
)
from vgg16gpu_lab.lenet.net import CONVOLUTIONS

PASS: Final = "forward"
NOT_POSITIVE: Final = "about 0"  # a difference of medians


def lenet_charts(record: Content) -> Iterator[Chart]:
    """Yield all charts."""
    head = "S3: LeNet, batch of 128"
    versions = both_panels(record, table(record, "lenet"), _part, method)
    title = f"{head}: both convolutions and the whole forward pass"
    yield Chart("S3-versions", title, versions, "version", TIME, bars=True)
    parts = Panel(our_title(record), series(table(record, "parts"), _positive, lambda row: row["parameter"], method))
    theirs = [_published_parts(panel) for panel in versions if panel.title == published_title(record)]
    title = f"{head}: what of the forward pass is a convolution"
    yield Chart("S3-parts", title, (*theirs, parts), "version", TIME, bars=True)
    panels = _panels_by_part(table(record, "batch"), _per_image, method, lambda row: int(row["size"]))
    title = f"S3: LeNet by batch size, {our_title(record)}"
    yield Chart("S3-batches", title, panels, "images in a batch", "time an image in ms (median)")
    panels = _panels_by_part(table(record, "tile"), ours, _method_and_parameter, _value)
    title = f"{head}, by tile or block, {our_title(record)}"
    yield Chart("S3-tiles", title, panels, "tile or block: edge, or threads in a row", TIME)


def _published_parts(versions: Panel) -> Panel:
    """Return the rest of a pass, from medians; of versions whose parts are all published."""
    times = {part.label: {at: cell.value for at, cell in part.cells.items()} for part in versions.series}
    inside: dict[Place, Cell] = {}
    outside: dict[Place, Cell] = {}
    for version, whole in times.get(PASS, {}).items():
        layers = [times.get(layer, {}).get(version) for layer in CONVOLUTIONS]
        known = [value for value in layers if value is not None]
        if whole is not None and len(known) == len(CONVOLUTIONS):
            inside[version], outside[version] = Cell(sum(known)), Cell(whole - sum(known))
    return Panel(versions.title, (Series("convolutions", inside), Series("outside", outside)))


def _panels_by_part(
    rows: Sequence[Content],
    cell: Callable[[Content], Cell],
    label: Callable[[Content], str],
    place: Callable[[Content], Place],
) -> tuple[Panel, ...]:
    """Return a panel for each convolution, and one for the whole pass if there are rows of it."""
    parts = list(dict.fromkeys(_part(row) for row in rows))
    return tuple(Panel(part, series([row for row in rows if _part(row) == part], cell, label, place)) for part in parts)


def _part(row: Content) -> str:
    """Return what was timed: its name without the number of the batch and without parameters."""
    return next(part for part in str(row["parameter"]).split() if "=" not in part)


def _method_and_parameter(row: Content) -> str:
    return f"{method(row)} ({', '.join(row['parameters'])})"


def _value(row: Content) -> int:
    """Return the value of the one parameter that is set."""
    return int(next(iter(row["parameters"].values())))


def _per_image(row: Content) -> Cell:
    found = ours(row)
    return Cell(None if found.value is None else found.value / int(row["size"]), found.note)


def _positive(row: Content) -> Cell:
    found = ours(row)
    return found if found.value is None or found.value > 0 else Cell(None, NOT_POSITIVE)
