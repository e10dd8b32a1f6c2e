"""Images and weights on their way into pinned memory: copied by several threads where there is much to copy.

One thread copies 8-12 GB/s, less than PCIe brings to the device. numpy lets go of the interpreter's lock in a copy.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

Rows: TypeAlias = npt.NDArray[Any]

THREADS = 4
MIN_NBYTES = 1 << 20  # of a thread's part; below, starting it costs more than it saves


class PinnedCopier:
    """Fills batches. The threads come with the first large one and go with `close`."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def fill(self, target: Rows, parts: Sequence[Rows]) -> None:
        """Copy the rows of all `parts`, one after the other, to the first rows of `target`; the others become zero."""
        is_small = target.nbytes < 2 * MIN_NBYTES
        count = _copy(target, parts) if is_small else self._copy_shared(target, parts)
        if count < len(target):
            target[count:] = 0

    def close(self) -> None:
        """End the threads. Safe to call twice."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool:
            pool.shutdown()

    def _copy_shared(self, target: Rows, parts: Sequence[Rows]) -> int:
        """Copy all rows, each thread its share of them. Returns how many."""
        count = sum(map(len, parts))
        shares = min(THREADS, count, sum(part.nbytes for part in parts) // MIN_NBYTES)
        if shares < 2:
            return _copy(target, parts)
        apart = [_apart(part, target) for part in parts]
        bounds = [count * share // shares for share in range(shares + 1)]
        work = partial(_copy_range, target, apart)
        list(self._threads().map(work, bounds[:-1], bounds[1:]))  # waits, and raises what a thread raised
        return count

    def _threads(self) -> ThreadPoolExecutor:
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - only large batches pay for the import

        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(THREADS, "vgg16gpu-staging")
            return self._pool


def _copy(target: Rows, parts: Sequence[Rows]) -> int:
    """Copy all rows. Returns how many."""
    start = 0
    for part in parts:
        end = start + len(part)
        # What lies here already, written by the caller into pinned memory, costs nothing: numpy sees that.
        target[start:end] = part
        start = end
    return start


def _copy_range(target: Rows, parts: Sequence[Rows], first: int, last: int) -> None:
    """Copy rows `first` to `last` of all parts, counted through."""
    start = 0
    for part in parts:
        low, high = max(first, start), min(last, start + len(part))
        if low < high:
            target[low:high] = part[low - start : high - start]
        start += len(part)


def _apart(part: Rows, target: Rows) -> Rows:
    """Return `part`, or a copy of it where one thread would write what another has yet to read."""
    shifted = np.may_share_memory(part, target) and part.ctypes.data != target.ctypes.data
    return part.copy() if shifted else part
