"""Numbers by the names that seeds_tables.csv gives them: what was published, and what a run has recorded, alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from statistics import median
from typing import Final, Literal, TypeAlias

from vgg16gpu_lab.measure.measure import Status
from vgg16gpu_lab.published import Key, published

Combine: TypeAlias = Literal["first", "median"]

RATIOS: Final = "claim"  # the published table of plain numbers


@dataclass(frozen=True)
class Entry:
    """A number, or why there is none. `setup_ms` is what a library spends before its first run."""

    value: float | None  # milliseconds; of tables of ratios a plain number
    status: str = Status.RIGHT.value
    remark: str = ""
    error: float | None = None  # norm-wise, against float64
    setup_ms: float | None = None
    spread: tuple[float, float] | None = None  # of its samples: the least and the 95th percentile, milliseconds
    tolerance: float | None = None  # that `error` may have
    precision: str = "fp32"
    variant: str = ""  # that was run; of published numbers none is known
    samples: int | None = None  # behind it

    @property
    def text(self) -> str:
        """The number with three digits, ~ before what was not run but scaled up."""
        about = "~" if self.status == Status.ESTIMATED.value else ""
        return f"{about}{number(self.value)}"

    @property
    def is_fault(self) -> bool:
        """Return whether the answer was wrong, or there was none."""
        return self.status in (Status.WRONG, Status.FAILED)


@dataclass(frozen=True)
class Times:
    """One side's numbers; `absent` says what it means that one is not there."""

    entries: Mapping[Key, Entry]
    absent: str
    floors: Mapping[str, float] = field(default_factory=dict)  # ms of an empty launch, by seed; 0 where it is not known
    names_rows: bool = False  # whether a row that a record of the seed lacks is named

    def __getitem__(self, key: Key) -> Entry:
        return self.entries.get(key) or Entry(None, Status.MISSING.value, self._absence(key))

    def _absence(self, key: Key) -> str:
        seed, table, _, method, _ = key
        if self.names_rows and seed in self._seeds and (seed, table, method) not in self._methods:
            return f"no row {method} of table {table} in the record"
        return self.absent

    @cached_property
    def _seeds(self) -> frozenset[str]:
        return frozenset(key[0] for key in self.entries)

    @cached_property
    def _methods(self) -> frozenset[tuple[str, str, str]]:
        return frozenset((key[0], key[1], key[3]) for key in self.entries)

    def rows(self, seed: str, table: str, method: str | None = None) -> dict[Key, Entry]:
        """Return all of a table, or those of a method."""
        return {
            key: entry for key, entry in self.entries.items() if key[:2] == (seed, table) and method in (None, key[3])
        }


@dataclass(frozen=True)
class Quantity:
    """The first of these numbers that there is, or the median of those that there are."""

    keys: tuple[Key, ...]
    combine: Combine = "first"
    other_than: tuple[str, ...] = ()  # variants that had the row's name once and are something else: not taken

    def of(self, times: Times) -> Entry:
        """Return its value on one side, or why there is none."""
        found = [self._taken(key, times[key]) for key in self.keys]
        values = [entry.value for entry in found if entry.value is not None]
        if not values:
            known = (entry for key, entry in zip(self.keys, found, strict=True) if key in times.entries)
            return next(known, found[0])
        if self.combine == "first":
            return next(entry for entry in found if entry.value is not None)
        estimated = any(entry.status == Status.ESTIMATED.value for entry in found)
        spreads = [entry.spread for entry in found if entry.spread]
        spread = (min(low for low, _ in spreads), max(high for _, high in spreads)) if spreads else None
        return Entry(median(values), (Status.ESTIMATED if estimated else Status.RIGHT).value, spread=spread)

    def is_short(self, times: Times, launches: int) -> bool:
        """Return whether its value is below so many empty launches of the record."""
        value = self.of(times).value
        return value is not None and value < launches * times.floors.get(self.keys[0][0], 0.0)

    def _taken(self, key: Key, entry: Entry) -> Entry:
        if entry.variant not in self.other_than or not entry.variant:
            return entry
        return Entry(None, Status.MISSING.value, f"row {key[3]} of the record is {entry.variant}, not theirs")


def key(seed: str, table: str, size: object, method: str, parameter: str = "") -> Key:
    """Return the name of a number."""
    return seed, table, str(size), method, parameter


def one(
    seed: str, table: str, size: object, method: str, parameter: str = "", *, other_than: tuple[str, ...] = ()
) -> Quantity:
    """Return a single number."""
    return Quantity((key(seed, table, size, method, parameter),), other_than=other_than)


@cache
def published_times() -> Times:
    """Return the published times, without ratios that are not times."""
    times = {name: Entry(value) for name, value in published().items() if name[1] != RATIOS}
    return Times(times, "not published")


def number(value: float | None) -> str:
    """Format three digits, as in tables."""
    return "-" if value is None else f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
