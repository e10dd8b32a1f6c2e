"""Messages of the Open Inference Protocol as arrays, and back: JSON, and the binary-tensor extension.

https://github.com/kserve/open-inference-protocol and Triton's extensions "binary tensor data" and "classification".
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vgg16gpu.compiler.class_scores import class_count
from vgg16gpu.compiler.graph.ops import Shape
from vgg16gpu.io.scores import top_classes
from vgg16gpu.io.shown import shown
from vgg16gpu.server.refused import RefusedError
from vgg16gpu.server.served import Description, Tensor

JSON_LENGTH: Final = "inference-header-content-length"
MOST_VALUES: Final = 1_000_000  # of a request's JSON, which a front end reads at one go
VALUE_NBYTES: Final = 100  # of one in memory, an empty list with its place in another

_TYPES: Final[Mapping[str, np.dtype[Any]]] = {"FP32": np.dtype("<f4"), "FP16": np.dtype("<f2"), "UINT8": np.dtype("u1")}
_LENGTH: Final = struct.Struct("<I")


@dataclass(frozen=True, eq=False)
class Wanted:
    """An output that is asked for. classes: how many of the best, 0 for the numbers themselves."""

    index: int
    is_binary: bool
    classes: int


@dataclass(frozen=True, eq=False)
class Request:
    """Rows of float32 or uint8 as the model's file has them, or encoded pictures; and what is wanted of them.

    parameters: of the request as a whole, as they came.
    """

    id: str | None
    rows: npt.NDArray[Any] | None
    pictures: Sequence[bytes]
    wanted: Sequence[Wanted]
    parameters: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.pictures) if self.rows is None else len(self.rows)


@dataclass(frozen=True)
class Body:
    """What is sent back. json_length: bytes of JSON before binary tensors; None where there are none."""

    data: bytes
    json_length: int | None


def parse(body: bytes, json_length: str | None, description: Description) -> Request:
    """A request to infer. json_length: the header of that name. Raises RefusedError: 400, 413."""
    head, binary = _split(body, json_length)
    message = _object(_json(head), "the request")
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
    if tensor.get("datatype") == "BYTES":
        pictures = _texts(tensor) if raw is None else _elements(raw)
        return _checked(Request(identity, None, _counted(pictures, tensor), wanted, parameters), description)
    return _checked(Request(identity, _numbers(tensor, raw, description), (), wanted, parameters), description)


def respond(
    model: str,
    request: Request,
    description: Description,
    outputs: Sequence[npt.NDArray[np.float32]],
    labels: Sequence[str],
    parameters: Mapping[str, int],
) -> Body:
    """The answer. outputs: (N, size) for each of the model's. parameters: what is told of the run.

    Raises RefusedError (400) for NaN and Inf as JSON.
    """
    told, binary = [], []
    for wanted in request.wanted:
        tensor, rows = description.outputs[wanted.index], outputs[wanted.index]
        names = labels if wanted.index == 0 and len(labels) == tensor.size else ()
        entry: dict[str, Any] = {"name": tensor.name, "datatype": "FP32", "shape": [len(rows), *tensor.shape]}
        if wanted.classes:
            texts = _classes(rows, min(wanted.classes, tensor.size), names)
            entry |= {"datatype": "BYTES", "shape": [len(rows), min(wanted.classes, tensor.size)]}
            data = b"".join(_LENGTH.pack(len(text)) + text for text in texts)
        else:
            texts, data = [], np.ascontiguousarray(rows, "<f4").tobytes() if wanted.is_binary else b""
        if wanted.is_binary:
            entry["parameters"] = {"binary_data_size": len(data)}
            binary.append(data)
        else:
            entry["data"] = [text.decode() for text in texts] if wanted.classes else rows.reshape(-1).tolist()
        told.append(entry)
    message: dict[str, Any] = {"model_name": model, "model_version": "1", "outputs": told}
    message["parameters"] = parameters
    if request.id is not None:
        message["id"] = request.id
    try:
        head = json.dumps(message, allow_nan=False, separators=(",", ":")).encode()
    except ValueError as error:
        raise _bad("an output holds NaN or Inf, for which JSON has no word; ask for binary_data") from error
    return Body(b"".join((head, *binary)), len(head) if binary else None)


def _split(body: bytes, json_length: str | None) -> tuple[bytes, memoryview]:
    if json_length is None:
        return body, memoryview(b"")
    if not (json_length.isascii() and json_length.isdigit()) or int(json_length[:12]) > len(body):
        raise _bad(f"Inference-Header-Content-Length {shown(json_length)}: the body has {len(body)} bytes")
    length = int(json_length)
    return body[:length], memoryview(body)[length:]


def _json(text: bytes) -> Any:
    if sum(text.count(mark) for mark in (b",", b"[", b"{")) > MOST_VALUES:
        raise RefusedError(413, f"the JSON has more than {MOST_VALUES:,} values; send binary data, or fewer images")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise _bad(f"the request is not JSON: {why}") from error


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
    return _object(of.get("parameters") or {}, "parameters")


def _whole(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _bad(f"{what} {shown(value)}: give a whole number, 0 or more")
    return value


def _raw(tensor: Mapping[str, Any], binary: memoryview) -> memoryview | None:
    """The bytes behind the JSON that are the tensor's; None where its numbers stand in the JSON."""
    size = _parameters(tensor).get("binary_data_size")
    if size is None:
        if len(binary):
            raise _bad(f"{len(binary)} bytes follow the JSON, and the input has no binary_data_size")
        return None
    if _whole(size, "binary_data_size") != len(binary):
        raise _bad(f"binary_data_size {size}: {len(binary)} bytes follow the JSON")
    return binary


def _shape(tensor: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(_whole(dim, "a side of shape") for dim in _list(tensor, "shape"))


def _numbers(tensor: Mapping[str, Any], raw: memoryview | None, description: Description) -> npt.NDArray[Any]:
    """(N, ...) float32 or uint8."""
    name, shape = tensor.get("datatype"), _shape(tensor)
    element = _TYPES.get(name) if isinstance(name, str) else None
    wanted = forms(description).get(str(name))
    if element is None or wanted is None:
        raise _bad(f"datatype {shown(name)}: this model takes {', '.join(accepted(description))}")
    if shape[1:] != wanted or not shape:
        raise _bad(f"input '{description.input.name}' is {name} {list(shape)}; this model takes {['N', *wanted]}")
    count = math.prod(shape)
    if raw is not None:
        if len(raw) != count * element.itemsize:
            raise _bad(f"{len(raw)} bytes: {name} {list(shape)} has {count * element.itemsize}")
        return _floats(np.frombuffer(raw, element).reshape(shape))
    return _floats(_from_json(_list(tensor, "data"), element, shape, str(name)))


def _from_json(data: Sequence[Any], element: np.dtype[Any], shape: tuple[int, ...], name: str) -> npt.NDArray[Any]:
    """Flat or nested lists as an array."""
    if _has_text(data):
        raise _bad("'data' holds texts, which are not numbers")
    try:
        found = np.array(data)
    except (ValueError, OverflowError) as error:
        raise _bad("'data' is ragged, or holds numbers that are too large") from error
    if found.dtype.kind not in ("iu" if element.kind == "u" else "iuf") or found.size != math.prod(shape):
        kind = "numbers" if found.dtype.kind in "iuf" else "values that are not numbers"
        raise _bad(f"'data' holds {found.size} {kind}; {name} {list(shape)} has {math.prod(shape)}")
    if element.kind == "u" and found.size and not (found.min() >= 0 and found.max() <= 255):
        raise _bad("'data' holds numbers outside of 0..255")
    with np.errstate(over="ignore"):
        return found.reshape(shape).astype(element)


def _has_text(data: Sequence[Any]) -> bool:
    """Whether there is a string anywhere: numpy would give each value the room of the longest one."""
    lists = [data]
    while lists:
        for value in lists.pop():
            if isinstance(value, str):
                return True
            if isinstance(value, list):
                lists.append(value)
    return False


def _floats(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return rows if rows.dtype in (np.uint8, np.float32) else rows.astype(np.float32)


def _elements(raw: memoryview) -> list[bytes]:
    """BYTES: each behind its length."""
    found, place = [], 0
    while place < len(raw):
        if place + _LENGTH.size > len(raw) or (end := place + 4 + _LENGTH.unpack_from(raw, place)[0]) > len(raw):
            raise _bad("BYTES are cut short: each element is its length in four bytes, little endian, and itself")
        found.append(bytes(raw[place + _LENGTH.size : end]))
        place = end
    return found


def _texts(tensor: Mapping[str, Any]) -> list[bytes]:
    """BYTES in JSON: base64, as text cannot hold a picture."""
    try:
        return [base64.b64decode(text, validate=True) for text in _list(tensor, "data")]
    except (binascii.Error, TypeError, ValueError) as error:
        raise _bad("BYTES in JSON are strings of base64; or send them as binary data") from error


def _counted(pictures: Sequence[bytes], tensor: Mapping[str, Any]) -> Sequence[bytes]:
    shape = _shape(tensor)
    if shape not in ((len(pictures),), (len(pictures), 1)):
        raise _bad(f"BYTES {list(shape)}: there are {len(pictures)} elements, so shape is [{len(pictures)}]")
    return pictures


def _checked(request: Request, description: Description) -> Request:
    if not 0 < len(request) <= description.largest:
        raise _bad(f"{len(request)} images: a request has 1 to {description.largest}; send several requests")
    if request.pictures and description.pixels is None:
        raise _bad(f"this model takes no pictures, but {', '.join(accepted(description))}")
    return request


def _wanted(message: Mapping[str, Any], description: Description) -> list[Wanted]:
    default = bool(_parameters(message).get("binary_data_output", False))
    if not message.get("outputs"):
        return [Wanted(i, default, 0) for i in range(len(description.outputs))]
    names = [output.name for output in description.outputs]
    found = []
    for entry in _list(message, "outputs"):
        asked = _object(entry, "an output")
        if asked.get("name") not in names:
            raise _bad(f"output {shown(asked.get('name'))}: this server has {', '.join(names)}")
        parameters = _parameters(asked)
        classes = _whole(parameters.get("classification", 0), "classification")
        index = names.index(asked["name"])
        if classes and not class_count((1, *description.outputs[index].shape)):
            raise _bad(f"output '{names[index]}' has no classes; leave classification out")
        found.append(Wanted(index, bool(parameters.get("binary_data", default)), classes))
    if len({wanted.index for wanted in found}) < len(found):
        raise _bad("an output is asked for twice; name each once")
    return found


def _classes(rows: npt.NDArray[np.float32], count: int, labels: Sequence[str]) -> list[bytes]:
    """score:class[:label] of the best of each row."""
    best = top_classes(rows, count)
    return [
        f"{row[i]!s}:{i}{f':{labels[i]}' if labels else ''}".encode()
        for row, chosen in zip(rows, best, strict=True)
        for i in chosen
    ]


def forms(description: Description) -> dict[str, Shape]:
    """The datatypes that the input takes, and the shape of an image in each."""
    found = {"FP32": description.input.shape, "FP16": description.input.shape}
    return {**found, "UINT8": description.pixels, "BYTES": ()} if description.pixels else found


def accepted(description: Description) -> list[str]:
    """The same in words."""
    return ["BYTES (encoded pictures)" if name == "BYTES" else name for name in forms(description)]


def metadata(name: str, description: Description) -> dict[str, Any]:
    """What /v2/models/NAME tells."""
    takes = {"accepts": ", ".join(accepted(description)), "max_batch_size": description.largest}
    return {
        "name": name,
        "versions": ["1"],
        "platform": "vgg16gpu",
        "inputs": [{**_told(description.input), "parameters": takes}],
        "outputs": [_told(output) for output in description.outputs],
    }


def configuration(name: str, description: Description) -> dict[str, Any]:
    """What /v2/models/NAME/config tells: an extension that clients of Triton ask for, perf_analyzer among them."""
    return {
        "name": name,
        "platform": "vgg16gpu",
        "max_batch_size": description.largest,
        "input": [_configured(description.input)],
        "output": [_configured(output) for output in description.outputs],
    }


def _configured(tensor: Tensor) -> dict[str, Any]:
    return {"name": tensor.name, "data_type": "TYPE_FP32", "dims": list(tensor.shape)}


def _told(tensor: Tensor) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": "FP32", "shape": [-1, *tensor.shape]}


def _bad(message: str) -> RefusedError:
    return RefusedError(400, message)
