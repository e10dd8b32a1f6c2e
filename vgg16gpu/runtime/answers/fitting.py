"""Pictures in a slot, resized and cropped by a kernel: from the host's buffer to images on the device.

What the device itself has decoded lies there as planes, and becomes RGB first, by another kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import numpy as np

from vgg16gpu.compiler.op_kernels.layout import planes, resize
from vgg16gpu.compiler.op_kernels.layout.resize import Integers, ResizeSpec
from vgg16gpu.devices.base import Bytes, Device, Event, Stream
from vgg16gpu.io.preprocessing import Preprocess
from vgg16gpu.pictures.pass_order import pass_order
from vgg16gpu.pictures.slots import MAX_SIDE, ROWS, Slot
from vgg16gpu.program.launch import KernelLaunch
from vgg16gpu.program.types import Arena, Pointer

POOLS: Final = 3  # one is uploaded, one computed, and the host prepares one
_PAGE: Final = 256


@dataclass(frozen=True, eq=False)
class _Pool:
    """Where a slot's bytes lie on the device, behind their tables and scratch."""

    tables: Bytes  # on the host, pinned
    block: int
    free: Event  # its pictures have become images
    launch: Callable[[], None]


class GpuResizer:
    """Makes the pictures of a slot images of the network's size.

    One thread at a time. A slot's host memory must stay as it is until the upload stream is through. Raises DeviceError
    when memory runs out, KernelError where the kernel cannot be had.
    """

    def __init__(self, device: Device, fit: ResizeSpec, nbytes: int, rows: int = ROWS, room_nbytes: int = 0) -> None:
        """For slots of `nbytes`, with so many rows at most. room_nbytes: of a slot's room, where the device decodes."""
        self._device, self._fit, self._has_rooms = device, fit, room_nbytes > 0
        height, width = fit.size
        largest = np.array([MAX_SIDE])
        self._colours = _paged(4 * (resize.HEADER_WORDS + rows * resize.ENTRY_WORDS))  # the second table
        tables = self._colours + _paged(4 * (resize.HEADER_WORDS + rows * planes.ENTRY_WORDS))
        scratch = _paged(rows * int(resize.scratch_nbytes(fit, largest, largest)[0]))
        self._pixels = tables + scratch  # where a slot's bytes begin
        pool, words, colours, weights = (
            Pointer(Arena.STAGING, offset) for offset in (self._pixels, 0, self._colours, tables)
        )
        images = _paged(rows * height * width * fit.channels)
        steps = resize.steps(fit, Pointer(Arena.ACTIVATIONS, 0), pool, words, weights, rows)
        if self._has_rooms:
            steps = (planes.step(Pointer(Arena.ACTIVATIONS, images), pool, colours, rows), *steps)
        device.build(step.kernel for step in steps)
        with ExitStack() as undo:
            self._images = self._allocated(images + room_nbytes, undo)
            self._rgb = self._images + images  # pictures that the device has decoded, each as far in as in its room
            self._pools = [self._pool(tables, self._pixels + nbytes, steps, undo) for _ in range(POOLS)]
            self._undo = undo.pop_all()
        self._uploaded = device.event()

    def begin(self, slot: Slot) -> int:
        """Enqueue that a slot's rows become images; their address, one after the other. Call `end` before the next.

        Where the device has decoded the slot's files, they lie there already.
        """
        device, pool = self._device, self._pools[0]
        height, width = self._fit.size
        offsets, heights, widths = np.array([row[3:6] for row in slot.rows], np.int64).T
        if self._has_rooms:
            offsets = self._place_colours(slot, pool, offsets, heights, widths)
        is_fitted = heights == 0
        heights, widths = np.where(is_fitted, height, heights), np.where(is_fitted, width, widths)
        words = resize.table(self._fit, offsets, heights, widths, np.arange(len(slot.rows)), is_fitted)
        pool.tables[: words.nbytes] = words.view(np.uint8)
        device.follow(Stream.UPLOAD, pool.free)
        device.copy_in(pool.block, pool.tables if self._has_rooms else pool.tables[: words.nbytes], Stream.UPLOAD)
        if not slot.room:
            device.copy_in(pool.block + self._pixels, slot.buffer[: slot.used], Stream.UPLOAD)
        device.record(self._uploaded, Stream.UPLOAD)
        device.follow(Stream.COMPUTE, self._uploaded)
        return self.again()

    def again(self) -> int:
        """Enqueue the same once more, between `begin` and `end`, from what lies on the device: to measure it alone."""
        self._pools[0].launch()
        return self._images

    def end(self) -> None:
        """Whatever takes the images of the slot is enqueued."""
        pool = self._pools.pop(0)
        self._pools.append(pool)
        self._device.record(pool.free, Stream.COMPUTE)

    def close(self) -> None:
        """Give all memory back; nothing may be under way."""
        self._undo.close()

    def _place_colours(
        self, slot: Slot, pool: _Pool, offsets: Integers, heights: Integers, widths: Integers
    ) -> Integers:
        """Where the rows of a slot will lie as RGB, from the pool's bytes on; fill the table of those that are planes.

        With room they lie elsewhere: an offset may be of any size, and negative.
        """
        start = pool.block + self._pixels
        addresses = np.array(slot.addresses, np.int64) if slot.room else start + offsets
        samplings = np.array([row.sampling for row in slot.rows], np.int64)
        targets = addresses - (slot.room.address if slot.room else start)
        is_planes = samplings > 0
        found = (addresses - start, targets, heights, widths, samplings)
        words = planes.table(*(each[is_planes] for each in found))
        pool.tables[self._colours : self._colours + words.nbytes] = words.view(np.uint8)
        return np.where(is_planes, self._rgb + targets, addresses) - start

    def _pool(self, tables: int, nbytes: int, steps: tuple[KernelLaunch, ...], undo: ExitStack) -> _Pool:
        device, block = self._device, self._allocated(nbytes, undo)
        host = device.pinned(tables)
        undo.callback(device.unpin, host)
        launch = device.bind(steps, {Arena.STAGING: block, Arena.ACTIVATIONS: self._images})
        undo.callback(device.unbind, launch)
        return _Pool(host, block, device.event(), launch)

    def _allocated(self, nbytes: int, undo: ExitStack) -> int:
        address = self._device.allocate(nbytes)
        undo.callback(self._device.free, address)
        return address


def fit_of(preprocess: Preprocess, size: tuple[int, int]) -> ResizeSpec | None:
    """What the kernel does to pictures in place of Pillow; None where it does not know this Pillow's bits."""
    order = pass_order()
    if order is None or preprocess.channels not in (1, 3):
        return None
    is_reversed = preprocess.channels == 3 and preprocess.channel_order == "bgr"
    return ResizeSpec(size, preprocess.channels, preprocess.fit == "crop", preprocess.interpolation, is_reversed, order)


def _paged(nbytes: int) -> int:
    return -(-nbytes // _PAGE) * _PAGE
