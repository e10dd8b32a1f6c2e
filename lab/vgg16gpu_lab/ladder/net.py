"""A whole network on the ladder's own kernels: with the host between layers, or without."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import numpy as np

from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.graph.ops import Array, Conv, Shape
from vgg16gpu.devices.base import Device
from vgg16gpu.errors import Error
from vgg16gpu.program.launch import KernelLaunch
from vgg16gpu.program.types import Arena, Pointer, aligned
from vgg16gpu_lab.ladder.kernels import Placed, Technique, bias_relu, padded
from vgg16gpu_lab.ladder.layers import Site, sites

_FLOAT: Final = 4  # bytes
_POISON: Final = 0xFF  # a byte; four of them are a NaN
_CHUNK: Final = 64 << 20  # bytes of them at a time


class _Memory:
    """One allocation: places are handed out first, then it is allocated, filled and bound to."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._nbytes, self._base = 0, 0
        self._arrays: list[tuple[Pointer, Array]] = []
        self._rooms: list[tuple[Pointer, int]] = []
        self._bound: list[Callable[[], None]] = []

    def room(self, floats: int) -> Pointer:
        """Reserve a place for `floats` numbers, which are NaN until they are written."""
        pointer = self._place(floats)
        self._rooms.append((pointer, _FLOAT * floats))
        return pointer

    def hold(self, array: Array) -> Pointer:
        """Reserve a place with these numbers in it."""
        pointer = self._place(array.size)
        self._arrays.append((pointer, array))
        return pointer

    def allocate(self) -> None:
        """Allocate all places and write their values. Raises DeviceError when there is not as much."""
        self._base = self._device.allocate(max(self._nbytes, 1))
        nans = np.full(min(_CHUNK, max(nbytes for _, nbytes in self._rooms)), _POISON, np.uint8)
        for pointer, nbytes in self._rooms:  # the right answer of the rung before may lie there
            for start in range(0, nbytes, _CHUNK):
                self._device.copy_in(self.address(pointer) + start, nans[: nbytes - start])
        for pointer, array in self._arrays:
            self._device.copy_in(self.address(pointer), np.ascontiguousarray(array))
        self._device.synchronize()
        self._arrays.clear()

    def bind(self, steps: Sequence[KernelLaunch]) -> Callable[[], None]:
        """Bind the steps, to be launched one by one."""
        launches = [self._device.bind([step], {Arena.ACTIVATIONS: self._base}) for step in steps]
        self._bound += launches

        def launch() -> None:
            for each in launches:
                each()

        return launch

    def address(self, pointer: Pointer) -> int:
        """Return the address of a place, once it is real."""
        return self._base + pointer.offset

    def close(self) -> None:
        """Free everything. Safe to call twice."""
        for launch in self._bound:
            with suppress(Error):
                self._device.unbind(launch)
        self._bound.clear()
        if self._base:
            self._device.free(self._base)
            self._base = 0

    def _place(self, floats: int) -> Pointer:
        pointer = Pointer(Arena.ACTIVATIONS, self._nbytes)
        self._nbytes += aligned(_FLOAT * floats)
        return pointer


class HostNet:
    """Every layer goes to the device and comes back: the host pads, adds what is left to add, the bias, and the ReLU.

    Raises ModelError for a graph that is not made of simple layers, DeviceError, KernelError.
    """

    def __init__(self, graph: Graph, shape: Shape, device: Device, technique: Technique) -> None:
        self._device, self._technique, self._memory = device, technique, _Memory(device)
        self._sites = sites(graph, shape)
        self._given = [padded(site) if isinstance(site.layer, Conv) else site for site in self._sites]
        self._x = self._memory.room(max(site.x_size for site in self._given))
        sums = max(site.y_size * technique.addends(site) for site in self._given)
        self._y = self._memory.room(sums)
        steps = [technique.step(self._placed(site), device.facts) for site in self._given]
        device.build([step.kernel for step in steps])
        try:
            self._memory.allocate()
            self._launches = [self._memory.bind([step]) for step in steps]
            self._host: Array = np.empty(sums, np.float32)
        except BaseException:
            self.close()
            raise

    def run(self, x: Array) -> Array:
        """Return the scores (1, classes) of one image (1, C, H, W)."""
        return self._pass(x, lambda launch: launch())

    def layer_seconds(self, x: Array, repeats: int) -> list[tuple[Site, list[float]]]:
        """Return each layer's seconds on the device of `repeats` launches, in a pass on x, without copies."""
        found: list[list[float]] = []
        self._pass(x, lambda launch: found.append(self._device.measure(launch, repeats)))
        return list(zip(self._sites, found, strict=True))

    def device_seconds(self, repeats: int) -> list[float] | None:
        """Return None: much of the work is the host's."""
        del repeats
        return None

    def close(self) -> None:
        """Free everything."""
        self._memory.close()

    def _placed(self, site: Site) -> Placed:
        return Placed(site, self._x, self._y, _held(self._memory, self._technique.weight(site)))

    def _pass(self, x: Array, work: Callable[[Callable[[], None]], None]) -> Array:
        """Return the scores, if `work` launches what it is given."""
        value = x[0]
        for site, given, launch in zip(self._sites, self._given, self._launches, strict=True):
            value = _finished(site, self._sums(given, partial(work, launch), _padded(site, value)))
        scores: Array = value[np.newaxis]
        return scores

    def _sums(self, site: Site, launch: Callable[[], None], value: Array) -> Array:
        addends = self._technique.addends(site)
        partial = self._host[: site.y_size * addends]
        self._device.copy_in(self._memory.address(self._x), np.ascontiguousarray(value))
        launch()
        self._device.copy_out(partial, self._memory.address(self._y))
        self._device.synchronize()
        sums: Array = partial.reshape(site.y_shape[0], addends, -1).sum(axis=1, dtype=np.float32)
        return sums.reshape(site.y_shape)


class DeviceNet:
    """The image goes in, the scores come out; each layer is a launch, bias and ReLU are another.

    Raises as HostNet does.
    """

    def __init__(self, graph: Graph, shape: Shape, device: Device, technique: Technique) -> None:
        self._device, self._memory = device, _Memory(device)
        found = sites(graph, shape)
        self._x = place = self._memory.room(found[0].x_size)
        steps: list[KernelLaunch] = []
        for site in found:
            weight = _held(self._memory, technique.weight(site))
            placed = Placed(site, place, self._memory.room(site.y_size), weight)
            steps.append(technique.step(placed, device.facts))
            if site.bias is not None or site.relu:
                bias = np.zeros(site.y_shape[0], np.float32) if site.bias is None else site.bias
                steps.append(bias_relu(placed.y, self._memory.hold(bias), site))
            place = placed.y
        self._y, self._scores = place, np.empty((1, *found[-1].y_shape), np.float32)
        device.build([step.kernel for step in steps])
        try:
            self._memory.allocate()
            self._launch = self._memory.bind(steps)
        except BaseException:
            self.close()
            raise

    def run(self, x: Array) -> Array:
        """Return the scores (1, classes) of one image (1, C, H, W)."""
        self._device.copy_in(self._memory.address(self._x), np.ascontiguousarray(x))
        self._launch()
        self._device.copy_out(self._scores, self._memory.address(self._y))
        self._device.synchronize()
        return self._scores.copy()

    def device_seconds(self, repeats: int) -> list[float] | None:
        """Return seconds on the device of each of `repeats` runs, input and output there."""
        return self._device.measure(self._launch, repeats)

    def close(self) -> None:
        """Free everything."""
        self._memory.close()


def _held(memory: _Memory, weight: Array | None) -> Pointer | None:
    return None if weight is None else memory.hold(weight)


def _padded(site: Site, value: Array) -> Array:
    if not isinstance(site.layer, Conv):
        return value
    pads = site.window.pads
    return np.pad(value, ((0, 0), (pads.top, pads.bottom), (pads.left, pads.right)))


def _finished(site: Site, sums: Array) -> Array:
    if site.bias is not None:
        sums += site.bias.reshape(-1, *[1] * (sums.ndim - 1))
    return np.maximum(sums, 0) if site.relu else sums
