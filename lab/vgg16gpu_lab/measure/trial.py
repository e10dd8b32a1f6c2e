"""A variant on a device with a problem of its own: guarded, checked against float64, ready to be timed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from vgg16gpu.checks.accuracy import layer_error
from vgg16gpu.devices.base import Device
from vgg16gpu.errors import Error
from vgg16gpu.program.launch import KernelLaunch
from vgg16gpu.program.types import Arena, DeviceFacts, Pointer
from vgg16gpu_lab.layout import channels_first, in_layout, room
from vgg16gpu_lab.problem import Array, Array64, Problem
from vgg16gpu_lab.variant import Launches, Parameters, Places, Variant, gaps, places

MAX_THREADS: Final = 1024  # of a block, on every architecture
MAX_GRID: Final = (2**31 - 1, 65535, 65535)
_PIECE_NBYTES: Final = 64 << 20  # that are compared at once


class InvalidLaunchError(Error):
    """A launch that CUDA rejects; nothing would have run, in no time at all."""


class RefusedError(Error):
    """A variant does not do this problem with these parameters; the message says why."""


def guard(step: KernelLaunch, facts: DeviceFacts) -> None:
    """Raise InvalidLaunchError for a block or grid that no device takes, or more shared memory than this one has."""
    threads = math.prod(step.block)
    if not 1 <= threads <= MAX_THREADS:
        shape = "x".join(map(str, step.block))
        raise InvalidLaunchError(f"a block of {shape} is {threads} threads, at most {MAX_THREADS} can be launched")
    if any(not 1 <= count <= most for count, most in zip(step.grid, MAX_GRID, strict=True)):
        raise InvalidLaunchError(f"a grid of {tuple(step.grid)}: at most {MAX_GRID} can be launched")
    if step.shared > facts.shared_nbytes:
        raise InvalidLaunchError(f"{step.shared} bytes of shared memory, a block has {facts.shared_nbytes}")


def guarded(
    variant: Variant, problem: Problem, parameters: Parameters, facts: DeviceFacts
) -> tuple[Launches, Places, int]:
    """Return a variant's launches, the places of their arrays, and bytes. Raises RefusedError, InvalidLaunchError."""
    if reason := variant.lacks(facts) or variant.refuses(problem, parameters):
        raise RefusedError(f"{variant.name}: {reason}")
    if problem.bias and not variant.takes_bias:
        raise RefusedError(f"{variant.name}: it adds no bias; ask for a problem without one")
    found, nbytes = places(problem, variant.workspace_nbytes(problem, parameters))
    launches = variant.launches(problem, parameters, found)
    for step in (*launches.convert, *launches.compute):
        guard(step, facts)
    return launches, found, nbytes


class Trial:
    """The arrays of a problem in device memory, NaN around them, and the launches of a variant bound to them.

    Raises RefusedError, InvalidLaunchError, KernelError for what does not compile, DeviceError without memory.
    """

    poison = 0xFF  # a byte that lies where nothing was written; four of them are a NaN

    def __init__(
        self,
        device: Device,
        variant: Variant,
        problem: Problem,
        parameters: Parameters | None = None,
        inputs: tuple[Array, Array] | None = None,
        bias: Array | None = None,
    ) -> None:
        self.device, self.variant, self.problem = device, variant, problem
        self.parameters = variant.with_defaults(parameters or {})
        self.launches, self._places, self._nbytes = guarded(variant, problem, self.parameters, device.facts)
        self._gaps = gaps(problem, variant.workspace_nbytes(problem, self.parameters))
        device.build([step.kernel for step in self.steps])
        self.x, self.weight = inputs or problem.random()
        self.bias = problem.random_bias() if bias is None else bias
        self._base = device.allocate(self._nbytes)
        self._bound: list[Callable[[], None]] = []
        try:
            self._fill()
            self.convert = self._bind(self.launches.convert)
            self.compute = self._bind(self.launches.compute)
        except BaseException:
            self.close()
            raise

    @property
    def steps(self) -> tuple[KernelLaunch, ...]:
        """All launches, in order."""
        return (*self.launches.convert, *self.launches.compute)

    def run(self) -> Array:
        """Convert, compute, and y as (N, outputs, rows, columns). What a kernel does not write is NaN."""
        y = room(self.problem.y_shape, self.variant.y_layout)
        y.view(np.uint8).fill(self.poison)
        self.device.copy_in(self._at(self._places.y), y)
        self.convert()
        self.compute()
        return self._read_into(y)

    def error(self, expected: Array64 | None = None) -> float:
        """Return the norm-wise error against float64: |y - expected| / |expected|; NaN where nothing was written."""
        if expected is None:
            expected = self.problem.expected(self.x, self.weight, self.bias)
        return layer_error(self.run(), expected)

    def trespass(self) -> str:
        """Return where a kernel has written that must not write there: "behind y", "into x"; "" where none has."""
        for name, (offset, nbytes) in self._gaps.items():
            if not (self._read(offset, nbytes) == self.poison).all():
                return name
        changed = (name for name, pointer, array in self._inputs() if self._differs(pointer, array))
        return next((f"into {name}" for name in changed), "")

    def close(self) -> None:
        """Free everything. Safe to call twice."""
        with suppress(Error):  # of a device beyond use, which somebody is about to report
            if self._base:
                self.device.free(self._base)  # waits for what may be under way
            while self._bound:
                self.device.unbind(self._bound.pop())
        self._base = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, traceback: TracebackType | None) -> None:
        self.close()

    def _fill(self) -> None:
        for _, pointer, array in self._inputs():
            self.device.copy_in(self._at(pointer), np.ascontiguousarray(array))
        for offset, nbytes in self._gaps.values():
            self.device.copy_in(self._base + offset, np.full(nbytes, self.poison, np.uint8))
        self._fill_constants()
        self.device.synchronize()

    def _inputs(self) -> Iterator[tuple[str, Pointer, Array]]:
        """Yield a kernel's inputs: name, place, and values as they lie there."""
        yield "x", self._places.x, in_layout(self.x, self.variant.x_layout)
        yield "weight", self._places.weight, self.weight
        if self.bias is not None:
            yield "bias", self._places.bias, self.bias

    def _differs(self, pointer: Pointer, array: Array) -> bool:
        """Return whether what lies there is no longer what was sent; piece by piece, as it may be large."""
        sent = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        pieces = range(0, sent.nbytes, _PIECE_NBYTES)
        return any(
            not np.array_equal(self._read(pointer.offset + start, len(piece)), piece)
            for start in pieces
            for piece in (sent[start : start + _PIECE_NBYTES],)
        )

    def _read(self, offset: int, nbytes: int) -> npt.NDArray[np.uint8]:
        found = np.empty(nbytes, np.uint8)
        self.device.copy_out(found, self._base + offset)
        self.device.synchronize()
        return found

    def _fill_constants(self) -> None:
        for name, pointer in self.launches.constants.items():
            kernel = self.launches.compute[0].kernel
            self.device.copy_on_device(self.device.constant(kernel, name), self._at(pointer), self.weight.nbytes)

    def _read_into(self, y: Array) -> Array:
        """Return the result, (N, outputs, rows, columns), by way of an array that has room for it."""
        self.device.copy_out(y, self._at(self._places.y))
        self.device.synchronize()
        return channels_first(y, self.variant.y_layout)

    def _bind(self, steps: Sequence[KernelLaunch]) -> Callable[[], None]:
        if not steps:
            return lambda: None
        launch = self.device.bind(steps, {Arena.ACTIVATIONS: self._base})
        self._bound.append(launch)
        return launch

    def _at(self, pointer: Pointer) -> int:
        return self._base + pointer.offset
