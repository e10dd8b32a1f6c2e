"""Arena planning: where buffers lie so that those alive at the same time never overlap. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from vgg16gpu.program.types import aligned


class LiveRange(NamedTuple):
    """A buffer of `nbytes` that holds data from step `first` to step `last`, both included."""

    nbytes: int
    first: int
    last: int


def assign_offsets(lifetimes: Sequence[LiveRange]) -> tuple[tuple[int, ...], int]:
    """Return the offset of each buffer in one arena, and the size of the arena, in bytes.

    Greedy by size: the largest buffer first, each at the lowest offset that is free during its whole life. For a chain
    of layers that shrink, as a VGG without split reductions is, that is optimal: the two largest neighbours set the
    size.
    """
    offsets = [0] * len(lifetimes)
    placed: list[int] = []
    for index in sorted(range(len(lifetimes)), key=lambda i: -aligned(lifetimes[i].nbytes)):
        offsets[index] = _lowest_gap(lifetimes, offsets, placed, index)
        placed.append(index)
    size = max((offsets[i] + aligned(lifetimes[i].nbytes) for i in placed), default=0)
    return tuple(offsets), size


def _lowest_gap(lifetimes: Sequence[LiveRange], offsets: Sequence[int], placed: Sequence[int], index: int) -> int:
    new = lifetimes[index]
    alive = [i for i in placed if lifetimes[i].first <= new.last and new.first <= lifetimes[i].last]
    offset = 0
    for i in sorted(alive, key=lambda i: offsets[i]):
        if offsets[i] - offset >= aligned(new.nbytes):
            break
        offset = max(offset, offsets[i] + aligned(lifetimes[i].nbytes))
    return offset
