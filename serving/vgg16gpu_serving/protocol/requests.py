"""Requests of the Open Inference Protocol as arrays: JSON, and the binary-tensor extension.

https://github.com/kserve/open-inference-protocol and Triton's extensions "binary tensor data", "classification" and
"shared memory". A request is as hostile as it likes: counts come before what they count, and what is counted is bounded
by the images of a batch before anything is made of it.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import math
import operator
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from vgg16gpu.compiler.class_scores import class_count
from vgg16gpu.compiler.graph.ops import Shape
from vgg16gpu.errors import InputError
from vgg16gpu.io.foreign.documents import parse_json
from vgg16gpu.io.foreign.numbers import whole_number, whole_value
from vgg16gpu.io.shown import shown
from vgg16gpu_serving.protocol.answers import QUICK_BYTES, Request, Wanted, accepted, forms
from vgg16gpu_serving.refused import RefusedError
from vgg16gpu_serving.served import Description

Raw: TypeAlias = bytes | memoryview

MOST_VALUES: Final = 1_000_000  # of a request's JSON
VALUE_NBYTES: Final = 100  # of one in memory, an empty list with its place in another
QUICK_JSON: Final = 1 << 15  # bytes that are read in less than a millisecond

_TYPES: Final[Mapping[str, np.dtype[Any]]] = {"FP32": np.dtype("<f4"), "FP16": np.dtype("<f2"), "UINT8": np.dtype("u1")}
_LENGTH: Final = struct.Struct("<I")
_PIECE: Final = 1 << 18  # characters of base64: a multiple of four
_MOST_SIDES: Final = 8  # of a shape
_LARGEST: Final = (1 << 31) - 1  # side of a shape, and any other count
_REGION: Final = "shared_memory_region"
_NUMBERS: Final = (int, float)


def head_length(body: Raw, header: str | None) -> int | None:
    """Return how many bytes of a body are JSON, where binary tensors may follow; None where all of it is JSON.

    header: Inference-Header-Content-Length. Raises RefusedError (400).
    """
    if header is None:
        return None
    try:
        return whole_number(header, "Inference-Header-Content-Length", 0, len(body))
    except InputError as error:
        raise _bad(f"{error}; the body has {len(body)} bytes") from error


def is_quick(body: Raw, length: int | None) -> bool:
    """Return whether `parse` takes about a millisecond at most."""
    return (len(body) if length is None else length) <= QUICK_JSON and len(body) <= QUICK_BYTES


def parse(body: Raw, length: int | None, description: Description) -> Request:
    """Return what a request to infer asks for. length: from `head_length`.

    Raises RefusedError: 400, 404 for what is not here, 413.
    """
    whole = memoryview(body)
    binary = whole[len(whole) if length is None else length :]
    try:
        return _parsed(_json(bytes(whole[:length])), binary, description)
    except InputError as error:  # of the readers of foreign numbers and documents
        raise _bad(str(error)) from error


def _parsed(document: Any, binary: memoryview, description: Description) -> Request:
    message = _object(document, "the request")
    given = _list(message, "inputs")
    if len(given) != 1:
        raise _bad(f"{len(given)} inputs: this model has one, '{description.input.name}'")
    tensor = _object(given[0], "an input")
    if tensor.get("name") != description.input.name:
        raise _bad(f"input {shown(tensor.get('name'))}: this model has one, '{description.input.name}'")
    identity = message.get("id")
    if identity is not None and not isinstance(identity, str):
        raise _bad(f"id {shown(identity)}: give a string, or leave it out")
    raw = _raw(tensor, binary)
    wanted, parameters = _wanted(message, description), _parameters(message)
    shape = _shape(tensor, description)
    if tensor.get("datatype") == "BYTES":
        if description.pixels is None:
            raise _bad(f"this model takes no pictures, but {', '.join(accepted(description))}")
        if len(shape) not in (1, 2) or shape[1:] not in ((), (1,)):
            raise _bad(f"BYTES {list(shape)}: the shape of N pictures is [N] or [N, 1]")
        pictures = _texts(tensor, shape[0]) if raw is None else _elements(raw, shape[0])
        return Request(identity, None, pictures, wanted, parameters)
    return Request(identity, _numbers(tensor, shape, raw, description), (), wanted, parameters)


def _json(text: bytes) -> Any:
    if sum(text.count(mark) for mark in (b",", b"[", b"{")) > MOST_VALUES:
        raise RefusedError(413, f"the JSON has more than {MOST_VALUES:,} values; send binary data, or fewer images")
    return parse_json(text, "the request")


def _object(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _bad(f"{what} is {shown(value)}, and no JSON object")
    return value


def _list(message: Mapping[str, Any], key: str) -> Sequence[Any]:
    value = message.get(key)
    if not isinstance(value, list):
        raise _bad(f"'{key}' is {shown(value)}, and no list")
    return value


def _parameters(of: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the parameters of a request or tensor. Raises RefusedError (404) for memory that clients share."""
    value = of.get("parameters")
    found = {} if value is None else _object(value, "parameters")
    if _REGION in found:
        region = shown(found[_REGION])
        raise RefusedError(404, f"{_REGION} {region} is not registered: this server takes and gives data in bodies")
    return found


def _flag(parameters: Mapping[str, Any], name: str, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise _bad(f"{name} is {shown(value)}; accepted is true or false")
    return value


def _raw(tensor: Mapping[str, Any], binary: memoryview) -> memoryview | None:
    """Return the bytes behind the JSON that are the tensor's; None where its numbers stand in the JSON."""
    size = _parameters(tensor).get("binary_data_size")
    if size is None:
        if len(binary):
            raise _bad(f"{len(binary)} bytes follow the JSON, and the input has no binary_data_size")
        return None
    if whole_value(size, "binary_data_size", 0, _LARGEST) != len(binary):
        raise _bad(f"binary_data_size {size}: {len(binary)} bytes follow the JSON")
    if "data" in tensor:
        raise _bad("the input has both 'data' and binary_data_size; send one of them")
    return binary


def _shape(tensor: Mapping[str, Any], description: Description) -> tuple[int, ...]:
    """Return the shape of the input, which has as many images as a request may."""
    given = _list(tensor, "shape")
    if not 0 < len(given) <= _MOST_SIDES:
        raise _bad(f"the shape has {len(given)} sides; this model takes {', '.join(accepted(description))}")
    shape = tuple(whole_value(side, "a side of the shape", 0, _LARGEST) for side in given)
    if not 0 < shape[0] <= description.largest:
        raise _bad(f"{shape[0]} images: a request has 1 to {description.largest}; send several requests")
    return shape


def _numbers(
    tensor: Mapping[str, Any], shape: tuple[int, ...], raw: memoryview | None, description: Description
) -> npt.NDArray[Any]:
    """Return (N, ...) float32 or uint8. Raises RefusedError (400)."""
    name = tensor.get("datatype")
    element = _TYPES.get(name) if isinstance(name, str) else None
    form: Shape | None = forms(description).get(str(name))
    if element is None or form is None:
        raise _bad(f"datatype {shown(name)}: this model takes {', '.join(accepted(description))}")
    if shape[1:] != form:
        raise _bad(f"input '{description.input.name}' is {name} {list(shape)}; this model takes {['N', *form]}")
    if raw is None:
        return _floats(_from_json(_list(tensor, "data"), element, shape, str(name)))
    count = math.prod(shape)
    if len(raw) != count * element.itemsize:
        raise _bad(f"{len(raw)} bytes: {name} {list(shape)} has {count * element.itemsize}")
    return _floats(np.frombuffer(raw, element).reshape(shape))


def _from_json(data: Sequence[Any], element: np.dtype[Any], shape: tuple[int, ...], name: str) -> npt.NDArray[Any]:
    """Return flat lists, or lists nested as `shape` says, as an array."""
    _require_numbers(data)
    is_pixels = element.kind == "u"
    try:
        found = np.array(data, None if is_pixels else np.float64)
    except OverflowError as error:
        raise _bad("'data' holds numbers that are too large") from error
    except ValueError as error:
        raise _bad("'data' is ragged: its lists are of several lengths") from error
    if found.size != math.prod(shape):
        raise _bad(f"'data' holds {found.size} numbers; {name} {list(shape)} has {math.prod(shape)}")
    if not _is_row_major(found.shape, shape):
        raise _bad(f"'data' is nested as {list(found.shape)}; {name} {list(shape)} is nested so, or flat")
    if is_pixels and not (found.min() >= 0 and found.max() <= 255):
        raise _bad("'data' holds numbers outside of 0..255")
    if is_pixels and found.dtype.kind not in "iu":
        raise _bad("'data' holds numbers that are not whole; UINT8 takes 0 to 255")
    with np.errstate(over="ignore"):
        return found.reshape(shape).astype(element)


def _is_row_major(nested: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Return whether lists nested so are `shape`, or some of its neighbouring sides made one: (N, C * H * W) is."""
    return set(itertools.accumulate(nested, operator.mul)) <= {1, *itertools.accumulate(shape, operator.mul)}


def _require_numbers(data: Sequence[Any]) -> None:
    """Raise RefusedError where anything but a number stands in the lists.

    numpy would take true for 1, and give each value the room of the longest text.
    """
    lists = [data]
    while lists:
        values = lists.pop()
        kinds = set(map(type, values))
        if others := kinds.difference(_NUMBERS, (list,)):
            found = next(value for value in values if type(value) in others)
            raise _bad(f"'data' holds {shown(found)}, and takes numbers alone")
        if list in kinds:
            lists.extend(value for value in values if type(value) is list)


def _floats(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return rows if rows.dtype in (np.uint8, np.float32) else rows.astype(np.float32)


def _elements(raw: memoryview, count: int) -> list[memoryview]:
    """Return the pictures of BYTES, each behind its length, where there are as many as the shape says."""
    found, place = [], 0
    for _ in range(count):
        if place + _LENGTH.size > len(raw) or (end := place + 4 + _LENGTH.unpack_from(raw, place)[0]) > len(raw):
            raise _bad(
                f"BYTES are cut short, the shape says {count}: each element is its length in four bytes, little "
                "endian, and itself"
            )
        found.append(raw[place + _LENGTH.size : end])
        place = end
    if place < len(raw):
        raise _bad(f"{len(raw) - place} bytes follow the {count} elements that the shape says")
    return found


def _texts(tensor: Mapping[str, Any], count: int) -> list[bytes]:
    """Return the pictures of BYTES in JSON: base64, as text cannot hold a picture."""
    texts = _list(tensor, "data")
    if texts and all(isinstance(text, list) and len(text) == 1 for text in texts):  # nested as [N, 1] says
        texts = [text[0] for text in texts]
    if len(texts) != count:
        raise _bad(f"'data' has {len(texts)} elements, the shape says {count}")
    try:
        return [_decoded(text) for text in texts]
    except (binascii.Error, TypeError, ValueError) as error:
        raise _bad("BYTES in JSON are strings of base64; or send them as binary data") from error


def _decoded(text: str) -> bytes:
    """Return what base64 says, in pieces, between which other threads may go on. Raises ValueError or TypeError."""
    if len(text) % 4:  # it may be wrong, which is seen by the whole
        return base64.b64decode(text, validate=True)
    last = max(0, len(text) - 1) // _PIECE * _PIECE
    if text.find("=", 0, last) >= 0:
        raise ValueError("padding before the end")
    pieces = range(0, last + 1, _PIECE)
    return b"".join(base64.b64decode(text[first : first + _PIECE], validate=True) for first in pieces)


def _wanted(message: Mapping[str, Any], description: Description) -> list[Wanted]:
    default = _flag(_parameters(message), "binary_data_output", default=False)
    if message.get("outputs") in (None, []):
        return [Wanted(i, default, 0) for i in range(len(description.outputs))]
    names = [output.name for output in description.outputs]
    entries = _list(message, "outputs")
    if len(entries) > len(names):
        raise _bad(f"{len(entries)} outputs are asked for; this server has {', '.join(names)}; name each once")
    found = []
    for entry in entries:
        asked = _object(entry, "an output")
        if asked.get("name") not in names:
            raise _bad(f"output {shown(asked.get('name'))}: this server has {', '.join(names)}")
        parameters = _parameters(asked)
        classes = whole_value(parameters.get("classification", 0), "classification", 0, _LARGEST)
        index = names.index(asked["name"])
        if classes and not class_count((1, *description.outputs[index].shape)):
            raise _bad(f"output '{names[index]}' has no classes; leave classification out")
        found.append(Wanted(index, _flag(parameters, "binary_data", default), classes))
    if len({wanted.index for wanted in found}) < len(found):
        raise _bad("an output is asked for twice; name each once")
    return found


def _bad(message: str) -> RefusedError:
    return RefusedError(400, message)
