"""DLPack capsules, by way of numpy: it makes and takes them, with all that keeps their memory alive, for the CPU alone.

So while numpy looks, an array on the GPU claims to lie there: only its address passes, the numbers are not touched.
The layout of a capsule is that of DLManagedTensor in https://dmlc.github.io/dlpack/latest/c_api.html.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

Device: TypeAlias = tuple[int, int]  # (kind, number)

CPU: Final[Device] = (1, 0)
CUDA: Final = 2
CUDA_MANAGED: Final = 13

_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class _Head(ctypes.Structure):
    """How DLManagedTensor begins."""

    _fields_ = (("data", ctypes.c_void_p), ("kind", ctypes.c_int32), ("number", ctypes.c_int32))


class _Carrier:
    """What numpy.from_dlpack asks for."""

    def __init__(self, capsule: object) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: object) -> object:
        return self._capsule

    def __dlpack_device__(self) -> Device:
        return CPU


def wrap(array: npt.NDArray[Any], device: Device) -> object:
    """A capsule that says that an array lies on `device`; its consumer keeps the array alive."""
    capsule: object = array.__dlpack__()
    head = _head(capsule)
    head.kind, head.number = device
    return capsule


def unwrap(capsule: object) -> tuple[npt.NDArray[Any], Device]:
    """The array in a capsule, which is thereby used up, and where it lies: unless on the CPU, hands off its numbers.

    Raises ValueError for what is no capsule, or a used one; BufferError or RuntimeError for elements unknown to numpy.
    """
    head = _head(capsule)
    device = head.kind, head.number
    head.kind, head.number = CPU
    try:
        array: npt.NDArray[Any] = np.from_dlpack(_Carrier(capsule))  # type: ignore[arg-type]
    finally:
        head.kind, head.number = device  # whose memory it is may look when it is freed
    return array, device


def _head(capsule: object) -> _Head:
    return _Head.from_address(_get_pointer(capsule, b"dltensor"))
