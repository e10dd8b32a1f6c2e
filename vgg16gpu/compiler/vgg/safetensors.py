"""Tensors of a .safetensors file, mapped: 8 bytes that tell the header's length, the header as JSON, raw values.

Nothing in the header is believed before it is checked. Source: https://github.com/huggingface/safetensors, "Format".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vgg16gpu.compiler.onnx.file import MAX_RANK, map_weights
from vgg16gpu.errors import InputError, ModelError
from vgg16gpu.io.foreign.documents import parse_json
from vgg16gpu.io.shown import printable, shown

MOST_HEADER: Final = 100_000_000  # bytes; the format's own limit

_LENGTH: Final = 8  # bytes before the header
_METADATA: Final = "__metadata__"
_FLOATS: Final[Mapping[str, str]] = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_BYTES: Final[Mapping[str, int]] = {
    **{"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2},
    **{"I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1},
}


class _DamagedError(Exception):
    """The message says what is wrong with the file."""


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """A tensor in the file. dtype: as the format calls it."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview

    def floats(self) -> npt.NDArray[np.float32] | None:
        """Return its values as float32: a view (maybe unaligned) if they are, else a copy; None for other numbers."""
        if self.dtype not in _FLOATS:
            return None
        array = np.frombuffer(self.data, _FLOATS[self.dtype]).reshape(self.shape)
        if self.dtype == "BF16":
            return (array.astype("<u4") << 16).view("<f4")
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            return array.astype("<f4", copy=False)


def read_safetensors(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a .safetensors file by name, mapped. Raises ModelError for what is no such file."""
    data = map_weights(path)
    try:
        return _tensors(data)
    except (_DamagedError, InputError) as error:
        fault = f"is not a .safetensors file, or damaged: {error}; copy or download it again"
        raise ModelError(f"{printable(str(path))}: {fault}") from error


def _tensors(data: memoryview) -> dict[str, StoredTensor]:
    length = int.from_bytes(data[:_LENGTH], "little")
    if len(data) < _LENGTH or length > min(len(data) - _LENGTH, MOST_HEADER):
        raise _DamagedError(f"its header would have {length:,} bytes, the file has {len(data):,}")
    text = bytes(data[_LENGTH : _LENGTH + length])
    if not text.startswith(b"{"):
        raise _DamagedError("its header does not begin with '{'")
    header = parse_json(text, "its header", MOST_HEADER)
    values = data[_LENGTH + length :]
    header.pop(_METADATA, None)
    found = {name: _tensor(name, entry, values) for name, entry in header.items()}
    end = 0
    for name, (first, last) in sorted(((name, entry["data_offsets"]) for name, entry in header.items()), key=_place):
        if first != end:
            raise _DamagedError(f"tensor {shown(name)} begins at byte {first:,}, where {end:,} is expected")
        end = last
    if end != len(values):
        raise _DamagedError(f"its tensors have {end:,} bytes, the file has {len(values):,} for them")
    return found


def _place(item: tuple[str, list[int]]) -> list[int]:
    return item[1]


def _tensor(name: str, entry: Any, values: memoryview) -> StoredTensor:
    """Check one entry of the header against the bytes that are there."""
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise _DamagedError(f"tensor {shown(name)} has not just dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _BYTES:
        raise _DamagedError(f"tensor {shown(name)} has element type {shown(dtype)}; known: {', '.join(_BYTES)}")
    if not _are_counts(shape) or len(shape) > MAX_RANK:
        raise _DamagedError(f"tensor {shown(name)} has the shape {shown(shape)}")
    if not _are_counts(offsets) or len(offsets) != 2 or not offsets[0] <= offsets[1] <= len(values):
        raise _DamagedError(f"tensor {shown(name)} has the offsets {shown(offsets)}, the file {len(values):,} bytes")
    need = math.prod(shape) * _BYTES[dtype]
    if offsets[1] - offsets[0] != need:
        given = offsets[1] - offsets[0]
        raise _DamagedError(f"tensor {shown(name)} of shape {shown(shape)} needs {need:,} bytes, it has {given:,}")
    return StoredTensor(dtype, tuple(shape), values[offsets[0] : offsets[1]])


def _are_counts(numbers: Any) -> bool:
    """Return whether it is a list of whole numbers that are not negative and below 2^62."""
    return isinstance(numbers, list) and all(type(number) is int and 0 <= number < 1 << 62 for number in numbers)
