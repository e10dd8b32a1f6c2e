"""Which images make the next batch: whatever is there when the device is free."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from vgg16gpu_serving.wire import Asked

Sender = TypeVar("Sender")


@dataclass(frozen=True, eq=False)
class Item(Generic[Sender]):
    """The images of a request, which are run in one batch, and who wants to know."""

    sender: Sender
    asked: Asked

    def __len__(self) -> int:
        return len(self.asked.slots)


class Queue(Generic[Sender]):
    """Items in the order in which they came. largest: images of a batch."""

    def __init__(self, largest: int) -> None:
        self._items: deque[Item[Sender]] = deque()
        self._largest = largest

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: Item[Sender]) -> None:
        """Append an item."""
        self._items.append(item)

    def drop(self, is_unwanted: Callable[[Item[Sender]], bool]) -> list[Item[Sender]]:
        """Take these out."""
        dropped = [item for item in self._items if is_unwanted(item)]
        if dropped:
            self._items = deque(item for item in self._items if not is_unwanted(item))
        return dropped

    def is_due(self, now: float, delay: float) -> bool:
        """Return whether a batch is full, or its first image has waited for `delay` seconds."""
        if not self._items:
            return False
        first = self._items[0].asked
        if now - first.sent >= delay:
            return True
        return sum(len(item) for item in self._items if item.asked.kind == first.kind) >= self._largest

    def take(self) -> list[Item[Sender]]:
        """Take the next batch: of the kind of the first item all that fit, in their order."""
        batch: list[Item[Sender]] = []
        left: deque[Item[Sender]] = deque()
        room, is_open = self._largest, True
        kind = self._items[0].asked.kind if self._items else None
        while self._items and room and is_open:
            item = self._items.popleft()
            if item.asked.kind != kind:
                left.append(item)
            elif len(item) <= room:
                batch.append(item)
                room -= len(item)
            else:
                left.append(item)
                is_open = False
        self._items.extendleft(reversed(left))
        return batch
