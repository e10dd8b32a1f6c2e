"""Arrays of other libraries on the GPU, and runs on them.

The engine takes what it needs from here by name, as the first such array comes: who gives arrays on the host pays
nothing for it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from vgg16gpu.errors import InputError

if TYPE_CHECKING:
    from vgg16gpu.runtime.on_device.pending import AsyncStatus
    from vgg16gpu.runtime.on_device.results import DeviceArray, RunOptions
    from vgg16gpu.runtime.on_device.runner import DeviceRunner, ErrorSink
    from vgg16gpu.runtime.on_device.views import view_of

__all__ = [
    "AsyncStatus",
    "DeviceArray",
    "DeviceRunner",
    "ErrorSink",
    "RunOptions",
    "is_on_device",
    "refuse_on_host",
    "view_of",
]

_MODULES = {
    "RunOptions": "results",
    "DeviceArray": "results",
    "DeviceRunner": "runner",
    "AsyncStatus": "pending",
    "ErrorSink": "runner",
    "lies_on_device": "views",
    "view_of": "views",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module '{__name__}' has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = found  # every run asks for some of them
    return found


def refuse_on_host(stream: object, form: object, out: object, wait: bool) -> None:
    """Raise InputError for what an input on the host cannot have."""
    if wait and stream is form is out is None:
        return
    given = {"stream": stream is not None, "form": form is not None, "out": out is not None, "wait=False": not wait}
    for name in (name for name, is_given in given.items() if is_given):
        raise InputError(f"{name} is for arrays on the GPU, and this input is on the host; leave it out")


def is_on_device(x: object) -> bool:
    """Return whether `x` is an array on a GPU. Those in the host's memory, whatever else they can, are for numpy."""
    if isinstance(x, np.ndarray):
        return False
    lies_on_device: Any = globals().get("lies_on_device") or __getattr__("lies_on_device")
    return bool(lies_on_device(x))
