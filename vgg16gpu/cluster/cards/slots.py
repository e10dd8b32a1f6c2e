"""A folder's slots in a card's process: a `LocalDeviceWorker` as in any other, whose slots come and go as messages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from vgg16gpu.cluster.cards.messages import ComputeAll, End, FeedEnded, FilledSlot, FreeSlot, OpenFeed
from vgg16gpu.cluster.cards.process import Message
from vgg16gpu.devices.base import Bytes
from vgg16gpu.errors import Error
from vgg16gpu.pictures.inputs import InputSpec
from vgg16gpu.pictures.slots import BufferPool, Slot
from vgg16gpu.runtime.answers.feeding import LocalDeviceWorker
from vgg16gpu.runtime.engine import Engine

if TYPE_CHECKING:
    from vgg16gpu.devices.picture_decoder import PictureCodec


class Line(NamedTuple):
    """A channel, from here: what waits for the next message, what says something, and what ends the waiting."""

    get: Callable[[], Message]
    say: Callable[..., None]
    stop: Callable[[], None]


def feed(engine: Engine, opened: OpenFeed, memory: Bytes, codec: PictureCodec | None, line: Line) -> None:
    """Compute what comes on a line, and say there what comes of it. memory: the ring's. Raises what feeding raises.

    When it returns or raises, nothing reads the memory.
    """
    with engine.turn():
        engine.device.pin(memory)
    try:
        slots = MessageSlots(opened.spec, MessageRing(opened, memory, line.say), line)
        feeder = LocalDeviceWorker(engine, slots, opened.fit, codec, line.say)
        try:
            feeder.feed(slots.is_left.is_set)
        except BaseException:
            line.stop()  # a thread may wait for slots
            with suppress(Error):  # of a device that has failed already
                feeder.close()
            raise
        feeder.close()
    finally:
        with suppress(Error), engine.turn():
            engine.device.unpin(memory)
    line.say(FeedEnded(feeder.seconds, feeder.decoded))


class MessageRing(BufferPool):
    """A ring in memory that its maker fills; a slot that goes back is told."""

    def __init__(self, opened: OpenFeed, memory: Bytes, say: Callable[[Any], None]) -> None:
        super().__init__(opened.nbytes, opened.count, opened.rows, opened.room_nbytes)
        self._all, self._say = memory, say

    def slot(self, filled: FilledSlot) -> Slot:
        """What lies there."""
        slot = self._slot(self._all[filled.number * self.nbytes :][: self.nbytes], is_pinned=True)
        slot.number, slot.element_type, slot.rows = filled.number, filled.element_type, filled.rows
        slot.used, slot.needed = filled.used, filled.needed
        return slot

    def _put_back(self, slot: Slot) -> None:
        self._say(FreeSlot(slot.number))


class MessageSlots:
    """Slots as a loader gives them; iterate over it once. is_left: nobody wants what comes of them."""

    def __init__(self, spec: InputSpec, ring: MessageRing, line: Line) -> None:
        self.spec, self.ring, self._line = spec, ring, line
        self.is_left = threading.Event()

    def __iter__(self) -> Iterator[Slot | None]:
        while not isinstance(told := self._line.get().content, End):
            if isinstance(told, ComputeAll):
                yield None
            else:
                assert isinstance(told, FilledSlot)
                yield self.ring.slot(told)
        if told.is_left:
            self.is_left.set()
            yield None
