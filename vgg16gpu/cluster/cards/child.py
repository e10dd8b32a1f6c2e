"""The process of a card: its engine, and the threads that serve batches and buffers of files."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from vgg16gpu.cluster.cards.memory import array_in, make_shared, read_held
from vgg16gpu.cluster.cards.messages import (
    BUILDING,
    BatchesQuery,
    Build,
    ComputeAll,
    Count,
    Counts,
    DecoderQuery,
    End,
    Failed,
    FeedEnded,
    FilledSlot,
    FreeSlot,
    IsBuilt,
    IsOpen,
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
from vgg16gpu.compiler.model import Model
from vgg16gpu.devices import open_device
from vgg16gpu.devices.base import Bytes
from vgg16gpu.errors import Error
from vgg16gpu.pictures.inputs import InputSpec
from vgg16gpu.pictures.loading.pace import SWITCHING
from vgg16gpu.pictures.slots import BufferPool, Slot
from vgg16gpu.program.launch import LaunchPlan
from vgg16gpu.runtime.answers.codec_choice import codec_for
from vgg16gpu.runtime.answers.feeding import LocalDeviceWorker
from vgg16gpu.runtime.engine import Engine
from vgg16gpu.runtime.outputs import OutputRows

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
        """Return the slot that the message describes."""
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


class Card:
    """What the threads share: an engine, the room of its lanes, and a decoder that somebody has asked about."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.room: Bytes = np.empty(0, np.uint8)
        self._lock = threading.Lock()
        self._codecs: dict[str, PictureCodec | None] = {}

    def renew_room(self, nbytes: int | None, told: Message) -> None:
        """Replace the batch memory by the received one and pin that; None: it stays. Raises DeviceError."""
        if nbytes is None:
            return
        room = told.mapped(nbytes)
        with self.engine.turn():
            self.engine.device.pin(room)
            old, self.room = self.room, room
            if len(old):
                self.engine.device.unpin(old)

    def codec_name(self, wanted: str) -> str | None:
        """Return the name of the wanted decoder, None without one. Raises DeviceError, as `codec_for`."""
        with self._lock:
            if wanted not in self._codecs:
                self._codecs[wanted] = codec_for(self.engine.device, wanted)
            codec = self._codecs[wanted]
        return codec.name if codec else None

    def codec(self, wanted: str) -> PictureCodec | None:
        """Return the wanted decoder, for the caller to close; None without one."""
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
    """Return an array of that dtype and shape, which takes no memory."""
    return np.broadcast_to(np.zeros((), asked.element_type), asked.shape)


def _lane(card: Card, told: Message, line: Line) -> None:
    """Run the calls of the parent's thread, in their order."""
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


def main() -> None:
    """Run as `process.py` starts it: with the descriptor of the pipe."""
    sys.setswitchinterval(SWITCHING)
    CardChild(Connection(int(sys.argv[1]))).run()


class CardChild:
    """What this process is."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._sending, self._state = threading.Lock(), threading.Lock()
        self._lines: dict[int, SimpleQueue[Message]] = {BUILDING: SimpleQueue()}
        self._device = ""
        self._card: Card | None = None

    def run(self) -> None:
        """Read the pipe until it ends. The engine is built in a thread meanwhile."""
        threading.Thread(target=self._build, name="vgg16gpu-card-build", daemon=True).start()
        with suppress(EOFError, OSError):
            while True:
                number, content, has_descriptor = self._pipe.recv()
                self._hear(number, Message(content, recv_handle(self._pipe) if has_descriptor else None))
        os._exit(0)  # threads may be anywhere, in a kernel's compiler or a copy: nobody waits for them

    def _hear(self, number: int, told: Message) -> None:
        with self._state:
            if number in self._lines:
                self._lines[number].put(told)
                return
            service = SERVICES.get(type(told.content))
            if service is None:  # a last word to a channel that has failed
                told.drop()
                return
            line = self._lines[number] = SimpleQueue()
        threading.Thread(target=self._serve, args=(number, service, told, line), daemon=True).start()

    def _say(self, number: int, content: Any, descriptor: int | None = None) -> None:
        with self._sending, suppress(OSError):
            self._pipe.send((number, content, descriptor is not None))
            if descriptor is not None:
                send_handle(self._pipe, descriptor, os.getppid())

    def _build(self) -> None:
        told = self._lines[BUILDING].get()
        build: Build = told.content
        self._device = build.device
        try:
            opened = open_device(build.device, build.threads)
            self._say(BUILDING, IsOpen(opened.device.facts, opened.choice))
            engine = Engine(_model(build, told), device=opened, **build.options)
            self._card = Card(engine)
            self._say(BUILDING, _described(engine))
        except BaseException as error:
            self._say(BUILDING, Failed.of(error, self._device))

    def _serve(self, number: int, service: Service, first: Message, heard: SimpleQueue[Message]) -> None:
        try:
            assert self._card is not None  # nobody asks before it is built
            stop = partial(heard.put, Message(End(is_left=True)))
            service(self._card, first, Line(heard.get, partial(self._say, number), stop))
        except BaseException as error:
            self._say(number, Failed.of(error, self._device))
        with self._state:
            del self._lines[number]


def _model(build: Build, told: Message) -> Model:
    if build.path is not None:
        return Model(build.path)
    assert told.descriptor is not None
    try:
        return Model(read_held(told.descriptor))
    finally:
        told.drop()


def _described(engine: Engine) -> IsBuilt:
    programs = tuple(map(_without_steps, engine.plan.programs))
    takes_any = None in (engine.inputs[0].shape or ())[1:]
    return IsBuilt(programs, engine.inputs, engine.outputs, engine.timings, takes_any, engine.plan.arithmetic)


def _without_steps(program: LaunchPlan) -> LaunchPlan:
    entries = {name: replace(entry, steps=()) for name, entry in program.input.entries.items()}
    return replace(program, input=replace(program.input, entries=entries), steps=(), output_steps=())
