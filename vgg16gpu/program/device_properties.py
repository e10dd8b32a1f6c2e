"""What the planner may know of a device: plain data, so that plans can be made and tested without one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

TileEntry: TypeAlias = Mapping[str, int | str]  # the tile of a problem, as a table holds it
Tiles: TypeAlias = Mapping[str, TileEntry]  # by the name of the problem


@dataclass(frozen=True)
class DeviceFacts:
    """The properties of a device that a plan may depend on."""

    kind: str  # "cuda" or "cpu"
    name: str
    multiprocessors: int  # CPU: cores
    compute_capability: tuple[int, int]  # CPU: (0, 0)
    shared_nbytes: int  # largest shared memory of a block
    memory_total: int  # bytes
    memory_free: int  # bytes
    tensor_maps: bool = False  # whether the bulk copy engine of compute capability 9.0 can be used
    shares_sums: bool = True  # whether blocks may share a sum (split-K): the ladder takes it away to show what it gains
    tuned: Tiles = field(default_factory=dict, compare=False, repr=False)  # the tiles that were measured to be fastest


class HasFacts(Protocol):
    """A device of this process or of another one, as far as what is told of it depends on its properties."""

    @property
    def facts(self) -> DeviceFacts:
        """These."""
