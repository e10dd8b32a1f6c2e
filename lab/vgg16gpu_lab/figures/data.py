"""What a figure of the lab shows, as plain data: taken from a record, drawn by `draw.py`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from vgg16gpu_lab.measure.baseline import CUDNN_THREE, NUMPY
from vgg16gpu_lab.measure.measure import Status
from vgg16gpu_lab.published import CARDS

Content: TypeAlias = Mapping[str, Any]  # a record of `record.content`, or a row of one
Place: TypeAlias = str | int  # on the x axis: an int where there is a scale, the name of a group of bars otherwise
Setting: TypeAlias = tuple[tuple[str, int], ...]  # what the rows of a figure have in common

FAILED_LAUNCH: Final = "failed launch"
ESTIMATED: Final = Status.ESTIMATED.value

TIME: Final = "time in ms (median)"
SIZE: Final = "image: pixels a side"

_COUNTED: Final = ("channels", "outputs")
_USUAL: Final = {"batch": 1, "channels": 3, "outputs": 1, "stride": 1}  # not told in names of files


@dataclass(frozen=True)
class Cell:
    """A number, or why there is none; a number that needs a word has it in the note."""

    value: float | None
    note: str = ""


@dataclass(frozen=True)
class Series:
    """A line, or the bars of a colour."""

    label: str
    cells: Mapping[Place, Cell]


@dataclass(frozen=True)
class Panel:
    """Axes of a figure."""

    title: str
    series: tuple[Series, ...]
    line: float | None = None  # dashed, among bars; the title says what it is

    @property
    def values(self) -> list[float]:
        """Every number that is to be seen."""
        found = [cell.value for series in self.series for cell in series.cells.values() if cell.value is not None]
        return [*found, self.line] if self.line is not None else found


@dataclass(frozen=True)
class Chart:
    """Bars, or lines over the numbers that are their places."""

    name: str  # of the files
    title: str
    panels: tuple[Panel, ...]
    x_label: str
    y_label: str  # with its unit
    bars: bool = False
    shared_y: bool = True
    reason: str = "no row has a number"  # for which it may be empty

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to be seen."""
        return not any(panel.values for panel in self.panels)


@dataclass(frozen=True)
class HeatMap:
    """A ratio for each pair of an image size and a number of channels, a panel for each method."""

    name: str
    title: str
    panels: tuple[tuple[str, Mapping[tuple[int, int], float]], ...]
    sizes: tuple[int, ...]
    channels: tuple[int, ...]
    label: str  # of the colours
    reason: str

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to be seen."""
        return not any(cells for _, cells in self.panels)


@dataclass(frozen=True)
class Dot:
    """A kernel on the roofline chart."""

    label: str
    intensity: float  # FLOP per byte that has to be moved at least
    flop_per_s: float


@dataclass(frozen=True)
class Roof:
    """A card's two ceilings and what was reached below them."""

    title: str
    flop_per_s: float
    bytes_per_s: float
    dots: tuple[Dot, ...]


@dataclass(frozen=True)
class Roofline:
    """A panel for each card."""

    name: str
    title: str
    panels: tuple[Roof, ...]
    reason: str = "no row of a convolution has a time"

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to be seen."""
        return not any(roof.dots for roof in self.panels)


Picture: TypeAlias = Chart | HeatMap | Roofline


def ours(row: Content) -> Cell:
    """Return our number."""
    word = "no time" if row["ours"] is None else ""
    return Cell(row["ours"], word if row["status"] == Status.RIGHT else row["status"])


def theirs(row: Content) -> Cell:
    """Return the published number; it is not a time where CUDA rejects the launch."""
    note = FAILED_LAUNCH if row["theirs"] is not None and row["status"] == Status.INVALID else ""
    return Cell(row["theirs"], note)


def series(
    rows: Iterable[Content],
    cell: Callable[[Content], Cell],
    label: Callable[[Content], str],
    place: Callable[[Content], Place | None],
) -> tuple[Series, ...]:
    """Return the rows as series, with the median of rows of one place. A row whose place is None is left out."""
    found: dict[str, dict[Place, list[Cell]]] = {}
    for row in rows:
        if (at := place(row)) is not None:
            found.setdefault(label(row), {}).setdefault(at, []).append(cell(row))
    return tuple(Series(name, {at: _median(cells) for at, cells in places.items()}) for name, places in found.items())


def both_panels(
    record: Content, rows: Sequence[Content], label: Callable[[Content], str], place: Callable[[Content], Place | None]
) -> tuple[Panel, ...]:
    """Return the published panel and ours, side by side; ours alone where nothing was published."""
    published = [row for row in rows if row["theirs"] is not None]
    found = [Panel(published_title(record), series(published, theirs, label, place))] if published else []
    return (*found, Panel(our_title(record), series(rows, ours, label, place)))


def our_title(record: Content) -> str:
    """Return where our times are from."""
    device = record["environment"]["device"]
    return f"ours: {device['name']}{' (a CPU)' if device['kind'] == 'cpu' else ''}"


def published_title(record: Content) -> str:
    """Return where theirs are from."""
    card = CARDS.get(record["experiment"])
    return f"published: {card.name if card else 'card not named'}"


def table(record: Content, name: str) -> list[Content]:
    """Return the rows of a table."""
    return [row for row in record["rows"] if row["table"] == name]


def by_setting(rows: Sequence[Content], *names: str) -> Iterator[tuple[Setting, list[Content]]]:
    """Group the rows by these numbers of their problems; a setting without rows if there are none at all."""
    found: dict[Setting, list[Content]] = {}
    for row in rows:
        if row["problem"]:
            found.setdefault(tuple((name, row["problem"][name]) for name in names), []).append(row)
    yield from (found or {(): []}).items()


def suffix(setting: Setting) -> str:
    """Return a suffix for the name of a file: what is not as usual."""
    return "".join(f"-{name}{value}" for name, value in setting if _USUAL.get(name) != value)


def told(setting: Setting) -> str:
    """Return words for a title: 3 channels, stride 1."""
    words = (f"{value} {name}" if name in _COUNTED else f"{name} {value}" for name, value in setting)
    return "".join(f", {text if not text.startswith('1 ') else text[:-1]}" for text in words)


def method(row: Content) -> str:
    """Return the method's name, to be read."""
    return str(row["method"]).replace("_", " ")


def size_of(row: Content) -> int:
    """Return the rows of the image."""
    return int(row["problem"]["height"])


def number_of(row: Content, name: str) -> int | None:
    """Return the number behind `name=` in the row's parameter."""
    found = [part.split("=")[1] for part in row["parameter"].split() if part.startswith(f"{name}=")]
    return int(found[0]) if found else None


def roofline(record: Content) -> Roofline:
    """Return each variant at the largest problem of its shape, with its best parameters."""
    rows = [row for row in record["rows"] if row["flop"] and row["ours_percent"] is not None]
    apart = (NUMPY, CUDNN_THREE)  # on the host; three calls in one time, of which the row has the FLOP of one
    device_rows = [row for row in rows if row["variant"] not in apart]
    ceilings, card = record["ceilings"], CARDS.get(record["experiment"])
    roofs = [Roof(our_title(record), ceilings["flop_per_s"], ceilings["bytes_per_s"], _dots(device_rows, ours))]
    published = [row for row in record["rows"] if row["flop"] and row["theirs"]]
    if card and published:
        dots = _dots(published, theirs)
        roofs.insert(0, Roof(published_title(record), card.flop_per_s, card.bytes_per_s, dots))
    name = record["experiment"]
    title = f"{name}: roofline, each variant at its largest images, with its best parameters"
    return Roofline(f"{name}-roofline", title, tuple(roofs))


def _dots(rows: Iterable[Content], cell: Callable[[Content], Cell]) -> tuple[Dot, ...]:
    best: dict[tuple[object, ...], tuple[int, Dot]] = {}
    for row in rows:
        found = cell(row)
        if found.value is None or found.note == ESTIMATED or row["scope"] == "setup":
            continue
        label = row["variant"] + (" with conversion" if row["scope"] == "total" and row["convert"] else "")
        label += f" ({found.note})" if found.note else ""
        problem = row["problem"]
        shape = label, *(problem.get(name) for name in ("channels", "outputs", "kernel", "stride", "padding"))
        dot = Dot(label, row["flop"] / row["nbytes"], row["flop"] / (found.value / 1e3))
        work, known = best.get(shape, (0, dot))
        if (row["flop"], dot.flop_per_s) > (work, known.flop_per_s if work else -math.inf):
            best[shape] = row["flop"], dot
    return tuple(dot for _, dot in best.values())


def _median(cells: Sequence[Cell]) -> Cell:
    numbers = [cell for cell in cells if cell.value is not None]
    value = statistics.median(cell.value for cell in numbers if cell.value is not None) if numbers else None
    return Cell(value, next((cell.note for cell in numbers or cells if cell.note), ""))
