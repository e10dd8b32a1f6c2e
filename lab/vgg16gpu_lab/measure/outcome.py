"""What an error of a variant means for its case."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Final

from vgg16gpu.errors import DeviceError, Error, KernelError
from vgg16gpu_lab.measure.measure import Measurement, Status
from vgg16gpu_lab.measure.trial import InvalidLaunchError, RefusedError

_MEANINGS: Final[Mapping[type[Exception], Status]] = {
    RefusedError: Status.REFUSED,
    InvalidLaunchError: Status.INVALID,
    DeviceError: Status.NO_ROOM,
    MemoryError: Status.NO_ROOM,
}


def outcome(error: Exception) -> Measurement:
    """Return the status, the reason on a line, and the compiler's own text where it was the compiler that refused."""
    status = next((status for kind, status in _MEANINGS.items() if isinstance(error, kind)), Status.FAILED)
    if isinstance(error, KernelError) and error.output:
        return Measurement(status, str(error).partition(":\n")[0], output=error.output)
    return Measurement(status, _told(error))


def _told(error: Exception) -> str:
    """Return one line; for an error of another package also where it was raised."""
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError):
        return f"in the host's memory: {text}"
    if isinstance(error, Error):
        return text
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {text} ({frame.filename}:{frame.lineno})"
