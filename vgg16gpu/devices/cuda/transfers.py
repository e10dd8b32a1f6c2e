"""Copies between host and device: which of them a kernel makes, and an array as bytes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vgg16gpu.devices.base import Bytes, Transfer
from vgg16gpu.devices.cuda.host_memory import host_address
from vgg16gpu.errors import DeviceError

MAX_TRANSFER_NBYTES = 1 << 20  # what is larger goes by the copy engine


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
