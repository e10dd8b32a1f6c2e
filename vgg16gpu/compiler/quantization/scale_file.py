"""int8 scales on disk, beside the model that they belong to: MODEL.int8.json.

    {"version": 2, "method": ..., "images": 500, "images_sha256": ..., "preprocess": {"mean": [...], ...} or null,
     "model": {"nbytes": ..., "mtime_ns": ...},
     "values": {NAME: {"step": 0.0123, "signed": false, "weights_sha256": ...}, ...}}

A value's step depends on the weights that made it. So each entry holds a digest of the weights that read it, and scales
are refused for a model that was trained again. A model that is run for other outputs, with fewer ops, keeps its scales.
A model file that has not been written since needs no digests: half a gigabyte of weights takes 0.3 s. `preprocess` is
what was done to the pictures (`Preprocess`), null where all inputs were numbers; older files lack it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np

from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.graph.ops import Array, Conv, Gemm, op_arrays
from vgg16gpu.compiler.quantization.scheme import SMALLEST_STEP, Scale, Scales, quantised_inputs
from vgg16gpu.errors import InputError, ModelError
from vgg16gpu.io.files import atomic_writer
from vgg16gpu.io.foreign.documents import parse_json
from vgg16gpu.io.foreign.lines import NotReadError, read_bytes
from vgg16gpu.io.preprocessing import Origin, Preprocess
from vgg16gpu.io.shown import shown

_VERSION: Final = 2  # files of version 1 that were made on a Hopper GPU hold a wrong scale of the input
_LARGEST_STEP: Final = 2.0**120  # times 255 it is still a float32
_PIECE: Final = 1 << 22  # weights hashed at a time, by several threads


def scales_path(model: str | Path) -> Path:
    """Return the path of a model's scales: the model's name and .int8.json."""
    return Path(f"{model}.int8.json")


def write_scales(
    model: str | Path,
    graph: Graph,
    scales: Scales,
    *,
    method: str,
    images: int,
    images_digest: str,
    preprocess: Preprocess | None = None,
) -> Path:
    """Write the scales of a model whose simplified graph is `graph`; the path. Raises ModelError."""
    digests = weight_digests(graph)
    content = {
        "version": _VERSION,
        "method": method,
        "images": images,
        "images_sha256": images_digest,
        "preprocess": preprocess.fields() if preprocess else None,
        "model": _unwritten(model, graph),
        "values": {
            name: {"step": scale.step, "signed": scale.signed, "weights_sha256": digests[name]}
            for name, scale in scales.items()
        },
    }
    path = scales_path(model)
    with atomic_writer(path) as file:
        file.write(json.dumps(content, indent=2, allow_nan=False).encode() + b"\n")
    return path


def read_scales(model: str | Path, graph: Graph) -> Scales:
    """Read the scales of every value that a Conv or Gemm of `graph` reads, from the file beside the model.

    Raises ModelError, which says how to make the file, when it is missing, broken or of other weights.
    """
    path, remedy = scales_path(model), _remedy(model)
    content = _load(path, remedy)
    values, known = content["values"], content.get("model")
    digests = None if known and known == _unwritten(model, graph) else weight_digests(graph)
    scales = {}
    for name, signed in quantised_inputs(graph).items():
        if name not in values:
            raise ModelError(f"{path}: has no scale for value '{name}' of the model; {remedy} makes it again")
        scale = _scale(values[name])
        if scale is None or scale.signed != signed:
            raise ModelError(
                f"{path}: the scale of value '{name}' is broken ({shown(values[name])}); {remedy} makes it again"
            )
        if digests and values[name].get("weights_sha256") != digests[name]:
            raise ModelError(
                f"{path}: belongs to other weights than the model has now (those that read value '{name}'); "
                f"{remedy} makes it again"
            )
        scales[name] = scale
    return scales


def read_preprocess(model: str | Path) -> Preprocess | None:
    """Return the preprocessing of the pictures that gave a model's scales; None if that is not known.

    Raises ModelError when the file is missing or broken.
    """
    path, remedy = scales_path(model), _remedy(model)
    content = _load(path, remedy).get("preprocess")
    try:
        return content and Preprocess.from_fields(content).with_origin(Origin("file"))
    except InputError as error:
        raise ModelError(f"{path}: its 'preprocess' is broken ({error}); {remedy} makes it again") from error


def weight_digests(graph: Graph) -> Mapping[str, str]:
    """Return the SHA-256 (hex) of the weights and biases that read each value, by the value's name."""
    arrays: dict[str, list[Array]] = {}
    for op in graph.ops:
        if isinstance(op, Conv | Gemm):
            arrays.setdefault(op.x, []).extend(array for array in (op.weight, op.bias) if array is not None)
    with ThreadPoolExecutor() as pool:
        digests = {name: [pool.submit(_digest, piece) for piece in _pieces(found)] for name, found in arrays.items()}
        return {
            name: hashlib.sha256(b"".join(digest.result() for digest in found)).hexdigest()
            for name, found in digests.items()
        }


def _unwritten(model: str | Path, graph: Graph) -> dict[str, int] | None:
    """Return the model file's size and mtime, which change when it is written; None if it may lack the weights."""
    status = Path(model).stat()
    nbytes = sum(array.nbytes for op in graph.ops for array in op_arrays(op))
    return {"nbytes": status.st_size, "mtime_ns": status.st_mtime_ns} if status.st_size >= nbytes else None


def _pieces(arrays: list[Array]) -> list[Array]:
    pieces = []
    for array in arrays:
        rows = max(_PIECE * len(array) // max(array.size, 1), 1)
        pieces += [array[first : first + rows] for first in range(0, len(array), rows)]
    return pieces


def _digest(piece: Array) -> bytes:
    digest = hashlib.sha256(f"{piece.shape}".encode())
    digest.update(np.ascontiguousarray(piece).data)
    return digest.digest()


def _remedy(model: str | Path) -> str:
    return f"`python -m vgg16gpu calibrate {model} --images DIR`"


def _load(path: Path, remedy: str) -> dict[str, Any]:
    """Read a file of scales; its values are a table. Raises ModelError."""
    if not path.is_file():
        raise ModelError(f"int8 needs the scales of the model, and {path} does not exist; {remedy} makes it")
    try:
        content = parse_json(read_bytes(path, f"{path}:"), str(path))
    except NotReadError as error:
        raise ModelError(str(error)) from error
    except InputError:
        content = None
    version = content.get("version") if isinstance(content, dict) else None
    if version != _VERSION or not isinstance(content.get("values"), dict):
        raise ModelError(f"{path}: is no file of int8 scales, version {_VERSION}; {remedy} makes it again")
    return dict(content)


def _scale(entry: Any) -> Scale | None:
    """Return the scale that an entry holds; None when it holds none."""
    if not isinstance(entry, dict):
        return None
    step, signed = entry.get("step"), entry.get("signed")
    if not isinstance(step, float) or not isinstance(signed, bool) or not SMALLEST_STEP <= step <= _LARGEST_STEP:
        return None
    return Scale(float(np.float32(step)), signed)
