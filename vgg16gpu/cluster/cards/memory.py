"""Memory that two processes map: made by one of them, its descriptor sent to the other."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from vgg16gpu.devices.base import Bytes


def make_shared(nbytes: int) -> tuple[Bytes, int]:
    """Create memory of whole pages; return it and its descriptor, which the caller closes."""
    descriptor = os.memfd_create("vgg16gpu-card")
    try:
        os.truncate(descriptor, paged(nbytes))
        return map_shared(descriptor, nbytes), descriptor
    except BaseException:
        os.close(descriptor)
        raise


def map_shared(descriptor: int, nbytes: int) -> Bytes:
    """Map another process's memory, for the lifetime of the array; the descriptor can be closed."""
    return np.frombuffer(mmap.mmap(descriptor, paged(nbytes)), np.uint8)


def paged(nbytes: int) -> int:
    """Round bytes up to whole pages, at least one."""
    return max(1, -(-nbytes // mmap.PAGESIZE)) * mmap.PAGESIZE


def array_in(memory: Bytes, element_type: str, shape: tuple[int, ...]) -> Any:
    """Return an array of this dtype and shape at the start of some memory."""
    nbytes = math.prod(shape) * np.dtype(element_type).itemsize
    return memory[:nbytes].view(element_type).reshape(shape)


def read_held(descriptor: int) -> bytes:
    """Return the bytes that `held` holds, which stay for others to read."""
    with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as file:
        return file[:]


@contextmanager
def held(content: memoryview) -> Iterator[int]:
    """Yield the descriptor of a memory file with these bytes, inside the block."""
    descriptor = os.memfd_create("vgg16gpu-model")
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        yield descriptor
