"""Batches of arrays on their way to a card's process: copied once, into memory that both share and the card reads."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import numpy as np

from vgg16gpu.cluster.cards.memory import array_in, make_shared
from vgg16gpu.cluster.cards.messages import Count, Counts, OpenCount, Receive, Received, RunBatch
from vgg16gpu.cluster.cards.process import Channel, Message
from vgg16gpu.compiler.graph.ops import Shape
from vgg16gpu.compiler.quantization.scheme import Histogram
from vgg16gpu.devices.base import Bytes
from vgg16gpu.devices.staging import PinnedCopier, Rows
from vgg16gpu.runtime.arrays import Images
from vgg16gpu.runtime.outputs import OutputRows, Outputs, check_flags, joined
from vgg16gpu.runtime.streaming import DEPTH


class SharedBatchMemory:
    """Memory for the batches of an engine, shared with its process. It grows, and is kept."""

    def __init__(self) -> None:
        self.memory: Bytes = np.empty(0, np.uint8)

    @contextmanager
    def of(self, nbytes: int) -> Iterator[tuple[int | None, int | None]]:
        """Yield bytes and descriptor of new memory for `nbytes`, which is to be sent inside the block.

        Both None where the present memory suffices.
        """
        if nbytes <= len(self.memory):
            yield None, None
            return
        memory, descriptor = make_shared(nbytes)
        try:
            yield len(memory), descriptor
        finally:
            os.close(descriptor)
        self.memory = memory  # the other side has it

    def close(self) -> None:
        """Release the memory, as far as no caller holds a part of it."""
        self.memory = np.empty(0, np.uint8)


class CardLane(NamedTuple):
    """As `double_buffer.Lane`, to another process."""

    send: Callable[..., object]
    receive: Callable[[object], OutputRows]
    joined: Callable[..., Outputs]


class RemoteStream:
    """One lane: places in the room, by turns, and what lies in them."""

    def __init__(self, channel: Channel, room: SharedBatchMemory, stager: PinnedCopier, nbytes: int) -> None:
        """Store the channel and the memory; nbytes: of the memory for a batch."""
        self._channel, self._room, self._stager, self._nbytes = channel, room, stager, nbytes
        self._turn = 0
        self._back: Bytes = np.empty(0, np.uint8)

    def lane(self, element_type: str, sample: Shape, whole: Collection[int], *, allows_nonfinite: bool) -> CardLane:
        """Return the stream's calls. whole: numbers of outputs without a row for each image."""
        return CardLane(
            partial(self._send, element_type, sample),
            self._receive,
            partial(_joined, whole, allows_nonfinite),
        )

    def close(self) -> None:
        """Free its own memory, even if an exception references it."""
        self._channel.close()
        self._back = np.empty(0, np.uint8)

    def _send(self, element_type: str, sample: Shape, rows: Sequence[Rows], batch: int | None = None) -> object:
        offset = self._turn * self._nbytes
        self._turn = (self._turn + 1) % DEPTH
        count = sum(map(len, rows))
        place(self._stager, self._room.memory[offset:], element_type, (count, *sample), rows)
        self._channel.ask(RunBatch(offset, count, batch))
        return None

    def _receive(self, sent: object) -> OutputRows:  # noqa: ARG002 - they come in the order of sending
        self._channel.send(Receive())
        told = self._channel.receive()
        received: Received = told.content
        self._take(received, told)
        arrays, first = [], 0
        for shape in received.shapes:
            arrays.append(array_in(self._back[first:], "float32", shape).copy())
            first += arrays[-1].nbytes
        return OutputRows(tuple(arrays), received.nonfinite, received.out_of_range)

    def _take(self, received: Received, told: Message) -> None:
        """Map the memory of results, if it is new."""
        if received.nbytes is not None:
            self._back = told.mapped(received.nbytes)


class CountThere:
    """Images are run, and values counted."""

    def __init__(self, channel: Channel, room: SharedBatchMemory, stager: PinnedCopier, names: Sequence[str]) -> None:
        self._channel, self._room, self._stager, self._names = channel, room, stager, tuple(names)
        self._begun = False

    def count(self, images: Images) -> None:
        """Run them, and count. Raises as `Counting.add` does."""
        self._begin(images.nbytes)
        place(self._stager, self._room.memory, images.dtype.name, images.shape, [images])
        self._channel.ask(Count(images.dtype.name, images.shape))

    def histograms(self) -> Mapping[str, Histogram]:
        """Return everything that was counted; once, at the end."""
        self._begin(0)
        counted: Mapping[str, Histogram] = self._channel.ask(Counts())
        return counted

    def _begin(self, nbytes: int) -> None:
        """Open the count with the first batch: all have its size, but for the last one, which is smaller."""
        if not self._begun:
            with self._room.of(nbytes) as (new, descriptor):
                self._channel.ask(OpenCount(self._names, new), descriptor)
            self._begun = True


def place(stager: PinnedCopier, memory: Bytes, element_type: str, shape: Shape, rows: Sequence[Rows]) -> None:
    """Copy the rows of several arrays to the start of some memory, one after the other."""
    stager.fill(array_in(memory, element_type, shape), rows)


def _joined(whole: Collection[int], allows_nonfinite: bool, parts: Sequence[OutputRows], where: str = "") -> Outputs:
    check_flags(parts, allows_nonfinite, where)
    outputs = joined(parts, whole)
    return outputs[0] if len(outputs) == 1 else outputs
