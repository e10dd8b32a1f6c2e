"""The weights of an ONNX file as files of their own, for programs that do not read ONNX: .npy, or numbers as text.

Weights are the floating-point tensors that a node reads, initializers and tensors of Constant nodes, and the integers
that DequantizeLinear makes real numbers of; shapes and axes are none. Text is flat, the last dimension fastest, a
number a line, with so many digits that reading it back gives the same number.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from onnx import AttributeProto

from vgg16gpu.compiler.onnx.file import Constant, OnnxFile
from vgg16gpu.compiler.onnx.folding.budget import FoldError, FoldingBudget
from vgg16gpu.compiler.onnx.folding.sparse import array_of
from vgg16gpu.compiler.onnx.initializers import Stored, initializers
from vgg16gpu.compiler.onnx.inline import inline_functions
from vgg16gpu.compiler.onnx.listing import TensorType, list_nodes, tensor_type
from vgg16gpu.io.files import Progress, folder_writer
from vgg16gpu.io.foreign.outputs import Named, refuse_read_files

TABLE: Final = "weights.json"  # beside the files
FORMATS: Final[Mapping[str, tuple[str, ...]]] = {"npy": (".npy",), "txt": (".txt",), "both": (".npy", ".txt")}

_FLOATS: Final = ("float", "bfloat")  # how the names of their types begin
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]|^[.-]")
_LONGEST: Final = 120  # characters of a file's name; file systems take 255 bytes
_CHUNK: Final = 1 << 14  # numbers made text at a time
_DIGITS: Final[Mapping[str, bytes]] = {"float16": b"%.5g\n", "float32": b"%.9g\n", "float64": b"%.17g\n"}


@dataclass(frozen=True)
class Reader:
    """A node that computes with a weight; `role` is what the operator calls it: W, B."""

    node: str
    op: str
    role: str


@dataclass(frozen=True, eq=False)
class Weight:
    """A tensor of the file and the nodes that read it, in their order."""

    name: str  # an initializer's, or of what a Constant node gives
    tensor: Stored
    type: TensorType
    readers: tuple[Reader, ...]

    @property
    def count(self) -> int:
        """Numbers in it."""
        return math.prod(self.type.shape)


def weights_of(file: OnnxFile) -> tuple[Weight, ...]:
    """Return the weights in the order in which nodes read them. Raises ModelError for a file without any.

    Where all operands of a node are constants (Transpose, DequantizeLinear) it passes the first one on: that weight's
    readers are those of the node's result.
    """
    file = inline_functions(file)
    found = tuple(_found(file))
    if not found:
        raise file.error("has no weights: no node reads a constant of floating-point numbers")
    return found


def write_weights(
    file: OnnxFile,
    weights: Sequence[Weight],
    folder: Path,
    form: str,
    *,
    force: bool,
    progress: Progress,
    reads: Iterable[Named] = (),
) -> dict[str, Any]:
    """Write every weight and TABLE into the folder, which is whole or not made; the table as plain data.

    `form` is a key of FORMATS; `progress` is told of numbers. Raises InputError when the folder holds anything, unless
    it is to be replaced by `force`, or one of its files to be replaced is among `reads` (`refuse_read_files`), and
    ModelError when a tensor cannot be read or a file not be written.
    """
    total = sum(weight.count for weight in weights) * len(FORMATS[form])
    done = 0

    def tell(count: int) -> None:
        nonlocal done
        done += count
        progress(done, total)

    rows = [
        _row(weight, [stem + suffix for suffix in FORMATS[form]])
        for weight, stem in zip(weights, _stems(weights), strict=True)
    ]
    table = {"model": str(file.path), "numbers": sum(weight.count for weight in weights), "weights": rows}
    names = [name for row in rows for name in row["files"]] + [TABLE]
    refuse_read_files((("--output", folder / name) for name in names), reads)
    with folder_writer(folder, force=force) as place:
        for weight, row in zip(weights, rows, strict=True):
            array = _array(file, weight)
            for name in row["files"]:
                with (place / name).open("wb") as stream:
                    _WRITERS[Path(name).suffix](stream, array, tell)
        (place / TABLE).write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    return table


def _array(file: OnnxFile, weight: Weight) -> Constant:
    try:
        return array_of(file, weight.tensor, FoldingBudget())
    except FoldError as error:
        raise file.error(f"weight '{weight.name}': {error}; export the model again") from error


def _found(file: OnnxFile) -> Iterator[Weight]:
    tensors = dict(initializers(file.model.graph))
    made_of = {name: name for name in tensors}  # for each constant the tensor that it is, or is made of
    readers: dict[str, list[Reader]] = {}
    scaled: set[str] = set()  # integers that stand for real numbers
    for proto, node in zip(file.model.graph.node, list_nodes(file), strict=True):
        if node.op == "Constant":
            for attribute in proto.attribute:
                if proto.output and (stored := _stored(attribute)):
                    tensors[proto.output[0]] = stored
                    made_of[proto.output[0]] = proto.output[0]
            continue
        given = [operand for operand in node.inputs if operand.name]
        passes_on = bool(given) and all(operand.name in made_of for operand in given)
        for operand in given:
            if (name := made_of.get(operand.name)) is None:
                continue
            found = readers.setdefault(name, [])
            if node.op == "DequantizeLinear":
                scaled.add(name)
            if not (passes_on and operand is given[0]):
                found.append(Reader(node.name, node.op, operand.role))
        if passes_on and proto.output:
            made_of[proto.output[0]] = made_of[given[0].name]
    for name, found in readers.items():
        kind = tensor_type(tensors[name])
        if kind.element.startswith(_FLOATS) or name in scaled:
            yield Weight(name, tensors[name], kind, tuple(found))


def _stored(attribute: AttributeProto) -> Stored | None:
    if attribute.HasField("t"):
        return attribute.t
    return attribute.sparse_tensor if attribute.HasField("sparse_tensor") else None


def _stems(weights: Sequence[Weight]) -> Iterator[str]:
    """Yield a file name for each weight: its own, without characters special to a file system or shell.

    No two are the same where small and capital letters are.
    """
    taken: set[str] = set()
    last: dict[str, int] = {}
    for weight in weights:
        stem = first = _UNSAFE.sub("_", weight.name)[:_LONGEST] or "_"
        while stem.lower() in taken:
            last[first.lower()] = last.get(first.lower(), 1) + 1
            stem = f"{first}-{last[first.lower()]}"
        taken.add(stem.lower())
        yield stem


def _row(weight: Weight, files: Sequence[str]) -> dict[str, Any]:
    return {
        "name": weight.name,
        "shape": list(weight.type.shape),
        "type": weight.type.element,
        "numbers": weight.count,
        "readers": [vars(reader) for reader in weight.readers],
        "files": list(files),
    }


def _write_npy(stream: BinaryIO, array: Constant, tell: Callable[[int], None]) -> None:
    np.save(stream, array, allow_pickle=False)
    tell(array.size)


def _write_txt(stream: BinaryIO, array: Constant, tell: Callable[[int], None]) -> None:
    digits = _DIGITS.get(array.dtype.name, b"%d\n")
    flat = array.reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        numbers = flat[start : start + _CHUNK].tolist()
        stream.write(digits * len(numbers) % tuple(numbers))
        tell(len(numbers))


_WRITERS: Final[Mapping[str, Callable[[BinaryIO, Constant, Callable[[int], None]], None]]] = {
    ".npy": _write_npy,
    ".txt": _write_txt,
}
