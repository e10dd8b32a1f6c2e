"""Files through threads that decode, a thread that feeds each device, and back into the order of the files."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from vgg16gpu.devices.base import Bytes
from vgg16gpu.errors import DeviceError, Error, KernelError
from vgg16gpu.io.scores import PredictionBatch
from vgg16gpu.pictures.loading.loader import Loader
from vgg16gpu.runtime.answers.dealing import WorkQueue
from vgg16gpu.runtime.answers.feeding import DeviceSeconds, DeviceWorker, LocalDeviceWorker, Told
from vgg16gpu.runtime.answers.rows import Answering, AnswerRows, Ranking
from vgg16gpu.runtime.closing import Closing
from vgg16gpu.runtime.engine import Engine

if TYPE_CHECKING:
    from vgg16gpu.compiler.op_kernels.layout.resize import ResizeSpec
    from vgg16gpu.devices.picture_decoder import PictureCodec
    from vgg16gpu.runtime.answers.decoding import DecodedFiles, Slots

QUEUED = 8  # batches of each device that wait to be written; then it waits

_log = logging.getLogger(__name__)


Tell: TypeAlias = Callable[[Told], None]


class WorkerFactory(Protocol):
    """Where batches are computed."""

    @property
    def engine(self) -> Answering:
        """By which engine."""

    def feeder(self, slots: Slots, fit: ResizeSpec | None, tell: Tell) -> DeviceWorker:
        """Who feeds it from `slots`. fit: what the device does to pictures as they were decoded."""


class LocalWorkerFactory(NamedTuple):
    """An engine of this process, and what decodes files on its device, where that does."""

    engine: Engine
    codec: PictureCodec | None = None

    def feeder(self, slots: Slots, fit: ResizeSpec | None, tell: Tell) -> DeviceWorker:
        """See WorkerFactory."""
        return LocalDeviceWorker(self.engine, slots, fit, self.codec, tell)


TakeOut: TypeAlias = Callable[[Answering, Error], bool]  # whether others do the work of one that fails with this


class AnswerStream(Closing):
    """The answers to a loader's files, in their order, while files are decoded and batches computed beside.

    Iterate over it once, and `close` it before the engines: that ends the threads. Raises what the threads raise.
    `feeders`: one for each engine.
    """

    def __init__(
        self,
        seats: Sequence[WorkerFactory],
        loader: Loader,
        ranking: Ranking,
        fit: ResizeSpec | None = None,
        take_out: TakeOut = lambda *_: False,
    ) -> None:
        """fit: what devices do to pictures that come as they were decoded; None where there are none.

        Several seats, and those in other processes, want a loader that `takes_back`.
        """
        self._seats, self._loader, self._ranking = seats, loader, ranking
        self._take_out = take_out
        self.ranking_seconds = 0.0
        self._told: SimpleQueue[Told] = SimpleQueue()
        self._room: SimpleQueue[None] = SimpleQueue()  # an entry for each thing more that may be told
        for _ in range(QUEUED * len(seats)):
            self._room.put(None)
        self._is_closed = False
        self._lock = threading.Lock()
        self._alive = len(seats)
        is_alone = len(seats) == 1 and isinstance(seats[0], LocalWorkerFactory)
        self._dealer = None if is_alone else WorkQueue(loader, len(seats))
        hands: Sequence[Slots] = self._dealer.hands if self._dealer else [loader]
        self.feeders: list[DeviceWorker] = []
        with ExitStack() as undo:  # where a device has no room for what it decodes
            if self._dealer:
                undo.callback(self._dealer.close)
                undo.callback(loader.close)
            for seat, hand in zip(seats, hands, strict=True):
                self.feeders.append(seat.feeder(hand, fit, self._tell))
                undo.callback(self.feeders[-1].close)
            undo.pop_all()
        self._threads = [
            threading.Thread(target=self._compute, args=(feeder,), name=f"vgg16gpu-feed-{number}")
            for number, feeder in enumerate(self.feeders)
        ]

    def __iter__(self) -> Iterator[PredictionBatch]:
        for thread in self._threads:
            thread.start()
        rows = AnswerRows(self._seats[0].engine, self._ranking, self._loader.first)
        while (told := self._told.get()) is not None:
            self._room.put(None)
            if isinstance(told, BaseException):
                raise told
            start = time.perf_counter()
            answers = rows.add(told)
            self.ranking_seconds += time.perf_counter() - start
            if answers:
                yield answers
            self._loader.answered(rows.file)

    @property
    def seconds(self) -> DeviceSeconds:
        """Where the time of the threads that feed went: of each, on average."""
        count = len(self.feeders)
        return DeviceSeconds(
            sum(feeder.seconds.waiting for feeder in self.feeders) / count,
            sum(feeder.seconds.computing for feeder in self.feeders) / count,
            next((feeder.seconds.first_run for feeder in self.feeders if feeder.batches), 0.0),
        )

    @property
    def batches(self) -> int:
        """Return how many were computed."""
        return sum(feeder.batches for feeder in self.feeders)

    @property
    def element_types(self) -> set[str]:
        """Of the inputs that were computed."""
        return {name for feeder in self.feeders for name in feeder.element_types}

    @property
    def decoded(self) -> DecodedFiles | None:
        """What became of the files that devices decode; None where they decode none."""
        told = [feeder.decoded for feeder in self.feeders if feeder.decoded]
        if not told:
            return None
        whole = replace(told[0])
        for other in told[1:]:
            whole.add(other)
        return whole

    def close(self) -> None:
        """End all threads. Safe to call twice."""
        self._is_closed = True
        self._loader.close()
        while any(thread.is_alive() for thread in self._threads):
            with suppress(Empty):
                self._told.get(timeout=0.01)
                self._room.put(None)  # they may wait for it
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        if self._dealer:
            self._dealer.close()
        for feeder in self.feeders:
            feeder.close()
        buffer = self._loader.ring.unpinned()
        if buffer is not None:
            self._unpin(buffer)

    def _unpin(self, buffer: Bytes) -> None:
        engine = self._seats[0].engine
        assert isinstance(engine, Engine)  # other processes pin for themselves
        try:
            with engine.turn():
                engine.device.unpin(buffer)
        except Error as error:  # of a device that has failed, and whose memory goes when it is closed
            if len(self.feeders) == 1:
                raise
            _log.debug("%s", error)

    def _tell(self, told: Told) -> None:
        """Put it behind the others, once there is room."""
        self._room.get()
        self._told.put(told)

    def _compute(self, feeder: DeviceWorker) -> None:
        try:
            feeder.feed(lambda: self._is_closed)
            feeder.close()
        except BaseException as error:
            self._failed(feeder, error)
        with self._lock:
            self._alive -= 1
            is_last = not self._alive
        if is_last:
            self._tell(None)

    def _failed(self, feeder: DeviceWorker, error: BaseException) -> None:
        """Others do the work of a device that has failed, where there are others; else the caller hears of it."""
        if isinstance(error, DeviceError | KernelError) and self._take_out(feeder.engine, error):
            feeder.give_up()
            return
        self._tell(error)
        try:
            feeder.close()
        except Error as second:
            _log.debug("%s", second)
