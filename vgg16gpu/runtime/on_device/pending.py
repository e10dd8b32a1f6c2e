"""Runs that nobody waits for: what was wrong with them, for who asks later, and memory for what they give."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from vgg16gpu.compiler.op_kernels.layout.settle import KERNEL, WORDS
from vgg16gpu.devices.base import ArrayInterop, CardMemory, Device
from vgg16gpu.errors import InputError, KernelError
from vgg16gpu.runtime.outputs import LOST, NONFINITE

SHARE: Final = 1 / 16  # of the memory that is free at first: what may wait for further results

_LATER = "in a run with wait=False since the last check, image"


class AsyncStatus:
    """Words on the device in which runs note what is wrong with them, and memory that comes back from results.

    One thread at a time. Attributes: `found`: the address of the words; 0 before `prepare`. `second_passes`: images
    that were run again, as far as `check` has seen.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._is_new = False  # whether something was enqueued since they were looked at
        self._is_captured = False  # whether somebody has a graph of a run, which he may replay unseen
        self._bound = int(SHARE * device.facts.memory_free)
        self._free: OrderedDict[tuple[int, int], list[CardMemory]] = OrderedDict()  # none empty, the last one youngest
        self._spare = 0  # bytes in them
        self.found = self.second_passes = 0

    def prepare(self) -> None:
        """See to it that all is there, also for a run that is captured. Raises DeviceError and KernelError."""
        if not self.found:
            self._device.build([KERNEL])
            self.found = self._device.allocate(4 * WORDS)
            self._device.zero(self.found, 4 * WORDS)

    def begin(self) -> None:
        """A run is about to be enqueued. Raises as `prepare` does."""
        self.prepare()
        self._is_new = True

    def capture(self) -> None:
        """A run is about to be captured, by whom it can be replayed."""
        self._is_captured = True

    def check(self) -> None:
        """Wait for all that was enqueued, and raise what was wrong with it; then it is forgotten.

        Raises KernelError for a kernel that gave up, InputError for NaN and Inf in inputs, and for values out of range.
        """
        if not (self._is_new or self._is_captured):
            return
        words = np.zeros(WORDS, np.uint32)
        self._device.copy_out(words, self.found)
        self._device.synchronize()
        self._device.zero(self.found, 4 * WORDS)
        self._is_new = False
        gave_up, nonfinite, lost, again = (int(word) for word in words)
        self.second_passes += again
        if gave_up:
            raise KernelError(
                f"operator {gave_up} of a run with wait=False: a kernel waited in vain for data and gave up, so its "
                "results are NaN. Run again; if that fails too, the GPU is overloaded beyond measure"
            )
        for word, problem in ((nonfinite, NONFINITE), (lost, LOST)):
            if word:
                raise InputError(f"{_LATER} {0xFFFFFFFF - word} (counted from 0; the first such) {problem}")

    def memory(self, foreign: ArrayInterop, stream: int, nbytes: int) -> CardMemory:
        """Memory for a result on a stream: new, or what an earlier result on that stream has let go."""
        key = stream, nbytes
        free = self._free.pop(key, None)
        found = free.pop() if free else None
        if free:
            self._free[key] = free
        if found:
            self._spare -= nbytes
        self._drop_oldest(key)
        return _Lent(found or foreign.memory(nbytes), partial(self._take_back, key))

    def _take_back(self, key: tuple[int, int], memory: CardMemory) -> None:
        """From any thread, and in the midst of anything: what is counted wrong then is counted anew later."""
        self._free.setdefault(key, []).append(memory)
        self._spare += key[1]

    def _drop_oldest(self, key: tuple[int, int]) -> None:
        """Give back what nobody has, beyond the bound; looked at here, as results come back whenever they like."""
        if self._spare <= self._bound:
            return
        self._spare = sum(nbytes * len(free) for (_, nbytes), free in list(self._free.items()))
        for other in list(self._free):
            if self._spare <= self._bound or other == key:
                break
            self._spare -= other[1] * len(self._free.pop(other))

    def close(self) -> None:
        """Forget the memory; the words go with the device."""
        self._free.clear()


class _Lent:
    """Memory that comes back once nobody has this object any more."""

    def __init__(self, memory: CardMemory, back: Callable[[CardMemory], None]) -> None:
        self.address = memory.address
        self.read = memory.read
        weakref.finalize(self, back, memory).atexit = False
