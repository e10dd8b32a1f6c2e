"""The wire format of an ONNX file: walked once, within bounds, before protobuf sees a byte of it.

A file is a tree of messages. The walk goes through the whole tree by onnx's own descriptors, counts what there is,
looks at every text, and puts a short reference in the place of each large tensor body, so that what is left is small.

Structure is all of a file but its large tensor bodies. Walking and parsing it allocates at most `BYTES_PER_BYTE` for
each byte of structure and `BYTES_PER_FIELD` for each field, and there is a limit to both.

Encoding: https://protobuf.dev/programming-guides/encoding; field numbers: onnx.proto.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from vgg16gpu.io.shown import printable

LARGE: Final = 256  # bytes; tensor bodies above stay in the file
LARGE_CODED: Final = 1 << 20  # the same for bodies of varints, which must be decoded when they are asked for
INSIDE: Final = "\0"  # `location` of a body left in the model file itself; no file can have this name

MAX_STRUCTURE: Final = 32 << 20  # bytes; networks of a thousand nodes, with notes on each, have 5 MiB
MAX_FIELDS: Final = 300_000  # a node has about 20
MAX_DEPTH: Final = 60  # messages inside each other; a tensor of a node is the fifth; protobuf itself stops at 100
MAX_NAME: Final = 4096  # characters
BYTES_PER_BYTE: Final = 20  # a packed number of one byte is eight in memory, in an array that doubles as it grows
BYTES_PER_FIELD: Final = 256  # an empty message of two bytes is an object of many fields in memory

# Fields of a tensor that may stay in the file, from this size in bytes on.
BODIES: Final[Mapping[str, int]] = {
    "raw_data": LARGE,
    "float_data": LARGE,  # packed: the same bytes as raw_data
    "double_data": LARGE,
    "int32_data": LARGE_CODED,
    "int64_data": LARGE_CODED,
}
CODED: Final = ("int32_data", "int64_data")

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_FREE_TEXT: Final = ("doc_string", "StringStringEntryProto.key", "StringStringEntryProto.value")


class MalformedError(Exception):
    """The bytes are not a protobuf message."""


class UnreasonableError(Exception):
    """Something that no model could be; says why, with the file's name to be put in front."""


@dataclass(eq=False)
class _Message:
    """What the walk does with the fields of a message type, by number; with those in no table nothing."""

    messages: dict[int, _Message] = field(default_factory=dict)
    bodies: dict[int, str] = field(default_factory=dict)
    names: frozenset[int] = frozenset()
    texts: frozenset[int] = frozenset()

    def is_body(self, number: int, nbytes: int) -> bool:
        """Return whether a field holds a tensor's values, and so many that they stay in the file."""
        return number in self.bodies and nbytes > BODIES[self.bodies[number]]


def _message(descriptor: Any, known: dict[str, _Message]) -> _Message:
    """Return the tables of a message type, and build those of all types below it."""
    if descriptor.full_name in known:
        return known[descriptor.full_name]
    found = known[descriptor.full_name] = _Message()
    strings = [item for item in descriptor.fields if item.type == item.TYPE_STRING]
    free = [item for item in strings if item.name in _FREE_TEXT or f"{descriptor.name}.{item.name}" in _FREE_TEXT]
    found.texts = frozenset(item.number for item in free)
    found.names = frozenset(item.number for item in strings) - found.texts
    for item in descriptor.fields:
        if item.message_type is not None:
            found.messages[item.number] = _message(item.message_type, known)
        elif descriptor.name == "TensorProto" and item.name in BODIES:
            found.bodies[item.number] = item.name
    return found


_MODEL: Final = _message(onnx.ModelProto.DESCRIPTOR, {})


def strip_model(data: memoryview) -> bytes:
    """Return a model without its large tensor bodies: external data at `INSIDE`, with their field, offset and length.

    Raises MalformedError, and UnreasonableError for what is beyond the bounds or holds text that cannot be shown.
    """
    stripped = _Walk(data).strip(0, len(data), _MODEL)
    return bytes(data) if stripped is None else stripped


@dataclass(eq=False)
class _Walk:
    """One walk over the fields of a file."""

    data: memoryview
    fields: int = 0
    structure: int = 0  # bytes

    def strip(self, start: int, end: int, message: _Message, depth: int = 1) -> bytes | None:
        """Return the message at [start, end) with a reference for each large tensor body; None if it has none."""
        if depth > MAX_DEPTH:
            raise UnreasonableError(f"has more than {MAX_DEPTH} messages inside each other; no model needs so many")
        parts: list[bytes | memoryview] = []
        position = kept = start  # up to `kept` all is in `parts`
        while position < end:
            first = position
            key, body = _varint(self.data, first, end)
            number, wire = key >> 3, key & 7
            body, position = _extent(self.data, wire, body, end)
            if not 0 < number < 1 << 29:
                raise MalformedError
            new = None
            if wire == _BYTES and number in message.messages:
                self._count(0)
                new = self._submessage(number, body, position, message, depth)
            elif wire == _BYTES and position - body > LARGE and message.is_body(number, position - body):
                self._count(0)
                new = _reference(body, position - body, message.bodies[number])
            else:
                self._count(position - first)
                if wire == _BYTES and (number in message.names or number in message.texts):
                    self._check_text(body, position, is_name=number in message.names)
            if new is not None:
                parts += [self.data[kept:first], new]
                kept = position
        return b"".join([*parts, self.data[kept:end]]) if parts else None

    def _submessage(self, number: int, start: int, end: int, message: _Message, depth: int) -> bytes | None:
        body = self.strip(start, end, message.messages[number], depth + 1)
        return None if body is None else encode_varint(number << 3 | _BYTES) + encode_varint(len(body)) + body

    def _count(self, nbytes: int) -> None:
        """Count one field of `nbytes` bytes, without the fields in it. Raises UnreasonableError beyond the bounds."""
        self.fields, self.structure = self.fields + 1, self.structure + nbytes
        if self.fields > MAX_FIELDS:
            raise UnreasonableError(f"has more than {MAX_FIELDS} fields; no network of this kind needs so many")
        if self.structure > MAX_STRUCTURE:
            raise UnreasonableError(
                f"has more than {MAX_STRUCTURE >> 20} MiB beside its tensors; no network of this kind needs so much"
            )

    def _check_text(self, start: int, end: int, *, is_name: bool) -> None:
        """Raise UnreasonableError for text that is not UTF-8, or a name that messages cannot show."""
        try:
            text = str(self.data[start:end], "utf-8")
        except UnicodeDecodeError:
            raise UnreasonableError("holds text that is not UTF-8; the file is damaged, export it again") from None
        if is_name and len(text) > MAX_NAME:
            raise UnreasonableError(f"holds a name of {len(text)} characters, at most {MAX_NAME} are supported")
        if is_name and _CONTROL.search(text):
            raise UnreasonableError(f"holds the name '{printable(text)}' with control characters; rename it")


def _reference(offset: int, length: int, place: str) -> bytes:
    """Return TensorProto fields that place a tensor's bytes in the model file itself."""
    tensor = TensorProto(data_location=TensorProto.EXTERNAL)
    for key, value in (("location", INSIDE), ("offset", str(offset)), ("length", str(length)), ("field", place)):
        tensor.external_data.add(key=key, value=value)
    return bytes(tensor.SerializeToString())


def _extent(data: memoryview, wire: int, position: int, end: int) -> tuple[int, int]:
    """Return where a field's value begins, behind its length, and where it ends; its key ends at `position`."""
    if wire == _BYTES:
        length, position = _varint(data, position, end)
        stop = position + length
    elif wire == _VARINT:
        stop = _varint(data, position, end)[1]
    elif wire in (_FIXED32, _FIXED64):
        stop = position + (4 if wire == _FIXED32 else 8)
    else:
        raise MalformedError
    if stop > end:
        raise MalformedError
    return position, stop


def _varint(data: memoryview, position: int, end: int) -> tuple[int, int]:
    """Return the base-128 number at `position`, of at most 64 bits, and the position behind. Raises MalformedError."""
    if position < end and data[position] < 0x80:
        return data[position], position + 1
    value = 0
    for shift, byte in enumerate(data[position : min(end, position + 10)]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80 and value < 1 << 64:
            return value, position + shift + 1
    raise MalformedError


def decode_varints(data: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.int64], int]:
    """Return every whole base-128 number in `data`, as int64, and the bytes that they take.

    Raises MalformedError if there is none, or one of more than ten bytes.
    """
    ends = np.flatnonzero(data < 0x80)
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts[: ends.size] + 1
    if not ends.size or lengths.max() > 10:
        raise MalformedError
    values = np.zeros(ends.size, np.uint64)
    for index in range(int(lengths.max())):
        longer = lengths > index
        values[longer] |= (data[starts[longer] + index] & 0x7F).astype(np.uint64) << np.uint64(7 * index)
    return values.view(np.int64), int(ends[-1]) + 1


def encode_varint(value: int) -> bytes:
    """Encode a number in protobuf's wire format: 7 bits a byte, the lowest first."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
