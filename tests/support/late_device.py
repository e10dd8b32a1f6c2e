"""A cpu device whose streams work as late, and in as odd an order, as a GPU's may.

What is enqueued is done only when somebody waits, each time the next piece of a stream that chance picks. So whatever
is not held back by an event is done at the worst time, and code that forgot one computes from wrong numbers.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from vgg16gpu.devices.base import Bytes, Event, Stream, Transfer, step_by_step
from vgg16gpu.devices.cpu.device import CpuDevice
from vgg16gpu.program.launch import KernelLaunch
from vgg16gpu.program.types import Arena


class LateDevice(CpuDevice):
    """See above. `seed`: of chance."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._chance = random.Random(seed)
        self._streams: dict[Stream, deque[Callable[[], bool]]] = {stream: deque() for stream in Stream}
        self._recorded: list[int] = []
        self._reached: list[int] = []
        self._is_pinned: list[tuple[int, int]] = []

    def pinned(self, nbytes: int) -> Bytes:
        buffer = super().pinned(nbytes)
        self._is_pinned.append((buffer.ctypes.data, buffer.nbytes))
        return buffer

    def copy_in(self, address: int, source: Any, stream: Stream = Stream.COMPUTE) -> None:
        start = source.ctypes.data
        is_pinned = any(begin <= start < begin + nbytes for begin, nbytes in self._is_pinned)
        data = source if is_pinned else source.copy()  # ordinary memory may change on return
        self._enqueue(stream, partial(super().copy_in, address, data))

    def copy_out(self, target: Any, address: int, stream: Stream = Stream.COMPUTE) -> None:
        self._enqueue(stream, partial(super().copy_out, target, address))

    def copy_on_device(self, target: int, source: int, nbytes: int) -> None:
        self._enqueue(Stream.COMPUTE, partial(super().copy_on_device, target, source, nbytes))

    def zero(self, address: int, nbytes: int) -> None:
        self._enqueue(Stream.COMPUTE, partial(super().zero, address, nbytes))

    def bind(self, steps: Sequence[KernelLaunch], bases: Mapping[Arena, int], **how: bool) -> Callable[[], None]:
        launch = super().bind(steps, bases, **how)
        return lambda: self._enqueue(Stream.COMPUTE, launch)

    def round_trip(self, upload: Transfer, launch: Callable[[], None], download: Transfer) -> Callable[[], None]:
        return step_by_step(self, upload, launch, download)

    def free(self, address: int) -> None:
        self.synchronize()
        super().free(address)

    def event(self) -> Event:
        self._recorded.append(0)
        self._reached.append(0)
        return len(self._recorded) - 1

    def record(self, event: Event, stream: Stream) -> None:
        self._recorded[event] += 1
        self._enqueue(stream, partial(self._reached.__setitem__, event, self._recorded[event]))

    def follow(self, stream: Stream, event: Event) -> None:
        self._streams[stream].append(partial(self._is_reached, event, self._recorded[event]))

    def wait(self, event: Event) -> None:
        while not self._is_reached(event, self._recorded[event]):
            self._do_something()
        self.counters.synchronisations += 1

    def synchronize(self) -> None:
        while self._streams[Stream.COMPUTE]:
            self._do_something()
        self.counters.synchronisations += 1

    def _enqueue(self, stream: Stream, work: Callable[[], Any]) -> None:
        def done() -> bool:
            work()
            return True

        self._streams[stream].append(done)

    def _is_reached(self, event: Event, count: int) -> bool:
        return self._reached[event] >= count

    def _do_something(self) -> None:
        for stream in self._chance.sample(list(Stream), len(Stream)):
            if self._streams[stream] and self._streams[stream][0]():
                self._streams[stream].popleft()
                return
        raise AssertionError("every stream waits for another one")
