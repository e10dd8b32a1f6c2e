"""Files through threads that decode, a thread that feeds the device, and back into the order of the files."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from queue import Empty, Queue
from typing import TypeAlias

from vgg16gpu.compiler.lowering.layout.resize import Fit
from vgg16gpu.io.answers import Answers
from vgg16gpu.pictures.loader import Loader
from vgg16gpu.pictures.slots import Slot
from vgg16gpu.runtime.answers.decoding import DecodedFiles, DeviceDecoding
from vgg16gpu.runtime.answers.feed import Computed, Feed
from vgg16gpu.runtime.answers.rows import AnswerRows, Heard, Ranking
from vgg16gpu.runtime.closing import Closing
from vgg16gpu.runtime.engine import Engine

QUEUED = 8  # batches that wait to be written; then the device waits


@dataclass
class DeviceSeconds:
    """Where the time of the thread that feeds the device went."""

    waiting: float = 0.0  # for samples
    computing: float = 0.0  # uploading and waiting for the device
    first_run: float = 0.0  # the first batch, from its launch to its results


_Told: TypeAlias = Computed | Heard | BaseException | None


class AnswerStream(Closing):
    """The answers to a loader's files, in their order, while files are decoded and batches computed beside.

    Iterate over it once, and `close` it before the engine: that ends the threads. Raises what the threads raise.
    """

    def __init__(
        self,
        engine: Engine,
        loader: Loader,
        ranking: Ranking,
        fit: Fit | None = None,
        decoding: DeviceDecoding | None = None,
    ) -> None:
        """fit: what the device does to pictures that come as they were decoded; None where there are none.

        decoding: what decodes the files in the loader's slots, and is closed with this; None where none are in them.
        """
        self._engine, self._loader, self._ranking, self._fit = engine, loader, ranking, fit
        self._decoding = decoding
        self.seconds = DeviceSeconds()
        self.batches = 0
        self.element_types: set[str] = set()  # of the inputs that were computed
        self.ranking_seconds = 0.0
        self._told: Queue[_Told] = Queue(QUEUED)
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._compute, name="vgg16gpu-feed")

    def __iter__(self) -> Iterator[Answers]:
        self._thread.start()
        rows = AnswerRows(self._engine, self._ranking, self._loader.first)
        while (told := self._told.get()) is not None:
            if isinstance(told, BaseException):
                raise told
            start = time.perf_counter()
            answers = rows.add(told)
            self.ranking_seconds += time.perf_counter() - start
            if answers:
                yield answers
            self._loader.answered(rows.file)

    @property
    def decoded(self) -> DecodedFiles | None:
        """What became of the files that the device decodes; None where it decodes none."""
        return self._decoding.told if self._decoding else None

    def close(self) -> None:
        """End all threads. Safe to call twice."""
        self._is_closed.set()
        self._loader.close()
        while self._thread.is_alive():
            try:
                self._told.get(timeout=0.01)  # it may wait for room
            except Empty:
                continue
        if self._thread.ident is not None:
            self._thread.join()
        if self._decoding:
            self._decoding.close()
        buffer = self._loader.ring.unpinned()
        if buffer is not None:
            with self._engine.turn():
                self._engine.device.unpin(buffer)

    def _compute(self) -> None:
        feeds: dict[str, Feed] = {}
        try:
            self._feed_all(feeds)
        except BaseException as error:
            self._told.put(error)
        finally:
            for feed in feeds.values():
                feed.close()
            if self._decoding:
                self._decoding.close()
            self._told.put(None)

    def _feed_all(self, feeds: dict[str, Feed]) -> None:
        filling: Feed | None = None
        end = time.perf_counter()
        for slot in self._decoding or self._loader:
            start = time.perf_counter()
            self.seconds.waiting += start - end
            if self._is_closed.is_set():
                return
            if slot is None:
                if filling:
                    self._tell(filling.flush())
            else:
                filling = self._take(slot, feeds, filling)
            end = time.perf_counter()
            self.seconds.computing += end - start
        if filling:
            self._tell(filling.flush())
            self.seconds.computing += time.perf_counter() - end

    def _take(self, slot: Slot, feeds: dict[str, Feed], filling: Feed | None) -> Feed | None:
        heard = Heard(slot.failures, slot.ends)
        if slot.rows:
            if slot.element_type not in feeds:
                self.element_types.add(slot.element_type)
                feeds[slot.element_type] = Feed(
                    self._engine,
                    slot.element_type,
                    self._loader.ring,
                    self._fit if slot.element_type == "uint8" else None,
                )
            feed = feeds[slot.element_type]
            if filling and feed is not filling:
                self._tell(filling.flush())
            filling = feed
            self._tell(feed.put(slot))
        else:
            self._loader.ring.give_back(slot)
        if heard.failures or heard.ends:
            self._told.put(heard)
        return filling

    def _tell(self, computed: Iterator[Computed]) -> None:
        for batch in computed:
            self.batches += 1
            self.seconds.first_run = self.seconds.first_run or batch.seconds
            self._told.put(batch)
