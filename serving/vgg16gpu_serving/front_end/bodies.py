"""Bodies of requests on their way into a front end, and how many bytes of them there may be at once."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from vgg16gpu_serving.refused import RefusedError
from vgg16gpu_serving.served import Bounds

CONNECTION_NBYTES: Final = 1 << 17  # that granian buffers of one: a head has less, or is refused (431)

_PARTS: Final = 8  # of the largest body: a body of one such part is small
_WHOLE: Final = 1 << 20  # bytes of a body that granian puts together: longer ones would hold up the loop


class Bodies:
    """The bodies of a front end that are read or worked on.

    Large ones leave room for others: who sends a few of them slowly keeps nobody else out.
    """

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self.nbytes = 0  # that they have together

    def add(self, nbytes: int) -> None:
        """Count a body. Raises RefusedError: 413 too large, 429 too many at once."""
        if nbytes > self._bounds.body:
            raise RefusedError(413, f"the body is larger than {self._bounds.body:,} bytes; send fewer images at once")
        is_small = nbytes <= self._bounds.body // _PARTS
        if self.nbytes + nbytes > self._bounds.bodies + is_small * self._bounds.body:
            raise RefusedError(429, "too many bodies are being read; try again in a moment", retry=True)
        self.nbytes += nbytes


def bodies_nbytes(bounds: Bounds) -> int:
    """Return the most bytes that bodies take: those that are read, and copies that are worked on."""
    return 2 * (bounds.bodies + bounds.body)


class Body:
    """The body of a request. length: bytes, as its head says.

    is_late: whether it is being read, or was given up while it was.
    """

    def __init__(self, bodies: Bodies, protocol: Any, length: int) -> None:
        self._bodies, self._protocol, self._counted = bodies, protocol, 0
        self.length = length
        self.is_late = self._is_read = False

    @property
    def is_left(self) -> bool:
        """Return whether some of it has yet to be read."""
        return self.length > 0 and not self._is_read

    async def read(self) -> bytes | memoryview:
        """Return all of it. Raises RefusedError: 400 cut short, 413 too large, 429 too many at once."""
        self._bodies.add(self.length)
        self._counted = self.length
        self.is_late = True
        try:
            found: bytes | memoryview = await (self._protocol() if self.length <= _WHOLE else self._pieces())
        except RuntimeError as error:  # granian's, of a connection that ended
            raise _broken() from error
        self._is_read, self.is_late = True, False
        return found

    async def _pieces(self) -> memoryview:
        """Read the body, copying each piece as it comes. Raises for one that breaks off."""
        data = np.empty(self.length, np.uint8).data
        place = 0
        async for piece in self._protocol:
            end = place + len(piece)
            if not piece or end > self.length:
                break
            data[place:end] = piece
            place = end
            if place == self.length:
                return data
        raise _broken()

    def close(self) -> None:
        """Count it no more. Safe to call twice."""
        self._bodies.nbytes -= self._counted
        self._counted = 0


def _broken() -> RefusedError:
    return RefusedError(400, "the body is cut short or broken; send it again")
