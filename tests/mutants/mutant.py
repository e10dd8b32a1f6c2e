"""A wrong kernel: what is changed in the right one, and the test that must see it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

from vgg16gpu.devices.base import Device

Check: TypeAlias = Callable[[Device], None]


def for_each(values: Iterable[Any], name: str, test: Callable[..., None], **given: Any) -> Check:
    """Return a check that runs a test with each of the values of one of its parameters."""
    kept = list(values)

    def check(device: Device) -> None:
        for value in kept:
            test(device, **{name: value}, **given)

    return check


class Edit(NamedTuple):
    """What is changed: `old` occurs exactly once in the file."""

    old: str
    new: str


class Mutant(NamedTuple):
    """A kernel file with an edit, after which `check` must fail."""

    name: str
    file: str
    edit: Edit
    check: Check
    order: str = "forward"  # in which the threads run between two barriers, see devices/cpu/device.py


def mutants(file: str, *rows: tuple[Any, ...]) -> tuple[Mutant, ...]:
    """Return the mutants of a file. A row has a name, the old text, the new one, the check, and perhaps the order."""
    return tuple(Mutant(name, file, Edit(old, new), check, *order) for name, old, new, check, *order in rows)
