"""Files as arrays on the host, in their order, decoded by threads that are a little ahead."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import numpy as np

from vgg16gpu.devices.platforms import usable_cores
from vgg16gpu.errors import InputError
from vgg16gpu.pictures.inputs import InputSpec, NamedInput, listed
from vgg16gpu.pictures.loading.loader import THREADS, InOrder, Loader
from vgg16gpu.pictures.slots import ROWS, SLOT_NBYTES, BufferPool, Slot, ordinary

AHEAD = 4  # files for each thread: whoever reads may take a while for each


def read_inputs(
    paths: Sequence[str | Path], spec: InputSpec, leave_out: Callable[[str], object] | None = None
) -> Generator[NamedInput, None, None]:
    """Yield every sample in `paths` (files, folders, "-"), in order. Closing it ends the threads.

    leave_out: is told why a sample cannot be read, and the next ones come. Without it raises InputError naming file,
    value found and what is accepted, once the samples before it are out.
    """
    listing = listed(paths)
    threads = max(1, min(usable_cores(), THREADS, len(listing.files) // 2))
    nbytes = 4 * math.prod(spec.shape)
    ring = BufferPool(max(nbytes, min(SLOT_NBYTES, ROWS * nbytes)), threads + 1)
    ring.pin(ordinary, takes_pictures=False)
    loader = Loader(listing, spec, ring, threads, window=AHEAD * threads)
    loader.start()
    order: InOrder[NamedInput | str] = InOrder()
    try:
        for slot in loader:
            if slot is not None:
                _sort(slot, spec, order)
                ring.give_back(slot)
            for item in order.ready():
                if not isinstance(item, str):
                    yield item
                elif leave_out is None:
                    raise InputError(item)
                else:
                    leave_out(item)
            loader.answered(order.file)
    finally:
        loader.close()


def _sort(slot: Slot, spec: InputSpec, order: InOrder[NamedInput | str]) -> None:
    """Copy a slot's content to its places in the order."""
    turns = spec.turns(slot.element_type)
    shape = spec.shape if turns else spec.array_shape(is_pixels=slot.element_type == "uint8")
    nbytes = math.prod(shape) * (1 if slot.element_type == "uint8" else 4)
    for row in slot.rows:
        sample = slot.buffer[row.offset : row.offset + nbytes].view(slot.element_type).reshape(shape).copy()
        order.add(row.file, row.sample, NamedInput(row.name, np.moveaxis(sample, 0, -1) if turns else sample))
    for failure in slot.failures:
        order.add(failure.file, failure.sample, failure.problem)
    for file, count in slot.ends:
        order.end(file, count)
