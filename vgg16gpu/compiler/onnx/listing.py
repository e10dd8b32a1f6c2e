"""The nodes of an ONNX file as they stand there, as Netron shows them: attributes, operands by the operator's names.

Nothing is judged or translated, so a file that no engine takes has its nodes, too. Local functions are written out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx.defs
from onnx import AttributeProto, NodeProto, SparseTensorProto, TensorProto

from vgg16gpu.compiler.onnx.file import OnnxFile, element_type
from vgg16gpu.compiler.onnx.importer import DEFAULT_DOMAINS, label
from vgg16gpu.compiler.onnx.initializers import Stored, initializers
from vgg16gpu.compiler.onnx.inline import inline_functions

_USUAL_NAMES: Final = {"float": "float32", "double": "float64"}


@dataclass(frozen=True)
class TensorType:
    """What a tensor holds: element type, float32 say, and shape."""

    element: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        """Return a text like "float32 64x3x3x3", "int64 scalar"."""
        return f"{self.element} {'x'.join(map(str, self.shape)) or 'scalar'}"


@dataclass(frozen=True)
class Operand:
    """An input or an output of a node. `initializer`: what it holds if it is one; None for a run-time value."""

    role: str  # what the operator calls it: X, W, B; its number where that is not known
    name: str  # "" where it is left out
    initializer: TensorType | None = None


@dataclass(frozen=True)
class ListedNode:
    """A node. `attributes` are plain data, those that the file leaves out are not there."""

    op: str  # with the domain in front unless it is ONNX's own
    name: str  # of its first output where it has none
    attributes: Mapping[str, Any]
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]


def list_nodes(file: OnnxFile) -> tuple[ListedNode, ...]:
    """Return every node of a file, in its order. Raises ModelError for functions that cannot be written out."""
    file = inline_functions(file)
    held = {name: tensor_type(tensor) for name, tensor in initializers(file.model.graph)}
    versions = {item.domain: item.version for item in file.model.opset_import}
    return tuple(_listed(node, held, versions) for node in file.model.graph.node)


def tensor_type(tensor: Stored) -> TensorType:
    """Return element type and shape of a tensor, supported or not."""
    values = tensor.values if isinstance(tensor, SparseTensorProto) else tensor
    element = element_type(values.data_type).lower()
    return TensorType(_USUAL_NAMES.get(element, element), tuple(tensor.dims))


def _listed(node: NodeProto, held: Mapping[str, TensorType], versions: Mapping[str, int]) -> ListedNode:
    is_standard = node.domain in DEFAULT_DOMAINS
    version = next((versions[name] for name in (node.domain, *DEFAULT_DOMAINS * is_standard) if name in versions), None)
    schema = _schema(node.op_type, "" if is_standard else node.domain, version)
    inputs, outputs = (schema.inputs, schema.outputs) if schema else ((), ())
    return ListedNode(
        node.op_type if is_standard else f"{node.domain}.{node.op_type}",
        label(node),
        {attribute.name: _plain(attribute) for attribute in node.attribute},
        tuple(Operand(_role(inputs, i), name, held.get(name)) for i, name in enumerate(node.input)),
        tuple(Operand(_role(outputs, i), name) for i, name in enumerate(node.output)),
    )


def _schema(op: str, domain: str, version: int | None) -> Any:
    """Return onnx's schema of an operator; None if it has none."""
    if version is None:
        return None
    try:
        return onnx.defs.get_schema(op, version, domain)
    except (onnx.defs.SchemaError, TypeError, UnicodeError):  # or a version beyond 31 bits, a name that is no text
        return None


def _role(parameters: Sequence[Any], index: int) -> str:
    """Return the operator's name for operand `index`; the last name stands for all that follow."""
    return str(parameters[min(index, len(parameters) - 1)].name) if parameters else str(index)


_FIELDS: Final[Mapping[int, str]] = {
    AttributeProto.FLOAT: "f",
    AttributeProto.INT: "i",
    AttributeProto.STRING: "s",
    AttributeProto.TENSOR: "t",
    AttributeProto.GRAPH: "g",
    AttributeProto.SPARSE_TENSOR: "sparse_tensor",
    AttributeProto.FLOATS: "floats",
    AttributeProto.INTS: "ints",
    AttributeProto.STRINGS: "strings",
    AttributeProto.TENSORS: "tensors",
    AttributeProto.GRAPHS: "graphs",
}
_MANY: Final = ("floats", "ints", "strings", "tensors", "graphs")


def _plain(attribute: AttributeProto) -> Any:
    """Return an attribute's value: numbers and texts as they are, tensors and graphs described."""
    place = _FIELDS.get(attribute.type)
    if place is None:
        return f"a value of another type, number {attribute.type}"
    value = getattr(attribute, place)
    return [_plain_item(item) for item in value] if place in _MANY else _plain_item(value)


def _plain_item(value: Any) -> Any:
    match value:
        case bytes():
            return value.decode("utf-8", "surrogateescape")
        case float():
            return float(str(np.float32(value)))  # 0.1, not 0.10000000149011612
        case int():
            return value
        case TensorProto() | SparseTensorProto():
            return str(tensor_type(value))
        case _:
            return f"a graph of {len(value.node)} nodes"
