"""Hostile ONNX files by number: small models of every form that is accepted, damaged in a way that the number says.

`case(number, seed)` is always the same file. A case is one of the `seeds()`, changed once or a few times: byte by byte,
field by field of its wire format, or message by message with protobuf.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tests.fuzz.fields import change_bytes, change_field
from tests.fuzz.messages import change_message
from tests.fuzz.seeds import Seed, seeds


@dataclass(frozen=True, eq=False)
class Case:
    """A damaged model: what it was made of, what was done to it, and the file."""

    number: int
    seed: Seed
    changes: tuple[str, ...]
    data: bytes


def case(number: int, seed: int = 0) -> Case:
    """Case `number` of the run with this seed. The first ones are the seeds themselves."""
    random = Random(f"{seed}:{number}")
    start = seeds()[number % len(seeds())]
    data, changes = start.data, []
    if number >= len(seeds()):
        for _ in range(random.choice((1, 1, 1, 2, 3))):
            data, change = _changed(random, data)
            changes.append(change)
    return Case(number, start, tuple(changes), data)


def _changed(random: Random, data: bytes) -> tuple[bytes, str]:
    kind = random.choices((change_message, change_field, change_bytes), (5, 2, 2))[0]
    return kind(random, data) or change_bytes(random, data)
