"""DLPack capsules: what lies where, read from them; and made, by way of numpy, which keeps their memory alive.

numpy makes capsules for the CPU alone and knows no bfloat16. So what it made is told afterwards where it lies, and of
what elements; the numbers are not touched.
The layout of a capsule is that of DLManagedTensor in https://dmlc.github.io/dlpack/latest/c_api.html.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any, Final, NamedTuple, TypeAlias

import numpy.typing as npt

Device: TypeAlias = tuple[int, int]  # (kind, number)

CPU: Final[Device] = (1, 0)
CUDA: Final = 2
CUDA_MANAGED: Final = 13

_KINDS: Final = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
_BFLOAT: Final = 4

_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class Described(NamedTuple):
    """What a capsule says of an array. Strides are in elements."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    element_type: str  # as numpy calls it, or "bfloat16"
    device: Device


class _Tensor(ctypes.Structure):
    """DLTensor, which DLManagedTensor begins with."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("kind", ctypes.c_int32),
        ("number", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


def wrap(array: npt.NDArray[Any], device: Device, *, is_bfloat: bool = False) -> object:
    """A capsule that says that an array lies on `device`; its consumer keeps the array alive.

    is_bfloat: the array's 16-bit elements are bfloat16.
    """
    capsule: object = array.__dlpack__()
    tensor = _tensor(capsule)
    tensor.kind, tensor.number = device
    if is_bfloat:
        tensor.code = _BFLOAT
    return capsule


def describe(capsule: object) -> Described:
    """What lies where. The array lives as long as the capsule, which is not used up.

    Raises ValueError for what is no capsule, or a used one.
    """
    tensor = _tensor(capsule)
    shape = tuple(tensor.shape[dim] for dim in range(tensor.rank))
    strides = tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))
    if tensor.strides:
        strides = tuple(tensor.strides[dim] for dim in range(tensor.rank))
    name = f"{_KINDS.get(tensor.code, f'kind {tensor.code}, ')}{tensor.bits}"
    if tensor.lanes != 1:
        name += f" in vectors of {tensor.lanes}"
    address = (tensor.data or 0) + tensor.byte_offset
    return Described(address, shape, strides, name, (tensor.kind, tensor.number))


def _tensor(capsule: object) -> _Tensor:
    return _Tensor.from_address(_get_pointer(capsule, b"dltensor"))
