"""An ONNX file, opened without copying its weights.

VGG16 is 553 MB of weights and a few kB of structure. The file is mapped, its protobuf wire format walked once, and a
small message without the large tensor bodies parsed by `onnx`. Large tensors are handed out as read-only views of the
mapping, wherever they lie: in the file, in a Constant node, or in external data. So loading takes almost no memory.

Wire format: https://protobuf.dev/programming-guides/encoding; field numbers: onnx.proto.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, numpy_helper

from vgg16gpu.errors import ModelError

Constant: TypeAlias = npt.NDArray[Any]

LARGE: Final = 256  # bytes; tensor bodies above stay in the mapping
LFS_POINTER: Final = b"version https://git-lfs"

_INSIDE: Final = "\0"  # `location` of a body left in the model file itself; no file can have this name
_BODY: Final[Mapping[int, Any]] = {}  # marks the field that holds a tensor's bytes
_TENSOR: Final = {9: _BODY, 4: _BODY}  # raw_data; float_data, whose packed form is the same bytes
_MODEL: Final = {7: {5: _TENSOR, 1: {5: {5: _TENSOR}}}}  # graph -> initializer; graph -> node -> attribute -> t

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types

_DTYPES: Final[Mapping[int, np.dtype[Any]]] = {
    TensorProto.FLOAT: np.dtype("<f4"),
    TensorProto.DOUBLE: np.dtype("<f8"),
    TensorProto.FLOAT16: np.dtype("<f2"),
    TensorProto.INT32: np.dtype("<i4"),
    TensorProto.INT64: np.dtype("<i8"),
    TensorProto.INT8: np.dtype("i1"),
    TensorProto.UINT8: np.dtype("u1"),
    TensorProto.BOOL: np.dtype("?"),
}


class _MalformedError(Exception):
    """The bytes are not a protobuf message."""


class _Field(NamedTuple):
    """One field of a message: the key is at [start], the value (without its length) at [body, end)."""

    number: int
    wire: int
    start: int
    body: int
    end: int


@dataclass(frozen=True, eq=False)
class OnnxFile:
    """A parsed model whose large tensors are still in the file. The file must not be rewritten in place meanwhile."""

    path: Path
    model: onnx.ModelProto
    _data: memoryview
    _external: dict[str, memoryview] = field(default_factory=dict)

    def error(self, message: str) -> ModelError:
        """A ModelError that names this file."""
        return ModelError(f"{self.path}: {message}")

    def array(self, tensor: TensorProto) -> Constant:
        """The value of a tensor of this model: a read-only view of the mapping when it is large (maybe unaligned).

        Raises ModelError when its type is unknown or its bytes are missing, short, or outside the model's folder.
        """
        name = tensor.name or "of a Constant node"
        dtype = _DTYPES.get(tensor.data_type)
        if dtype is None:
            kind = element_type(tensor.data_type)
            raise self.error(f"tensor '{name}' has element type {kind}; export the model in float32")
        shape = tuple(tensor.dims)
        if any(dim < 0 for dim in shape):
            raise self.error(f"tensor '{name}' has a negative dimension {shape}; the file is broken, export it again")
        if tensor.data_location == TensorProto.EXTERNAL:
            return self._mapped(tensor, name, dtype, shape)
        try:
            array = numpy_helper.to_array(tensor)
        except (ValueError, TypeError) as error:
            raise self.error(f"tensor '{name}' does not hold its {shape} values; export the model again") from error
        array.flags.writeable = False
        return array

    def _mapped(self, tensor: TensorProto, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Constant:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        source = self._data if location == _INSIDE else self._external_data(name, location)
        need = math.prod(shape) * dtype.itemsize
        try:
            offset, length = int(entries.get("offset", 0)), int(entries.get("length", need))
        except ValueError:
            raise self.error(f"tensor '{name}': offset or length is not a number; export the model again") from None
        if length != need:
            raise self.error(f"tensor '{name}' of shape {shape} needs {need} bytes, the file gives it {length}")
        if offset < 0 or offset + need > len(source):
            place = "" if location == _INSIDE else f" in '{location}'"
            raise self.error(
                f"tensor '{name}' needs bytes {offset} to {offset + need}{place}, which has {len(source)}; "
                "the file is truncated, copy or download it again"
            )
        return np.frombuffer(source, dtype, math.prod(shape), offset).reshape(shape)

    def _external_data(self, name: str, location: str) -> memoryview:
        if location not in self._external:
            self._external[location] = _map_file(self._external_path(name, location))
        return self._external[location]

    def _external_path(self, name: str, location: str) -> Path:
        relative = PurePosixPath(location.replace("\\", "/"))
        folder = self.path.parent.resolve()
        parts = relative.parts
        if not parts or relative.is_absolute() or ".." in parts or ":" in parts[0] or "\0" in location:
            raise self.error(
                f"tensor '{name}' asks for external data at '{location}'; only files in the model's own folder are read"
            )
        target = folder / relative
        try:
            inside = target.resolve().is_relative_to(folder)
        except (OSError, RuntimeError):  # a loop of links
            inside = False
        if not inside:
            raise self.error(
                f"external data '{location}' is a link that leaves the model's folder; put a copy beside the model"
            )
        if not target.is_file():
            raise self.error(f"its external data '{location}' is missing; put that file beside the model")
        return target


def element_type(number: int) -> str:
    """What onnx.proto calls an element type."""
    return TensorProto.DataType.Name(number) if number in TensorProto.DataType.values() else str(number)


def open_onnx(path: str | Path) -> OnnxFile:
    """Map and parse an ONNX file. Raises ModelError with one line that says what the file is instead."""
    path = Path(path)
    data = _map_file(path)
    try:
        model = onnx.ModelProto.FromString(_strip(data, 0, len(data), _MODEL))
    except (_MalformedError, DecodeError) as error:
        raise _not_a_model(path, data) from error
    if not model.HasField("graph"):
        raise _not_a_model(path, data)
    return OnnxFile(path, model, data)


def _map_file(path: Path) -> memoryview:
    """The bytes of a file, mapped read-only."""
    try:
        if path.is_dir():
            raise ModelError(f"{path}: is a folder; name the .onnx file in it")
        if not path.exists():
            raise ModelError(f"{path}: no such file; `python -m vgg16gpu model make` writes a model")
        if not path.is_file():
            raise ModelError(f"{path}: is not a regular file; save the model to disk first")
        if path.stat().st_size == 0:
            raise ModelError(f"{path}: is empty; copy or download it again")
        with path.open("rb") as stream:
            data = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read ({error}); check the path and its permissions") from error
    if bytes(data[: len(LFS_POINTER)]) == LFS_POINTER:
        raise ModelError(f"{path}: is a git-LFS pointer, not the file itself; run `git lfs pull`")
    return data


def _not_a_model(path: Path, data: memoryview) -> ModelError:
    # Every exporter writes ir_version first: field 1 as a varint.
    if data[0] == 1 << 3 | _VARINT:
        return ModelError(f"{path}: is truncated or damaged after {len(data)} bytes; copy or download it again")
    return ModelError(f"{path}: is not an ONNX model; export one, for example with torch.onnx.export")


def _strip(data: memoryview, start: int, end: int, below: Mapping[int, Any]) -> bytes:
    """The message at [start, end) with large tensor bodies replaced by a reference to where they lie."""
    parts: list[bytes] = []
    for item in _fields(data, start, end):
        inner = below.get(item.number) if item.wire == _BYTES else None
        if inner is None or (inner is _BODY and item.end - item.body <= LARGE):
            parts.append(bytes(data[item.start : item.end]))
        elif inner is _BODY:
            parts.append(_reference(item.body, item.end - item.body))
        else:
            body = _strip(data, item.body, item.end, inner)
            parts += [encode_varint(item.number << 3 | _BYTES), encode_varint(len(body)), body]
    return b"".join(parts)


def _reference(offset: int, length: int) -> bytes:
    """TensorProto fields that say: this tensor's bytes are in the model file itself."""
    tensor = TensorProto(data_location=TensorProto.EXTERNAL)
    for key, value in (("location", _INSIDE), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)
    return bytes(tensor.SerializeToString())


def _fields(data: memoryview, start: int, end: int) -> Iterator[_Field]:
    position = start
    while position < end:
        key, body = _varint(data, position, end)
        wire = key & 7
        if wire == _VARINT:
            stop = _varint(data, body, end)[1]
        elif wire == _BYTES:
            length, body = _varint(data, body, end)
            stop = body + length
        elif wire in (_FIXED32, _FIXED64):
            stop = body + (4 if wire == _FIXED32 else 8)
        else:
            raise _MalformedError
        if stop > end:
            raise _MalformedError
        yield _Field(key >> 3, wire, position, body, stop)
        position = stop


def _varint(data: memoryview, position: int, end: int) -> tuple[int, int]:
    """The base-128 number at `position` and the position after it."""
    value = 0
    for shift, byte in enumerate(data[position : min(end, position + 10)]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value, position + shift + 1
    raise _MalformedError


def encode_varint(value: int) -> bytes:
    """A number as protobuf's wire format writes it: 7 bits a byte, the lowest first."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
