"""Threads that decode the pictures of requests. Quick ones have threads of their own: they never wait behind others.

Every request is looked at by a quick thread first. One whose pictures take longer goes on to the slow threads, which
have a queue of their own, bounded by its pixels. A request that nobody waits for any more is dropped before its next
picture.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from vgg16gpu.io.normalize import Pixels
from vgg16gpu.pictures.cost import QUICK_PIXELS, Cost
from vgg16gpu.pictures.slots import Bytes
from vgg16gpu_serving.front_end.pictures import PIXEL_NBYTES, DevicePictures, Encoded, check_costs, costs_of, decoded
from vgg16gpu_serving.refused import RefusedError
from vgg16gpu_serving.served import Bounds, Served
from vgg16gpu_serving.workers import CancelToken, Workers

Result = TypeVar("Result")

_QUICK: Final = 2  # threads of a front end
_SLOW: Final = 2
_WAITING: Final = 32  # times the pixels of a picture: what two threads decode in some ten seconds


def decoding_nbytes(bounds: Bounds) -> int:
    """Return the most bytes that the threads of a front end take: each has a picture."""
    return PIXEL_NBYTES * (_QUICK * QUICK_PIXELS + _SLOW * bounds.pixels)


class Decoding:
    """The threads of a front end, which one event loop asks."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._quick = Workers(_QUICK, "vgg16gpu-decode")
        self._slow = Workers(_SLOW, "vgg16gpu-decode-slow")
        self._device = DevicePictures(served) if served.description.room_nbytes else None
        self._most = _WAITING * served.bounds.pixels
        self._pixels = 0  # of requests that slow threads decode, or have yet to

    @property
    def is_for_device(self) -> bool:
        """Return whether the device resizes, so that pictures are put into slots as they were decoded."""
        return self._device is not None

    async def rows(self, pictures: Sequence[Encoded], token: CancelToken) -> Pixels:
        """Return (N, H, W, C) as the network takes them.

        Raises RefusedError: 400, 413 for too many pixels, 429 where too many wait, 503 if late.
        """
        return await self._run(
            lambda: costs_of(pictures), lambda: decoded(self._served, pictures, token), token, lambda: None
        )

    async def put(
        self,
        pictures: Sequence[Encoded],
        rows: Sequence[Bytes],
        token: CancelToken,
        abandoned: Callable[[], None],
        *,
        as_files: bool,
    ) -> bool:
        """Decode into rows of input; return whether there is a file among them, which as_files allows.

        The rows are written until this returns or raises. A caller that is cancelled has them back when `abandoned` is
        called. Raises as `rows` does.
        """
        device = self._device
        assert device  # else nobody asks
        plans = []

        def plan() -> Sequence[Cost]:
            plans.extend(device.plan(pictures, rows, as_files=as_files))
            return [each.cost for each in plans]

        return await self._run(plan, lambda: device.put(plans, rows, token), token, abandoned)

    async def _run(
        self,
        measure: Callable[[], Sequence[Cost]],
        decode: Callable[[], Result],
        token: CancelToken,
        abandoned: Callable[[], None],
    ) -> Result:
        found = await self._quick.run(partial(_begun, measure, decode, self._served.bounds), token, abandoned)
        if not isinstance(found, _Slow):
            return found
        pixels = found.pixels
        if self._pixels and self._pixels + pixels > self._most:
            raise RefusedError(429, "too many pixels wait to be decoded; try again in a moment", retry=True)
        self._pixels += pixels

        def over() -> None:
            self._pixels -= pixels

        def left() -> None:
            over()
            abandoned()

        try:
            result = await self._slow.run(decode, token, left)
        except asyncio.CancelledError:
            raise  # then the call has yet to end
        except BaseException:
            over()
            raise
        over()
        return result


class _Slow:
    """A request that a quick thread does not decode."""

    def __init__(self, pixels: int) -> None:
        self.pixels = pixels


def _begun(measure: Callable[[], Sequence[Cost]], decode: Callable[[], Result], bounds: Bounds) -> Result | _Slow:
    costs = measure()
    return decode() if check_costs(costs, bounds) else _Slow(sum(cost.pixels for cost in costs))
