"""A folder's slots to a card's process: who gives them out here, and hears what came of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from vgg16gpu.cluster.cards.engine import CardEngine
from vgg16gpu.cluster.cards.messages import ComputeAll, End, FeedEnded, FilledSlot, FreeSlot, OpenFeed
from vgg16gpu.pictures.loading.shared import SharedBufferPool
from vgg16gpu.pictures.slots import Slot
from vgg16gpu.runtime.answers.dealing import Consumer
from vgg16gpu.runtime.answers.feed import Computed
from vgg16gpu.runtime.answers.feeding import DeviceSeconds, DeviceWorker
from vgg16gpu.runtime.answers.rows import FileEvents
from vgg16gpu.runtime.answers.stream import Tell

if TYPE_CHECKING:
    from vgg16gpu.compiler.op_kernels.layout.resize import ResizeSpec
    from vgg16gpu.runtime.answers.decoding import DecodedFiles, Slots

# Slots that a process has at most: two on their way to the device, as a `Feed` has, and two that are there when it
# wants them. At rest it gives all but two back, so that more can come.
AT_ONCE: Final = 4
PATIENCE: Final = 10.0  # seconds in which a process is to stop that nobody wants anything of; then it is ended
_LOOK: Final = 0.2  # seconds between two looks whether anybody still wants anything


class CardWorkerFactory(NamedTuple):
    """See `stream.Seat`. decode: who decodes, of `pictures.choices.DECODE`, where the device does."""

    engine: CardEngine
    decode: str | None

    def feeder(self, slots: Slots, fit: ResizeSpec | None, tell: Tell) -> DeviceWorker:
        """See Seat."""
        assert isinstance(slots, Consumer)
        return CardDeviceWorker(self.engine, slots, fit, self.decode, tell)


class CardDeviceWorker:
    """As `Feeder`, of an engine in a process of its own. `feed` once, in one thread, then `close`."""

    def __init__(
        self, engine: CardEngine, hand: Consumer, fit: ResizeSpec | None, decode: str | None, tell: Tell
    ) -> None:
        self.engine = engine
        self.seconds = DeviceSeconds()
        self.batches = self.images = 0
        self.element_types: set[str] = set()
        self.decoded: DecodedFiles | None = None
        ring = hand.ring
        assert isinstance(ring, SharedBufferPool)
        self._hand, self._ring, self._tell = hand, ring, tell
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._there: dict[int, Slot] = {}  # what the process has, by number
        self._failure: BaseException | None = None
        self._channel = engine.process.channel()
        opened = OpenFeed(hand.spec, ring.nbytes, ring.count, ring.rows, ring.room_nbytes, fit, decode)
        self._channel.send(opened, ring.memory_file)

    def feed(self, is_closed: Callable[[], bool]) -> None:
        """See DeviceWorker."""
        hearing = threading.Thread(target=self._hear, name=f"vgg16gpu-heard-{self.engine.process.device}")
        hearing.start()
        is_left = True
        try:
            self._give(is_closed)
            is_left = is_closed()
        finally:
            self._channel.send(End(is_left))
            waited = 0.0
            while hearing.is_alive():
                hearing.join(_LOOK)
                waited += _LOOK if is_left or is_closed() else 0.0
                if waited > PATIENCE:
                    self.engine.process.kill()
        if self._failure:
            raise self._failure

    def give_up(self) -> None:
        """See DeviceWorker."""
        self._hand.close()
        self.close()
        for heard in self._hand.hand_back():
            self._tell(heard)

    def close(self) -> None:
        """Tell the process to leave the folder. Safe to call twice."""
        self._channel.send(End(is_left=True))
        self._channel.close()

    def _give(self, is_closed: Callable[[], bool]) -> None:
        """Send slots to the process, as it has places for them. Raises what the loader does."""
        slots = iter(self._hand)
        while self._has_place(is_closed):
            try:
                slot = next(slots)
            except StopIteration:
                return
            if slot is None:
                self._channel.send(ComputeAll())
                continue
            heard = self._hand.heard(slot)
            if heard.failures or heard.ends:  # the process does not hear of them
                self._tell(heard)
            if not slot.rows:
                self._ring.give_back(slot)
                continue
            self.element_types.add(slot.element_type)
            with self._lock:
                self._there[slot.number] = slot
            self._channel.send(FilledSlot(slot.number, slot.element_type, slot.used, slot.needed, slot.rows))

    def _has_place(self, is_closed: Callable[[], bool]) -> bool:
        """Wait until the process has a place for a slot; False where it wants no more."""
        with self._lock:
            while len(self._there) >= AT_ONCE and not (self._failure or is_closed()):
                self._changed.wait(_LOOK)
            return not (self._failure or is_closed())

    def _hear(self) -> None:
        """Receive the process's messages until the last."""
        try:
            while not isinstance(told := self._channel.receive().content, FeedEnded):
                self._take(told)
            self.seconds, self.decoded = told.seconds, told.decoded
        except BaseException as error:
            with self._lock:
                self._failure = error
                self._changed.notify_all()
            self._hand.close()  # who gives may wait there

    def _take(self, told: Computed | FileEvents | FreeSlot) -> None:
        if isinstance(told, FreeSlot):
            with self._lock:
                slot = self._there.pop(told.number)
                self._changed.notify_all()
            self._ring.give_back(slot)
            return
        if isinstance(told, Computed):
            self.batches += 1
            self.images += len(told.rows)
            self.seconds.first_run = self.seconds.first_run or told.seconds
            self._hand.done((row.file, row.sample) for row in told.rows)
        else:
            self._hand.done((failure.file, failure.sample) for failure in told.failures)
        self._tell(told)
