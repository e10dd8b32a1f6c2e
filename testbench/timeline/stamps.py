"""What blocks of instrumented kernels have written, as times: the Python side of kernels/include/timeline.cuh.

The device's nanoseconds may go in steps of a microsecond; the clock of a multiprocessor goes on in every cycle, and
begins anywhere. So times are those of the clocks: their period is that of all stamps together, and where the clock of a
multiprocessor begins is what fits its own stamps best.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

WORDS: Final = 16  # of a block
EVENTS: Final = ("begun", "operands", "sums", "exchanged", "done")  # in the order of timeline.cuh
_WHERE: Final = 2 * len(EVENTS)  # the word that says which multiprocessor

Stamps = npt.NDArray[np.uint64]
Times = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class BlockTimes:
    """Of the blocks of one launch. times: (blocks, events) in microseconds, NaN of what did not happen.

    where: (blocks,) the multiprocessor of each; on a CPU the core.
    """

    times: Times
    where: npt.NDArray[np.int64]


def block_times(launches: list[Stamps]) -> list[BlockTimes]:
    """From the words of each launch, (blocks, WORDS); microseconds count from the first block of all."""
    words = np.concatenate(launches).astype(np.int64)
    where = words[:, _WHERE]
    now, clock = words[:, 0:_WHERE:2], words[:, 1:_WHERE:2]
    happened = now > 0
    base = int(now[happened].min())
    seconds = np.where(happened, (now - base) / 1e3, np.nan)
    times = _by_clocks(seconds, np.where(happened, clock, 0), happened, where)
    times -= np.nanmin(times)
    ends = np.cumsum([len(each) for each in launches])[:-1]
    return [BlockTimes(*pair) for pair in zip(np.split(times, ends), np.split(where, ends), strict=True)]


def _by_clocks(
    us: Times, clock: npt.NDArray[np.int64], happened: npt.NDArray[np.bool_], where: npt.NDArray[np.int64]
) -> Times:
    """The same times, as fine as the clocks."""
    rows = np.broadcast_to(where[:, None], us.shape)
    places, index = np.unique(rows[happened], return_inverse=True)
    x, y = clock[happened].astype(np.float64), us[happened]
    first = np.full(len(places), np.inf)
    np.minimum.at(first, index, x)
    x = x - first[index]  # small numbers, of which sums are exact enough
    count = np.bincount(index)
    centred_x = x - (np.bincount(index, x) / count)[index]
    centred_y = y - (np.bincount(index, y) / count)[index]
    squares = float(centred_x @ centred_x)
    period = float(centred_x @ centred_y) / squares if squares else 0.0
    offset = np.bincount(index, y - period * x) / count
    found = np.full(us.shape, np.nan)
    found[happened] = period * x + offset[index]
    return found
