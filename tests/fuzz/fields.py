"""Damage to the bytes of a model, and to the fields of its wire format, so that lengths are right again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import onnx

from vgg16gpu.compiler.onnx.wire import encode_varint

HUGE: Final = (-(1 << 63), -(1 << 31), -2, -1, 0, 1, 2, 3, 7, 64, 65536, 1 << 31, 1 << 40, 1 << 62, (1 << 63) - 1)


def change_bytes(random: Random, data: bytes) -> tuple[bytes, str]:
    name, change = random.choice(tuple(_BYTES.items()))
    return change(random, data), name


def _flip(random: Random, data: bytes) -> bytes:
    damaged = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 8)) if data else 0):
        damaged[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(damaged)


def _overwrite(random: Random, data: bytes) -> bytes:
    start = random.randrange(len(data) + 1)
    return data[:start] + bytes([random.choice((0, 0x7F, 0x80, 0xFF))]) * random.choice((1, 2, 10)) + data[start + 1 :]


def _truncate(random: Random, data: bytes) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def _cut(random: Random, data: bytes) -> bytes:
    start = random.randrange(len(data) + 1)
    return data[:start] + data[start + random.choice((1, 2, 16, 200)) :]


def _repeat(random: Random, data: bytes) -> bytes:
    start = random.randrange(len(data) + 1)
    piece = data[start : start + random.choice((1, 2, 16, 200))]
    return data[:start] + piece * random.choice((2, 2, 50)) + data[start + len(piece) :]


def _insert(random: Random, data: bytes) -> bytes:
    start = random.randrange(len(data) + 1)
    return data[:start] + random.randbytes(random.choice((1, 2, 16))) + data[start:]


_BYTES: Final[Mapping[str, Callable[[Random, bytes], bytes]]] = {
    "bits flipped": _flip,
    "bytes overwritten": _overwrite,
    "truncated": _truncate,
    "bytes cut out": _cut,
    "bytes repeated": _repeat,
    "bytes inserted": _insert,
}


# Fields: the wire format as lists


@dataclass
class _Field:
    number: int
    wire: int
    value: int | bytes | list[_Field]


def change_field(random: Random, data: bytes) -> tuple[bytes, str] | None:
    """One field, at any depth, changed; None when the file cannot be read."""
    try:
        message = _read(data, onnx.ModelProto.DESCRIPTOR)
    except (IndexError, ValueError):
        return None
    fields = message
    while True:
        if not fields:
            return None
        index = random.randrange(len(fields))
        value = fields[index].value
        if not isinstance(value, list) or not value or random.random() < 0.2:
            break
        fields = value
    name, change = random.choice(tuple(_FIELDS.items()))
    change(random, fields, index)
    return _write(message), f"field {name}"


def _read(data: bytes, descriptor: Any) -> list[_Field]:
    fields, position = [], 0
    while position < len(data):
        key, position = _varint(data, position)
        number, wire = key >> 3, key & 7
        value: int | bytes | list[_Field]
        if wire == 0:
            value, position = _varint(data, position)
        elif wire == 2:
            length, position = _varint(data, position)
            value, position = data[position : position + length], position + length
            item = descriptor.fields_by_number.get(number)
            if item is not None and item.message_type is not None:
                value = _read(value, item.message_type)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            value, position = data[position : position + size], position + size
        else:
            raise ValueError("not a field")
        fields.append(_Field(number, wire, value))
    return fields


def _write(fields: list[_Field]) -> bytes:
    parts = []
    for item in fields:
        parts.append(encode_varint(item.number << 3 | item.wire))
        if isinstance(item.value, int):
            parts.append(encode_varint(item.value))
        else:
            body = _write(item.value) if isinstance(item.value, list) else item.value
            parts += [encode_varint(len(body)), body] if item.wire == 2 else [body]
    return b"".join(parts)


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position


def _remove_field(random: Random, fields: list[_Field], index: int) -> None:
    del random, fields[index]


def _double_field(random: Random, fields: list[_Field], index: int) -> None:
    fields.insert(random.randrange(len(fields) + 1), fields[index])


def _many_fields(random: Random, fields: list[_Field], index: int) -> None:
    fields[index:index] = [fields[index]] * random.choice((10, 300))


def _move_field(random: Random, fields: list[_Field], index: int) -> None:
    fields.insert(random.randrange(len(fields)), fields.pop(index))


def _renumber_field(random: Random, fields: list[_Field], index: int) -> None:
    fields[index] = _Field(random.choice((0, *range(1, 26), 1 << 28)), fields[index].wire, fields[index].value)


def _set_field(random: Random, fields: list[_Field], index: int) -> None:
    item = fields[index]
    if item.wire == 0:
        value: int | bytes = random.choice((*(number % (1 << 64) for number in HUGE), 1 << 64, 1 << 69))
    elif item.wire == 2:
        value = random.choice((b"", b"\xff\xfe", b"\0", b"name\n", b"x" * 5000, random.randbytes(9)))
    else:
        value = random.choice((b"\xff", b"\0", b"\x7f")) * (8 if item.wire == 1 else 4)
    fields[index] = _Field(item.number, item.wire, value)


def _nest_field(random: Random, fields: list[_Field], index: int) -> None:
    item = fields[index]
    if item.wire == 2:
        for _ in range(random.choice((1, 30, 120))):
            item = _Field(item.number, 2, [item])
        fields[index] = item


def _swap_fields(random: Random, fields: list[_Field], index: int) -> None:
    other = random.randrange(len(fields))
    fields[index].value, fields[other].value = fields[other].value, fields[index].value
    fields[index].wire, fields[other].wire = fields[other].wire, fields[index].wire


_FIELDS: Final[Mapping[str, Callable[[Random, list[_Field], int], None]]] = {
    "removed": _remove_field,
    "doubled": _double_field,
    "repeated": _many_fields,
    "moved": _move_field,
    "renumbered": _renumber_field,
    "set": _set_field,
    "nested": _nest_field,
    "swapped": _swap_fields,
}
