"""A device for tests of who gives back what."""

from __future__ import annotations

from typing import Any


class Counting:
    """A device that knows how much of it is in use: memory and what is bound."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self.used: set[Any] = set()
        self.bound: set[Any] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def allocate(self, nbytes: int) -> Any:
        address = self._device.allocate(nbytes)
        self.used.add(address)
        return address

    def free(self, address: int) -> None:
        self.used.remove(address)
        self._device.free(address)

    def pinned(self, nbytes: int) -> Any:
        buffer = self._device.pinned(nbytes)
        self.used.add(buffer.ctypes.data)
        return buffer

    def unpin(self, buffer: Any) -> None:
        self.used.remove(buffer.ctypes.data)
        self._device.unpin(buffer)

    def bind(self, steps: Any, bases: Any, **how: bool) -> Any:
        launch = self._device.bind(steps, bases, **how)
        self.bound.add(launch)
        return launch

    def round_trip(self, upload: Any, launch: Any, download: Any) -> Any:
        run = self._device.round_trip(upload, launch, download)
        self.bound.add(run)
        return run

    def unbind(self, launch: Any) -> None:
        self.bound.remove(launch)
        self._device.unbind(launch)
