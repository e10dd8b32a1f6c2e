"""Many inputs as one stream of batches: what belongs to which item, and in which order it comes back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np

from vgg16gpu.devices.staging import Rows
from vgg16gpu.errors import InputError
from vgg16gpu.runtime.outputs import OutputRows
from vgg16gpu.runtime.streaming import DEPTH

Ticket = TypeVar("Ticket")  # what `send` gives for a batch


@dataclass(eq=False)
class Request:
    """One input of a stream, and the results of its rows so far. `images`: rows on the host, or an array on the GPU."""

    number: int
    images: Any
    results: list[OutputRows] = field(default_factory=list)

    @property
    def form(self) -> tuple[str, tuple[int, ...]] | None:
        """Element type and shape of each row on the host, which rows of a batch share; None of an array on the GPU."""
        return (self.images.dtype.name, self.images.shape[1:]) if isinstance(self.images, np.ndarray) else None

    @property
    def is_complete(self) -> bool:
        """Return whether every row has come back."""
        return sum(len(part.nonfinite) for part in self.results) == len(self.images)


class RequestStream:
    """The items of a stream, numbered and checked.

    It ends where the iterable fails, or an item is refused, and `failure` says why: results of the items before it are
    still to be given out.
    """

    def __init__(self, iterable: Iterable[Any], check: Callable[[Any], Any]) -> None:
        self.failure: Exception | None = None
        self._iterable = iterable
        self._check = check

    def __iter__(self) -> Iterator[Request]:
        number = 0
        try:
            for x in self._iterable:
                yield Request(number, self._checked(x, number))
                number += 1
        except Exception as error:  # whatever it is, it is raised in its turn
            self.failure = error

    def _checked(self, x: Any, number: int) -> Any:
        try:
            return self._check(x)
        except InputError as error:
            raise InputError(f"{item_name(number)}: {error}") from error


class BatchSlice(NamedTuple):
    """The rows of an item that go with one batch."""

    item: Request
    rows: Rows


def cut(items: Iterable[Request], size: int) -> Iterator[list[BatchSlice]]:
    """Batches of `size` rows, the last one of what is left: an item may span several, and a batch hold several.

    Rows that have to wait for more are copied: whoever made them may use the memory again for the next item.
    """
    shares: list[BatchSlice] = []
    room = size
    for item in items:
        start = 0
        while start < len(item.images):
            rows = item.images[start : start + room]
            start += len(rows)
            room -= len(rows)
            shares.append(BatchSlice(item, rows.copy() if room else rows))
            if not room:
                yield shares
                shares, room = [], size
        if not len(item.images):  # it comes back in its turn, too
            shares.append(BatchSlice(item, item.images))
    if shares:
        yield shares


def flow(
    batches: Iterable[list[BatchSlice]],
    send: Callable[[Sequence[Rows]], Ticket],
    receive: Callable[[Ticket], OutputRows],
    depth: int = DEPTH,
) -> Iterator[Request]:
    """The items, each once all of it has come back, while `depth` batches at most are sent and not received."""
    under_way: deque[tuple[list[BatchSlice], Ticket]] = deque()
    for batch in batches:
        under_way.append((batch, send([share.rows for share in batch])))
        if len(under_way) == depth:
            shares, sent = under_way.popleft()
            yield from _handed_out(shares, receive(sent))
    for shares, sent in under_way:
        yield from _handed_out(shares, receive(sent))


def _handed_out(shares: Iterable[BatchSlice], results: OutputRows) -> Iterator[Request]:
    """Give every item its rows; the items that are complete by that."""
    first = 0
    for item, rows in shares:
        item.results.append(results.rows(first, first + len(rows)))
        first += len(rows)
        if item.is_complete:
            yield item


def item_name(number: int) -> str:
    """How messages call an item."""
    return f"item {number} of the stream"
