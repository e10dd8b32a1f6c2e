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
    """Fresh memory of whole pages, and its descriptor, which is the caller's to close."""
    descriptor = os.memfd_create("vgg16gpu-card")
    try:
        os.truncate(descriptor, paged(nbytes))
        return map_shared(descriptor, nbytes), descriptor
    except BaseException:
        os.close(descriptor)
        raise


def map_shared(descriptor: int, nbytes: int) -> Bytes:
    """What another process has made. It is mapped as long as the array is there; the descriptor can be closed."""
    return np.frombuffer(mmap.mmap(descriptor, paged(nbytes)), np.uint8)


def paged(nbytes: int) -> int:
    """So many bytes, and what is left of the last page; one page at least."""
    return max(1, -(-nbytes // mmap.PAGESIZE)) * mmap.PAGESIZE


def array_in(memory: Bytes, element_type: str, shape: tuple[int, ...]) -> Any:
    """An array of this form at the start of some memory."""
    nbytes = math.prod(shape) * np.dtype(element_type).itemsize
    return memory[:nbytes].view(element_type).reshape(shape)


def read_held(descriptor: int) -> bytes:
    """What `held` holds; it is left as it is, for others to read."""
    with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as file:
        return file[:]


@contextmanager
def held(content: memoryview) -> Iterator[int]:
    """The descriptor of a memory file with these bytes, inside the block."""
    descriptor = os.memfd_create("vgg16gpu-model")
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        yield descriptor
