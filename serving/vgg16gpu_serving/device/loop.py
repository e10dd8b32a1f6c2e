"""The loop of a device process: messages in, batches through the engine, answers out. One thread does it all.

A batch is sent the moment the device is free, of whatever is there then. While one is computed, the next is sent
behind it if it is full, or if its first image has waited for the delay. The CPU computes as it is sent: there one is
enough.
"""

from __future__ import annotations

import json
import logging
import math
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Final, TypeAlias

import numpy as np

from vgg16gpu.devices.base import Bytes
from vgg16gpu.errors import DeviceError, InputError
from vgg16gpu.runtime.arrays import Images
from vgg16gpu.runtime.engine import Engine
from vgg16gpu.runtime.outputs import NONFINITE
from vgg16gpu.runtime.streaming import DEPTH, Sent, StreamSession
from vgg16gpu_serving.children import answered
from vgg16gpu_serving.device.batching import Item, Queue
from vgg16gpu_serving.device.pictures import PictureLane
from vgg16gpu_serving.device.statistics import Statistics
from vgg16gpu_serving.refused import too_late
from vgg16gpu_serving.served import Description
from vgg16gpu_serving.slots import SlotLayout, SlotMemory
from vgg16gpu_serving.wire import CANCELLED, JOINED_NBYTES, MAX_NBYTES, UNDECODED, Answer, Asked, Kind, Outbox

_log = logging.getLogger(__name__)
_TYPES: Final = {Kind.FLOATS: "float32", Kind.PIXELS: "uint8"}

Pictures: TypeAlias = Callable[[StreamSession], PictureLane]


@dataclass(eq=False)
class Peer:
    """A front end that is connected. memory: its slots, None before its HELLO. outbox: answers."""

    socket: socket.socket
    outbox: Outbox = field(default_factory=Outbox)
    memory: SlotMemory | None = None
    is_open: bool = True


@dataclass(frozen=True)
class Run:
    """A batch under way."""

    items: list[Item[Peer]]
    lane: StreamSession
    sent: Sent
    batch: int
    began: float
    refused: frozenset[int] = frozenset()  # files that the device does not decode, by their number in the batch


class DeviceLoop:
    """Serves one engine. Closing it gives the lanes back. beat: is called about twice a second, idle or not."""

    def __init__(
        self,
        engine: Engine,
        description: Description,
        max_delay: float,
        beat: Callable[[], None],
        pictures: Pictures | None = None,
    ) -> None:
        """Open the lanes; pictures: makes the lane of those that the device resizes, behind the lane of pixels."""
        self._engine, self._description, self._delay, self._beat = engine, description, max_delay, beat
        self._layout = SlotLayout.of(description)
        self._depth = 1 if engine.device.facts.kind == "cpu" else DEPTH
        self._queue: Queue[Peer] = Queue(description.largest)
        self._under_way: deque[Run] = deque()
        self._peers: set[Peer] = set()
        self._left: list[Peer] = []  # gone, whose slots may be read yet
        self._statistics = Statistics()
        self._selector = selectors.DefaultSelector()
        self._buffer = memoryview(bytearray(MAX_NBYTES))
        self._stack = ExitStack()
        self._shapes = {Kind.FLOATS: description.sample}
        if description.pixels:
            self._shapes[Kind.PIXELS] = description.pixels
        self._lanes = {
            kind: self._stack.enter_context(engine.lane(_TYPES[kind], shape, description.largest, is_direct=True))
            for kind, shape in self._shapes.items()
        }
        self._pictures = self._stack.enter_context(pictures(self._lanes[Kind.PIXELS])) if pictures else None

    def close(self) -> None:
        """Free its resources of the engine and the system."""
        self._stack.close()
        self._selector.close()
        for peer in self._peers:
            peer.socket.close()

    def warm_up(self) -> float:
        """Run every batch size of every kind once, on zeros: the seconds of the slowest."""
        slowest = 0.0
        if self._pictures:
            began = time.monotonic()
            self._pictures.warm_up(self._description.batches)
            slowest = time.monotonic() - began
        for kind, lane in self._lanes.items():
            for batch in self._description.batches:
                shape = batch, *self._shapes[kind]
                is_pixels = kind == Kind.PIXELS
                rows: Images = np.zeros(shape, np.uint8) if is_pixels else np.zeros(shape, np.float32)
                began = time.monotonic()
                lane.receive(lane.send([rows], batch))
                slowest = max(slowest, time.monotonic() - began)
        return slowest

    def serve(self, listener: socket.socket, until: Connection) -> None:
        """Serve until `until` ends; its messages are answered (`children.py`). Raises DeviceError and KernelError."""
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(until, selectors.EVENT_READ)
        while True:
            is_idle = not self._queue and not self._under_way
            for key, _ in self._selector.select(None if is_idle else 0):
                if key.fileobj is until:
                    self._beat()
                    if not answered(until):
                        return
                elif key.fileobj is listener:
                    self._accept(listener)
                else:
                    self._read(key.data)
            self._send_due()
            if self._under_way:
                self._finish(self._under_way.popleft())
            self._send_answers()
            if self._left:
                self._let_go()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(BlockingIOError):
            accepted, _ = listener.accept()
            accepted.setblocking(False)
            peer = Peer(accepted)
            self._peers.add(peer)
            self._selector.register(accepted, selectors.EVENT_READ, peer)

    def _read(self, peer: Peer) -> None:
        """Read all messages of one front end."""
        while peer.is_open:
            try:
                nbytes = peer.socket.recv_into(self._buffer) if peer.memory else self._greet(peer)
            except BlockingIOError:
                return
            except OSError:
                nbytes = 0
            if not nbytes:
                self._drop(peer)
                return
            self._take(peer, Asked.unpacked(self._buffer[:nbytes]))

    def _greet(self, peer: Peer) -> int:
        """Receive the first message, into the buffer, and the slots; return its bytes."""
        message, descriptors, _, _ = socket.recv_fds(peer.socket, len(self._buffer), 1)
        for descriptor in descriptors:
            peer.memory = SlotMemory(descriptor, self._layout)
            os.close(descriptor)
            try:
                self._engine.device.pin(peer.memory.bytes)
            except DeviceError as error:
                _log.warning("slots are not pinned, copies from them take longer: %s", error)
        self._buffer[: len(message)] = message
        return len(message) if peer.memory else 0

    def _take(self, peer: Peer, asked: Asked) -> None:
        if asked.kind in self._lanes or asked.kind == Kind.PICTURES:
            self._queue.add(Item(peer, asked))
        elif asked.kind == Kind.CANCEL:
            for item in self._queue.drop(lambda item: item.sender is peer and item.asked.number == asked.number):
                self._statistics.add_fail(time.monotonic() - item.asked.sent)
                self._answer(peer, Answer(asked.number, CANCELLED))
        elif asked.kind == Kind.STATISTICS:
            told = {"device": self._description.device, **self._statistics.told()}
            self._answer(peer, Answer(asked.number, text=json.dumps(told)))
        else:
            self._answer(peer, Answer(asked.number))

    def _drop(self, peer: Peer) -> None:
        peer.is_open = False
        self._queue.drop(lambda item: item.sender is peer)
        self._peers.discard(peer)
        self._selector.unregister(peer.socket)
        peer.socket.close()
        self._left.append(peer)

    def _let_go(self) -> None:
        """End the pinning of slots that no batch reads any more."""
        reading = {item.sender for run in self._under_way for item in run.items}
        for peer in [peer for peer in self._left if peer not in reading]:
            self._left.remove(peer)
            if peer.memory:
                with suppress(DeviceError):  # they were not pinned
                    self._engine.device.unpin(peer.memory.bytes)

    def _answer(self, peer: Peer, answer: Answer) -> None:
        if peer.is_open:
            peer.outbox.add(answer.packed())

    def _send_answers(self) -> None:
        for peer in [peer for peer in self._peers if peer.outbox]:
            try:
                is_sent = peer.outbox.send(peer.socket, JOINED_NBYTES)
            except OSError:
                self._drop(peer)
            else:
                events = selectors.EVENT_READ if is_sent else selectors.EVENT_READ | selectors.EVENT_WRITE
                if self._selector.get_key(peer.socket).events != events:
                    self._selector.modify(peer.socket, events, peer)

    def _send_due(self) -> None:
        """Enqueue what may go now."""
        while self._queue and len(self._under_way) < self._depth:
            now = time.monotonic()
            for late in self._queue.drop(lambda item: item.asked.deadline < now):  # noqa: B023 - used at once
                error = too_late()
                self._statistics.add_fail(now - late.asked.sent)
                self._answer(late.sender, Answer(late.asked.number, error.status, text=str(error)))
            if self._under_way and not self._queue.is_due(now, self._delay):
                return
            if items := self._queue.take():
                self._under_way.append(self._sent(items, now))

    def _sent(self, items: list[Item[Peer]], now: float) -> Run:
        kind = items[0].asked.kind
        batch = next(size for size in self._description.batches if size >= sum(map(len, items)))
        if kind == Kind.PICTURES:
            assert self._pictures  # else no front end asks
            sent, files, refused = self._pictures.send(_inputs(items, self._layout.input), batch)
            self._statistics.add_files(files, len(refused))
            return Run(items, self._lanes[Kind.PIXELS], sent, batch, now, refused)
        lane, shape = self._lanes[kind], self._shapes[kind]
        element = np.dtype(_TYPES[kind])
        inputs = _inputs(items, element.itemsize * math.prod(shape))
        rows = [row.view(element).reshape(1, *shape) for row in inputs]
        return Run(items, lane, lane.send(rows, batch), batch, now)

    def _finish(self, run: Run) -> None:
        """Wait for a batch and answer its items; one with an error of its own is the only one to get it."""
        results = run.lane.receive(run.sent)
        now = time.monotonic()
        first = 0
        self._statistics.add_batch(sum(map(len, run.items)), now - run.began)
        for item in run.items:
            asked, last = item.asked, first + len(item)
            queued, computed = run.began - asked.sent, now - run.began
            answer = Answer(asked.number, 200, run.batch, queued, computed)
            if not run.refused.isdisjoint(range(first, last)):
                self._answer(item.sender, Answer(asked.number, UNDECODED, run.batch, queued, computed))
                first = last
                continue
            try:
                joined = run.lane.joined([results.rows(first, last)])
            except InputError as error:
                reason = str(error).replace(NONFINITE, "holds NaN or Inf; clean the data")  # no option allows them here
                answer = Answer(asked.number, 400, run.batch, queued, computed, reason)
            else:
                if item.sender.is_open:
                    _write(item, joined if isinstance(joined, tuple) else (joined,))
            if answer.status == 200:
                self._statistics.add_success(now - asked.sent, queued, computed)
            else:
                self._statistics.add_fail(now - asked.sent)
            self._answer(item.sender, answer)
            first = last


def _inputs(items: list[Item[Peer]], nbytes: int) -> list[Bytes]:
    """Return the first bytes of the input of every slot."""
    return [memory.input(slot, nbytes) for item in items if (memory := item.sender.memory) for slot in item.asked.slots]


def _write(item: Item[Peer], outputs: tuple[Images, ...]) -> None:
    assert item.sender.memory
    for row, slot in enumerate(item.asked.slots):
        for place, output in zip(item.sender.memory.outputs(slot), outputs, strict=True):
            place[:] = output[row].reshape(-1)
