"""What our process and that of a peer say to each other. Requests go there, replies come back, one for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from vgg16gpu.bench.measure.timing import Method
from vgg16gpu.bench.peers.base import Setting
from vgg16gpu.compiler.graph.ops import Array


@dataclass(frozen=True)
class Open:
    """Load the model, in place of what was loaded before. The answer: the peer's notes."""

    setting: Setting


@dataclass(frozen=True, eq=False)
class Contend:
    """Build every way to run the model on `x`, in this order of their numbers. The answer: a `Built` for each.

    An empty order is that of the peer.
    """

    x: Array
    order: tuple[int, ...] = ()


@dataclass(frozen=True)
class Scores:
    """Run the way of this number once. The answer: its scores."""

    number: int


@dataclass(frozen=True)
class Measure:
    """Time the way of this number. The answer: what `Contender.measure` gives."""

    number: int
    method: Method
    runs: int


@dataclass(frozen=True)
class Release:
    """Forget all ways. The answer: None."""


Request: TypeAlias = Open | Contend | Scores | Measure | Release


@dataclass(frozen=True)
class Built:
    """What became of a way: a contender by its number, or the reason why there is none."""

    number: int
    variant: str
    name: str = ""
    methods: tuple[Method, ...] = ()
    unchecked: str = ""
    tf32: bool = False
    reason: str = ""
    refused: bool = False  # asking again would not help


@dataclass(frozen=True, eq=False)
class PeerReply:
    """The request was done."""

    value: Any


@dataclass(frozen=True)
class PeerRefusal:
    """The peer cannot do it, here or ever: the text of its PeerError."""

    text: str


@dataclass(frozen=True)
class Fault:
    """Something was raised that nobody had foreseen."""

    text: str


Reply: TypeAlias = PeerReply | PeerRefusal | Fault

READY = PeerReply("ready")  # what a process says first, once the framework is imported


def guilty_last(built: Sequence[Built]) -> tuple[int, ...]:
    """Return an order for a second try: what was built first, and last of all the way that failed first.

    A fault on a GPU may break all that follows in its process.
    """
    good = [each.number for each in built if not each.reason]
    bad = [each.number for each in built if each.reason]
    return (*good, *bad[1:], *bad[:1])
