"""Where host memory lies, and pinning what somebody else has allocated (CUDA driver API, "Memory Management").

PyCUDA's `register_host_memory` ends in an error for arrays of NumPy 2: it sets the base of its result a second time.
"""

from __future__ import annotations

import ctypes
from functools import cache

from vgg16gpu.devices.base import Bytes
from vgg16gpu.devices.cuda.probe import DRIVER_LIBRARY
from vgg16gpu.errors import DeviceError

_PORTABLE = 1  # CU_MEMHOSTREGISTER_PORTABLE: pinned for every context


def host_address(data: Bytes) -> int:
    """Where an array lies."""
    return int(data.__array_interface__["data"][0])


def register(data: Bytes) -> None:
    """Pin `data`, whose context is current. Raises DeviceError where the driver refuses."""
    address, nbytes = ctypes.c_void_p(host_address(data)), ctypes.c_size_t(data.nbytes)
    _check(_driver().cuMemHostRegister_v2(address, nbytes, ctypes.c_uint(_PORTABLE)), "pins", data)


def unregister(data: Bytes) -> None:
    """End what `register` did; nothing may be on its way there or from there. Raises DeviceError, likewise."""
    _check(_driver().cuMemHostUnregister(ctypes.c_void_p(host_address(data))), "unpins", data)


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL(DRIVER_LIBRARY)


def _check(status: int, does: str, data: Bytes) -> None:
    if status:
        raise DeviceError(
            f"the driver {does} no {data.nbytes:,} bytes of host memory (CUresult {status}); it may lock too little "
            "memory for this user: see `ulimit -l`"
        )
