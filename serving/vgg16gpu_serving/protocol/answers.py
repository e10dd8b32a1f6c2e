"""Messages of the Open Inference Protocol: what a request holds, answers to it, and what the model is.

https://github.com/kserve/open-inference-protocol and Triton's extensions "binary tensor data" and "classification".
`requests.py` reads requests.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vgg16gpu.compiler.graph.ops import Shape
from vgg16gpu.io.scores import top_classes
from vgg16gpu_serving.refused import RefusedError
from vgg16gpu_serving.served import Description, Served, Tensor

JSON_LENGTH: Final = "inference-header-content-length"
_text: Final = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode

QUICK_VALUES: Final = 4096  # that are written as text in some milliseconds
QUICK_BYTES: Final = 1 << 20  # that are copied in less than one

_LATER: Final = ["numbers"]  # stands for what is written in pieces; nothing else in an answer is such a list
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
    pictures: Sequence[bytes | memoryview]
    wanted: Sequence[Wanted]
    parameters: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.pictures) if self.rows is None else len(self.rows)


@dataclass(frozen=True)
class Body:
    """What is sent back. json_length: bytes of JSON before binary tensors; None where there are none."""

    data: bytes
    json_length: int | None


def is_quick_answer(request: Request, description: Description) -> bool:
    """Return whether `respond` takes some milliseconds at most."""
    texts = nbytes = 0
    for wanted in request.wanted:
        size = description.outputs[wanted.index].size
        nbytes += 4 * len(request) * size
        if wanted.classes or not wanted.is_binary:
            texts += len(request) * (min(wanted.classes, size) or size)
    return texts <= QUICK_VALUES and nbytes <= QUICK_BYTES


def respond(
    model: str,
    request: Request,
    description: Description,
    outputs: Sequence[npt.NDArray[np.float32]],
    labels: Sequence[str],
    parameters: Mapping[str, int],
) -> Body:
    """Write the answer. outputs: (N, size) for each of the model's. parameters: what is told of the run.

    Raises RefusedError (400) for NaN and Inf as JSON.
    """
    told, binary = [], []
    long: list[npt.NDArray[np.float32]] = []  # outputs whose numbers are written in pieces
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
        elif wanted.classes:
            entry["data"] = [text.decode() for text in texts]
        elif rows.size <= QUICK_VALUES:
            entry["data"] = rows.reshape(-1).tolist()
        else:
            entry["data"] = _LATER
            long.append(rows)
        told.append(entry)
    message: dict[str, Any] = {"model_name": model, "model_version": "1", "outputs": told}
    message["parameters"] = parameters
    if request.id is not None:
        message["id"] = request.id
    try:
        head = _text(message)
        if long:
            parts = head.split(_text(_LATER))
            numbers = [f"[{_numbers(rows)}]" for rows in long]
            head = "".join(part for pair in zip_longest(parts, numbers, fillvalue="") for part in pair)
    except ValueError as error:
        why = "an output holds NaN or Inf, for which JSON has no word; ask for binary_data"
        raise RefusedError(400, why) from error
    text = head.encode()
    return Body(b"".join((text, *binary)), len(text) if binary else None)


def _numbers(rows: npt.NDArray[np.float32]) -> str:
    """Return all numbers as JSON, with commas. They are written in pieces, between which other threads may go on."""
    flat = rows.reshape(-1)
    pieces = (flat[first : first + QUICK_VALUES] for first in range(0, flat.size, QUICK_VALUES))
    return ",".join(_text(piece.tolist())[1:-1] for piece in pieces)


def _classes(rows: npt.NDArray[np.float32], count: int, labels: Sequence[str]) -> list[bytes]:
    """Return score:class[:label] of the best of each row."""
    best = top_classes(rows, count)
    return [
        f"{row[i]!s}:{i}{f':{labels[i]}' if labels else ''}".encode(errors="replace")
        for row, chosen in zip(rows, best, strict=True)
        for i in chosen
    ]


def forms(description: Description) -> dict[str, Shape]:
    """Return the datatypes that the input takes, and the shape of an image in each."""
    found = {"FP32": description.input.shape, "FP16": description.input.shape}
    return {**found, "UINT8": description.pixels, "BYTES": ()} if description.pixels else found


def accepted(description: Description) -> list[str]:
    """Return the accepted datatypes in words."""
    return ["BYTES (encoded pictures)" if name == "BYTES" else name for name in forms(description)]


def metadata(served: Served) -> dict[str, Any]:
    """Return the content of /v2/models/NAME; of pictures also the preprocessing, and whether it is assumed."""
    description, preprocess = served.description, served.preprocess
    takes: dict[str, Any] = {"accepts": ", ".join(accepted(description)), "max_batch_size": description.largest}
    if preprocess and description.pixels:
        size = description.sample[1], description.sample[2]
        takes["preprocess"] = preprocess.line(*size)
        takes["preprocess_is_assumed"] = bool(preprocess.assumption(*size))
    return {
        "name": served.name,
        "versions": ["1"],
        "platform": "vgg16gpu",
        "inputs": [{**_told(description.input), "parameters": takes}],
        "outputs": [_told(output) for output in description.outputs],
    }


def configuration(name: str, description: Description) -> dict[str, Any]:
    """Return the content of /v2/models/NAME/config, an extension for clients of Triton, perf_analyzer among them."""
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
