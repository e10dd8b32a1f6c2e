"""A task on a device: its candidates, checked against float64 and timed as they run in a network.

A candidate is timed in a graph of launches of itself. What it reads is where a network has it: weights in memory, for
between two uses of them there are all the others; activations in the cache if they are small enough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import numpy as np

from vgg16gpu.bench.tune.cases import Case
from vgg16gpu.bench.tune.tasks import TuneTask
from vgg16gpu.compiler.op_kernels.base import OpMemory
from vgg16gpu.compiler.op_kernels.tile_choice import Choice
from vgg16gpu.devices.base import Bytes, Device
from vgg16gpu.errors import Error, KernelError
from vgg16gpu.program.launch import KernelLaunch, StatusBlock
from vgg16gpu.program.types import Arena, Pointer, aligned
from vgg16gpu.runtime.outputs import decoded

MAX_LAUNCHES: Final = 20  # of a graph
COLD_NBYTES: Final = 120 << 20  # of weights: more than a cache holds
POISON: Final = 0xFF  # a byte; four of them are a NaN


class WrongResultError(Error):
    """A candidate computes something else than it should."""


class BenchRig:
    """Device memory for one task, filled once. Raises DeviceError when there is not enough."""

    def __init__(self, device: Device, task: TuneTask, case: Case, choices: Sequence[Choice[Any]]) -> None:
        self.device, self.task, self.case = device, task, case
        op_kernel, self._end = task.kernels.OP_KERNEL, 0
        cut = [task.cut(choice) for choice in choices]
        self._counters = max(op_kernel.counters(layer) for layer in cut)
        self._batch = task.problem.batch
        self._x = self._room(len(case.x) * self._batch * case.x[0, 0].nbytes)
        self._y = self._room(task.y.nbytes)
        weights, *vectors = case.arrays
        copies = -(-COLD_NBYTES // weights.nbytes)
        self._weights = [self._room(weights.nbytes) for _ in range(min(copies, MAX_LAUNCHES))]
        self._vectors = [self._room(vector.nbytes) for vector in vectors]
        self._workspace = self._room(max(op_kernel.workspace_nbytes(layer) for layer in cut))
        words = MAX_LAUNCHES * self._counters + 1 + 2 * self._batch  # the error word, status words, magnitudes
        self._zeros = np.zeros(words, np.int32)
        self._words = self._room(self._zeros.nbytes)
        self._error_word = _behind(self._words, 4 * MAX_LAUNCHES * self._counters)
        self._bound: list[Callable[[], None]] = []
        self._right: list[Bytes] = []  # results that have been compared with float64
        self._bases = {Arena.ACTIVATIONS: device.allocate(self._end)}
        try:
            self._fill()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Free the memory, and give back all that is bound."""
        with suppress(Error):  # of a device beyond use, which somebody else is about to report
            self.device.free(self._bases[Arena.ACTIVATIONS])
            while self._bound:
                self.device.unbind(self._bound.pop())

    def check(self, choice: Choice[Any]) -> Bytes:
        """Return the bits that a candidate leaves in the sampled images.

        Raises WrongResultError for numbers that differ from float64's, KernelError for what cannot be launched.
        """
        self._repeat(self._y, np.full(1 << 16, POISON, np.uint8), self.task.y.nbytes)
        self._zero()
        self.graph(choice, 1)()
        result = self.images()
        if any(np.array_equal(result, known) for known in self._right):
            return result
        for row, image in zip(result, self._sampled, strict=True):
            error = self._error(row, image)
            if not error <= self.case.bound:
                raise WrongResultError(f"image {image}: it is off by {error:.3g}, {self.case.bound:.3g} are allowed")
        self._right.append(result)
        return result

    def quick(self, choice: Choice[Any]) -> float:
        """Return the seconds of a launch by itself, the gaps around it included: enough to drop the slow ones."""
        launch = self.graph(choice, 1)
        return min(self.measure(launch) for _ in range(2))

    def graph(self, choice: Choice[Any], launches: int) -> Callable[[], None]:
        """Bind `launches` launches in a row."""
        self._bound.append(self.device.bind([self._step(choice, i) for i in range(launches)], self._bases))
        return self._bound[-1]

    def measure(self, work: Callable[[], None]) -> float:
        """Return the seconds of `work`."""
        self._zero()
        return self.device.measure(work, 1)[0]

    def images(self) -> Bytes:
        """Return (sampled images, planes, bytes) of the output, as stored. Raises KernelError if a wait ran out."""
        y, error = self.task.y, np.zeros(1, np.int32)
        nbytes = y.plane_nbytes // self._batch
        result = np.empty((len(self._sampled), y.element.planes, nbytes), np.uint8)
        for row, image in zip(result, self._sampled, strict=True):
            for plane in range(y.element.planes):
                place = _behind(self._y, plane * y.plane_nbytes + image * nbytes)
                self.device.copy_out(row[plane], self._at(place))
        self.device.copy_out(error, self._at(self._error_word))
        self.device.synchronize()
        if error[0]:
            raise KernelError("a wait inside the kernel ran out")
        return result

    @property
    def _sampled(self) -> tuple[int, ...]:
        """The images that are looked at: the first, one in the middle, the last."""
        return tuple(sorted({0, self._batch // 2, self._batch - 1}))

    def _room(self, nbytes: int) -> Pointer:
        pointer = Pointer(Arena.ACTIVATIONS, self._end)
        self._end += aligned(nbytes)
        return pointer

    def _at(self, pointer: Pointer) -> int:
        return self._bases[Arena.ACTIVATIONS] + pointer.offset

    def _fill(self) -> None:
        for plane, images in enumerate(self.case.x):
            nbytes = self._batch * images[0].nbytes
            self._repeat(_behind(self._x, plane * nbytes), images, nbytes)
        weights, *vectors = self.case.arrays
        for pointer, vector in zip(self._vectors, vectors, strict=True):
            self.device.copy_in(self._at(pointer), np.ascontiguousarray(vector))
        self.device.copy_in(self._at(self._weights[0]), weights)
        for pointer in self._weights[1:]:
            self.device.copy_on_device(self._at(pointer), self._at(self._weights[0]), weights.nbytes)
        self.device.synchronize()

    def _repeat(self, target: Pointer, pattern: np.ndarray[Any, Any], nbytes: int) -> None:
        """Fill `nbytes` with a pattern, the last time cut short."""
        start, done = self._at(target), min(pattern.nbytes, nbytes)
        self.device.copy_in(start, np.ascontiguousarray(pattern).reshape(-1).view(np.uint8)[:done])
        while done < nbytes:
            part = min(done, nbytes - done)
            self.device.copy_on_device(start + done, start, part)
            done += part

    def _zero(self) -> None:
        self.device.copy_in(self._at(self._words), self._zeros)

    def _step(self, choice: Choice[Any], launch: int) -> KernelLaunch:
        """Return launch number `launch` of a graph: weights of its own, counters of its own."""
        counters = _behind(self._words, 4 * launch * self._counters)
        control = StatusBlock(counters, self._error_word, self._batch, watched=(self.task.y.name,))
        places = OpMemory(self._workspace, control, counters, control.maxima(0))
        x, y = replace(self.task.x, pointer=self._x), replace(self.task.y, pointer=self._y)
        constants = self.case.placed((self._weights[launch % len(self._weights)], *self._vectors))
        return self.task.step(choice, x, y, constants, places)

    def _error(self, stored: Bytes, image: int) -> float:
        """Return the largest difference over the largest magnitude of an image; NaN where there is one."""
        y, expected = self.task.y, self.case.expected[image % len(self.case.expected)]
        numbers = decoded(replace(y, shape=(1, *y.shape[1:])), stored.reshape(-1))[0]
        return float(np.abs(numbers - expected).max() / np.abs(expected).max())


def _behind(pointer: Pointer, nbytes: int) -> Pointer:
    return Pointer(pointer.arena, pointer.offset + nbytes)
