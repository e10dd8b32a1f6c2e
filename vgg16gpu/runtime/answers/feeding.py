"""What one engine's thread does: slots into its feeds, and what comes of them to whoever puts answers into order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from vgg16gpu.errors import Error
from vgg16gpu.pictures.slots import Slot
from vgg16gpu.runtime.answers.dealing import Consumer
from vgg16gpu.runtime.answers.feed import BatchAssembler, Computed
from vgg16gpu.runtime.answers.rows import Answering, FileEvents
from vgg16gpu.runtime.engine import Engine

if TYPE_CHECKING:
    from vgg16gpu.compiler.op_kernels.layout.resize import ResizeSpec
    from vgg16gpu.devices.picture_decoder import PictureCodec
    from vgg16gpu.runtime.answers.decoding import DecodedFiles, DeviceDecoding, Slots

Told: TypeAlias = Computed | FileEvents | BaseException | None


@dataclass
class DeviceSeconds:
    """Where the time of a thread that feeds a device went."""

    waiting: float = 0.0  # for samples
    computing: float = 0.0  # uploading and waiting for the device
    first_run: float = 0.0  # the first batch, from its launch to its results


class DeviceWorker(Protocol):
    """What a stream of answers asks of who feeds one engine: `LocalDeviceWorker`, or who does it in another process."""

    seconds: DeviceSeconds
    batches: int
    images: int
    element_types: set[str]  # of the inputs that were computed

    @property
    def engine(self) -> Answering:
        """Which one."""

    @property
    def decoded(self) -> DecodedFiles | None:
        """What became of the files that the device decodes; None where it decodes none."""

    def feed(self, is_closed: Callable[[], bool]) -> None:
        """Compute all that comes, until there is no more, or nobody wants it. Raises what the device and readers do."""

    def give_up(self) -> None:
        """After a failure: others compute what this engine has not."""

    def close(self) -> None:
        """Give back what is held. Safe to call twice."""


class LocalDeviceWorker:
    """One engine, fed from `slots`. `feed` once, in one thread, then `close`.

    fit: what the device does to pictures that come as they were decoded; None where there are none. codec: what decodes
    the files in slots, where these hold files.
    """

    def __init__(
        self,
        engine: Engine,
        slots: Slots,
        fit: ResizeSpec | None,
        codec: PictureCodec | None,
        tell: Callable[[Told], None],
    ) -> None:
        self.engine = engine
        self.seconds = DeviceSeconds()
        self.batches = self.images = 0
        self.element_types: set[str] = set()  # of the inputs that were computed
        self._slots, self._ring, self._fit, self._tell = slots, slots.ring, fit, tell
        self._hand = slots if isinstance(slots, Consumer) else None
        self._decoding = self._decodes(codec) if self._ring.room_nbytes else None
        self._feeds: dict[str, BatchAssembler] = {}

    def _decodes(self, codec: PictureCodec | None) -> DeviceDecoding:
        from vgg16gpu.runtime.answers.decoding import DeviceDecoding  # noqa: PLC0415 - else the CPU has decoded

        return DeviceDecoding(self.engine, self._slots, codec)

    @property
    def decoded(self) -> DecodedFiles | None:
        """What became of the files that the device decodes; None where it decodes none."""
        return self._decoding.told if self._decoding else None

    def feed(self, is_closed: Callable[[], bool]) -> None:
        """Compute all that comes, until there is no more, or nobody wants it. Raises what the device and readers do."""
        filling: BatchAssembler | None = None
        end = time.perf_counter()
        for slot in self._decoding or self._slots:
            start = time.perf_counter()
            self.seconds.waiting += start - end
            if is_closed():
                return
            if slot is None:
                if filling:
                    self._pass_on(filling.flush())
            else:
                filling = self._take(slot, filling)
            end = time.perf_counter()
            self.seconds.computing += end - start
        if filling:
            self._pass_on(filling.flush())
            self.seconds.computing += time.perf_counter() - end

    def give_up(self) -> None:
        """After a failure: others compute what this engine has not; of a feeder with a hand of slots."""
        assert self._hand
        self._hand.close()
        for close in (self._close_decoding, self._close_feeds):
            try:
                close()
            except Error:  # of a device that has failed already
                continue
        for heard in self._hand.hand_back():
            self._tell(heard)

    def close(self) -> None:
        """Give memory back, once the loader is closed or at its end. Safe to call twice."""
        self._close_feeds()
        self._close_decoding()

    def _close_feeds(self) -> None:
        while self._feeds:
            self._feeds.popitem()[1].close()

    def _close_decoding(self) -> None:
        if self._decoding:
            self._decoding.close()

    def _take(self, slot: Slot, filling: BatchAssembler | None) -> BatchAssembler | None:
        heard = self._hand.heard(slot) if self._hand else FileEvents(slot.failures, slot.ends)
        if heard.failures or heard.ends:  # first: should the device fail with this slot, nobody else hears of them
            self._tell(heard)
        if not slot.rows:
            self._ring.give_back(slot)
            return filling
        if slot.element_type not in self._feeds:
            self.element_types.add(slot.element_type)
            fit = self._fit if slot.element_type == "uint8" else None
            self._feeds[slot.element_type] = BatchAssembler(self.engine, slot.element_type, self._ring, fit)
        feed = self._feeds[slot.element_type]
        if filling and feed is not filling:
            self._pass_on(filling.flush())
        self._pass_on(feed.put(slot))
        return feed

    def _pass_on(self, computed: Iterator[Computed]) -> None:
        for batch in computed:
            self.batches += 1
            self.images += len(batch.rows)
            self.seconds.first_run = self.seconds.first_run or batch.seconds
            if self._hand:
                self._hand.done((row.file, row.sample) for row in batch.rows)
            self._tell(batch)
