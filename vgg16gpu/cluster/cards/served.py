"""What the threads of a card's process do, each for one channel."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from vgg16gpu.cluster.cards.memory import array_in, make_shared
from vgg16gpu.cluster.cards.messages import (
    BatchesQuery,
    Count,
    Counts,
    DecoderQuery,
    End,
    LaneIsOpen,
    NoRows,
    OpenCount,
    OpenFeed,
    OpenLane,
    Receive,
    Received,
    RunBatch,
    Versions,
)
from vgg16gpu.cluster.cards.process import Message
from vgg16gpu.cluster.cards.slots import Line, feed
from vgg16gpu.devices.base import Bytes
from vgg16gpu.runtime.answers.codec_choice import codec_for
from vgg16gpu.runtime.engine import Engine
from vgg16gpu.runtime.outputs import OutputRows

if TYPE_CHECKING:
    from vgg16gpu.devices.picture_decoder import PictureCodec


class Card:
    """What the threads share: an engine, the room of its lanes, and a decoder that somebody has asked about."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.room: Bytes = np.empty(0, np.uint8)
        self._lock = threading.Lock()
        self._codecs: dict[str, PictureCodec | None] = {}

    def renew_room(self, nbytes: int | None, told: Message) -> None:
        """From now on the room is the memory that came, which the device pins; None: it stays. Raises DeviceError."""
        if nbytes is None:
            return
        room = told.mapped(nbytes)
        with self.engine.turn():
            self.engine.device.pin(room)
            old, self.room = self.room, room
            if len(old):
                self.engine.device.unpin(old)

    def codec_name(self, wanted: str) -> str | None:
        """What decodes, as asked for. Raises DeviceError, as `codec_for`."""
        with self._lock:
            if wanted not in self._codecs:
                self._codecs[wanted] = codec_for(self.engine.device, wanted)
            codec = self._codecs[wanted]
        return codec.name if codec else None

    def codec(self, wanted: str) -> PictureCodec | None:
        """The same, for the caller to close."""
        with self._lock:
            return self._codecs.pop(wanted) if wanted in self._codecs else codec_for(self.engine.device, wanted)


Service: TypeAlias = Callable[[Card, Message, Line], None]


def _cut(card: Card, told: Message, line: Line) -> None:
    line.say(card.engine.batches(_like(told.content)))


def _no_rows(card: Card, told: Message, line: Line) -> None:
    images = _like(told.content)
    line.say(card.engine.run(card.engine.graph.input.to_file(images) if images.dtype == np.float32 else images))


def _versions(card: Card, _: Message, line: Line) -> None:
    line.say(dict(getattr(card.engine.device, "versions", dict)()))


def _decoder(card: Card, told: Message, line: Line) -> None:
    line.say(card.codec_name(told.content.wanted))


def _like(asked: BatchesQuery) -> Any:
    """An array of that form, which takes no memory."""
    return np.broadcast_to(np.zeros((), asked.element_type), asked.shape)


def _lane(card: Card, told: Message, line: Line) -> None:
    """The calls that the parent's thread makes, in its order."""
    form: OpenLane = told.content
    card.renew_room(form.room_nbytes, told)
    engine, back = card.engine, _Back()
    under_way: list[Any] = []
    with engine.lane(form.element_type, form.sample, form.size, is_direct=True) as lane:
        program = engine.program
        line.say(LaneIsOpen(tuple(i for i, y in enumerate(program.outputs) if program.is_whole(y))))
        while not isinstance(asked := line.get().content, End):
            if isinstance(asked, RunBatch):
                rows = array_in(card.room[asked.offset :], form.element_type, (asked.count, *form.sample))
                under_way.append(lane.send([rows] if asked.count else [], asked.batch))
                line.say(None)
            else:
                assert isinstance(asked, Receive)
                back.say(lane.receive(under_way.pop(0)), line)


class _Back:
    """Memory for results, which grows as they do."""

    def __init__(self) -> None:
        self._memory: Bytes = np.empty(0, np.uint8)

    def say(self, results: OutputRows, line: Line) -> None:
        """Copy results there, and say what they are."""
        nbytes, descriptor = sum(array.nbytes for array in results.outputs), None
        try:
            if nbytes > len(self._memory):
                self._memory, descriptor = make_shared(nbytes)
            first = 0
            for array in results.outputs:
                array_in(self._memory[first:], "float32", array.shape)[...] = array
                first += array.nbytes
            shapes = tuple(array.shape for array in results.outputs)
            new = None if descriptor is None else len(self._memory)
            line.say(Received(shapes, results.nonfinite, results.out_of_range, new), descriptor)
        finally:
            Message(None, descriptor).drop()


def _count(card: Card, told: Message, line: Line) -> None:
    from vgg16gpu.runtime.calibration import Counting  # noqa: PLC0415 - for who calibrates

    opened: OpenCount = told.content
    card.renew_room(opened.room_nbytes, told)
    with Counting(card.engine, opened.names) as counting:
        line.say(None)
        while not isinstance(asked := line.get().content, End):
            if isinstance(asked, Count):
                counting.count(array_in(card.room, asked.element_type, asked.shape))
                line.say(None)
            else:
                assert isinstance(asked, Counts)
                line.say(counting.histograms())


def _feed(card: Card, told: Message, line: Line) -> None:
    opened: OpenFeed = told.content
    memory = told.mapped(opened.nbytes * opened.count)
    codec = card.codec(opened.decode) if opened.decode else None
    feed(card.engine, opened, memory, codec, line)


SERVICES: Final[dict[type, Service]] = {
    BatchesQuery: _cut,
    NoRows: _no_rows,
    Versions: _versions,
    DecoderQuery: _decoder,
    OpenLane: _lane,
    OpenCount: _count,
    OpenFeed: _feed,
}
