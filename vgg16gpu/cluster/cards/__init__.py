"""A process for each card: what breaks one of them, an illegal address or a signal, leaves the others alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

KINDS: Final = ("cuda",)  # of devices that have processes of their own, where there are several


def kind_of(name: str) -> str:
    """Return the part before the number: "cuda" of "cuda:1"."""
    return name.partition(":")[0]


def have_processes(names: Sequence[str]) -> bool:
    """Return whether devices of these names, as `resolve_devices` gives them, have a process each: several cards do."""
    return len(names) > 1 and all(kind_of(name) in KINDS for name in names)
