"""A card's context in a thread of its own, while the interpreter imports what will use it.

Starting the driver and making a primary context take some tenths of a second inside the driver, where nobody needs the
interpreter: ctypes lets go of its lock. Whoever opens the device then finds the context there. What fails here is left
for that one to tell.
"""

from __future__ import annotations

import ctypes
import threading
from types import TracebackType
from typing import Self

from vgg16gpu.devices.cuda.probe import DRIVER_LIBRARY
from vgg16gpu.devices.stages import BESIDE, stage


class ContextAhead:
    """Holds the primary context of a card from some time after `with` begins until it ends."""

    def __init__(self, ordinal: int, library: str = DRIVER_LIBRARY) -> None:
        self._ordinal = ordinal
        self._library = library
        self._held: tuple[ctypes.CDLL, ctypes.c_int] | None = None
        self._thread = threading.Thread(target=self._retain, name="vgg16gpu-context")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.join()
        if self._held:
            cuda, device = self._held
            cuda.cuDevicePrimaryCtxRelease_v2(device)

    def _retain(self) -> None:
        device, context = ctypes.c_int(), ctypes.c_void_p()
        try:
            cuda = ctypes.CDLL(self._library)
            with stage(f"driver{BESIDE}"):
                failed = cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), self._ordinal)
            if failed:
                return
            with stage(f"context{BESIDE}"):
                if cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0:
                    self._held = cuda, device
        except (OSError, AttributeError):  # no driver, or something else of its name
            return
