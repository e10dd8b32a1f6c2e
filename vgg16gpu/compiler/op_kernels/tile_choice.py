"""How problems and tiles are named in tables of measured times, and how a table is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, TypeVar

from vgg16gpu.program.types import DeviceFacts, DType, TileEntry

Tile = TypeVar("Tile")

PROGRAMMATIC_BATCH = 32  # up to which programmatic dependent launch was measured to pay


@dataclass(frozen=True)
class Choice(Generic[Tile]):
    """The tile of a problem, and whether its launch is programmatic, see `KernelLaunch`."""

    tile: Tile
    programmatic: bool

    @property
    def entry(self) -> TileEntry:
        """The choice as a table holds it; what is programmatic here is "early" there."""
        tile: Any = self.tile
        numbers = {field.name: int(getattr(tile, field.name)) for field in fields(tile)}
        return {"tile": tile.table_name, **numbers, "early": int(self.programmatic)}


def key(kernel: str, problem: Any) -> str:
    """Return a table's key of a problem, a dataclass of numbers and elements; default values are left out."""
    values = ((field, getattr(problem, field.name)) for field in fields(problem))
    return " ".join([kernel, *(f"{field.name}={_text(value)}" for field, value in values if value != field.default)])


def found(facts: DeviceFacts, name: str, kinds: Mapping[str, type[Tile]]) -> Choice[Tile] | None:
    """Return the choice in a device's table for a problem; None if it has none, or none that makes a tile.

    The caller checks whether the tile fits the problem. `kinds`: the known tiles, by name.
    """
    entry = dict(facts.tuned.get(name, {}))
    kind, programmatic = kinds.get(str(entry.pop("tile", ""))), entry.pop("early", None)
    if kind is None or programmatic not in (0, 1) or not all(isinstance(number, int) for number in entry.values()):
        return None
    if set(entry) != {field.name for field in fields(kind)}:  # type: ignore[arg-type]  # tiles are dataclasses
        return None
    return Choice(kind(**entry), bool(programmatic))


def measured(
    facts: DeviceFacts, problem: Any, kinds: Mapping[str, type[Tile]], fits: Callable[[Tile], bool]
) -> Choice[Tile] | None:
    """Return the choice in a device's table that fits a problem; for one that keeps a map else that without.

    problem: has a `key`, and a field `kept`.
    """
    for known in dict.fromkeys((problem, replace(problem, kept=False))):  # tables are of nets without taps
        choice = found(facts, known.key, kinds)
        if choice is not None and fits(choice.tile):
            return choice
    return None


def _text(value: DType | int) -> str:
    return value.name if isinstance(value, DType) else str(int(value))
