"""Host memory beside a card: its address and bytes, which copies a kernel makes, pinning what is somebody else's.

Pinning is by the driver itself (CUDA driver API, "Memory Management"): PyCUDA's `register_host_memory` ends in an error
for arrays of NumPy 2, as it sets the base of its result a second time.
"""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np
import numpy.typing as npt

from vgg16gpu.devices.base import Bytes, Transfer
from vgg16gpu.devices.cuda.probe import DRIVER_LIBRARY
from vgg16gpu.errors import DeviceError

MAX_TRANSFER_NBYTES = 1 << 20  # what is larger goes by the copy engine

_PORTABLE = 1  # CU_MEMHOSTREGISTER_PORTABLE: pinned for every context


def host_address(data: Bytes) -> int:
    """Where an array lies."""
    return int(data.__array_interface__["data"][0])


def goes_by_kernel(transfer: Transfer) -> bool:
    """Whether a copy is small, and lies as the kernel that copies needs it."""
    nbytes, starts = transfer.host.nbytes, (transfer.address, host_address(transfer.host))
    return nbytes <= MAX_TRANSFER_NBYTES and nbytes % 4 == 0 and all(start % 16 == 0 for start in starts)


def as_bytes(array: npt.NDArray[np.generic]) -> Bytes:
    """The bytes of an array, not copied. Raises DeviceError if it is not contiguous."""
    if not array.flags.c_contiguous:
        raise DeviceError(
            f"an array of shape {array.shape} with strides {array.strides} is not contiguous; copy it first"
        )
    return array.reshape(-1).view(np.uint8)


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
