"""ONNX file -> canonical Graph.

The file's structure is checked here (versions, names, order, inputs, outputs); what an operator means is in onnx_rules.
A model that is not supported is refused as a whole, with every offending node in one message.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnx.checker
import onnx.helper
from onnx import NodeProto, TensorProto

from vgg16gpu.graph import Graph, GraphInput, Op
from vgg16gpu.onnx_file import Constant, OnnxFile, element_type, open_onnx
from vgg16gpu.onnx_fold import FOLDS, OpenShape, shape_of
from vgg16gpu.onnx_rules import EXPORT_AGAIN, RULES, Node, RefusalError, open_shape

OPSETS: Final = range(7, 26)
IR_VERSIONS: Final = range(3, 15)
_DEFAULT_DOMAINS: Final = ("", "ai.onnx")


def load(path: str | Path, outputs: Sequence[str] | None = None) -> Graph:
    """Read an ONNX model.

    `outputs` names the values to compute, inner ones too; by default those that the model declares. Nodes that none of
    them needs are left out. Large weights stay views of the mapped file. Raises ModelError when the file cannot be
    read, an output is unknown, or anything in the model is not supported: then every offending node is listed.
    """
    file = open_onnx(path)
    opset = _opset(file)
    source = _graph_input(file)
    producers = _producers(file, source)
    wanted = _wanted(file, source, producers, outputs)
    translation = _Translation(file, opset, source, producers, _read_values(file, producers, wanted))
    for index in sorted({producers[name] for name in translation.read if name in producers}):
        translation.add(file.model.graph.node[index])
    if translation.refusals:
        raise file.error(_refused(file, translation.refusals))
    for name in wanted:
        if name not in translation.shapes:
            raise file.error(f"output '{name}' is a constant; ask for a value that depends on the input")
    return Graph(source, tuple(translation.ops), wanted)


@dataclass
class _Translation:
    """The work of turning nodes into ops, one after the other."""

    file: OnnxFile
    opset: int
    source: GraphInput
    producers: Mapping[str, int]
    read: frozenset[str]  # every value that the requested outputs need, they included
    ops: list[Op] = field(default_factory=list)
    refusals: list[tuple[NodeProto, RefusalError]] = field(default_factory=list)
    shapes: dict[str, OpenShape | None] = field(default_factory=dict)  # of run-time values; None behind a refusal
    constants: dict[str, Constant] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)  # outputs of refused nodes

    def __post_init__(self) -> None:
        self.shapes[self.source.name] = self.source.shape
        self.initializers = {tensor.name: tensor for tensor in self.file.model.graph.initializer}

    def add(self, proto: NodeProto) -> None:
        try:
            self._add(proto)
        except RefusalError as refusal:
            self.refusals.append((proto, refusal))
            self.unknown.update(filter(None, proto.output))

    def _add(self, proto: NodeProto) -> None:
        if proto.domain not in _DEFAULT_DOMAINS:
            raise RefusalError(
                f"operators of domain '{proto.domain}' are not supported", "export with plain ONNX operators"
            )
        if not proto.output[0]:
            raise RefusalError("its first output has no name", EXPORT_AGAIN)
        if proto.op_type == "Constant":
            self.constants[proto.output[0]] = self._constant_node(proto)
            return
        if proto.op_type not in {*RULES, *FOLDS, "Shape"}:
            raise RefusalError("this operator is not supported", "export the model without it")
        self._check(proto)
        names = [name for name in proto.input if name]
        for name in names:
            self._resolve(name)
        # A rule can still judge a node whose x is behind a refusal; nothing can be said of one whose constants are.
        if not self.unknown.isdisjoint(proto.input[1:] if proto.op_type in RULES else proto.input):
            self.unknown.update(filter(None, proto.output))
        elif proto.op_type == "Shape":
            self._fold_shape(proto)
        elif all(name in self.constants for name in names):
            self.constants[proto.output[0]] = self._fold(proto)
        else:
            self._translate(proto)

    def _check(self, proto: NodeProto) -> None:
        """Attributes and operand counts against the operator's own schema."""
        if any(attribute.ref_attr_name for attribute in proto.attribute):
            raise RefusalError("an attribute of it refers to a function's", EXPORT_AGAIN)
        context = onnx.checker.C.CheckerContext()
        context.ir_version = self.file.model.ir_version
        context.opset_imports = {"": self.opset}
        try:
            onnx.checker.check_node(proto, context)
        except (onnx.checker.ValidationError, UnicodeDecodeError) as error:
            raise RefusalError(str(error).splitlines()[0].rstrip(". "), EXPORT_AGAIN) from error

    def _resolve(self, name: str) -> None:
        """Make sure that a value is known: computed before, a constant, or behind a refusal."""
        if name in self.shapes or name in self.constants or name in self.unknown:
            return
        if name in self.initializers:
            self.constants[name] = self.file.array(self.initializers[name])
            return
        if name in self.producers:
            later = self.file.model.graph.node[self.producers[name]]
            raise RefusalError(
                f"it reads '{name}' before {later.op_type} '{_label(later)}' computes it",
                "the nodes are unsorted or form a cycle, export the model again",
            )
        raise RefusalError(f"its operand '{name}' is missing", "export the model with its weights")

    def _constant_node(self, proto: NodeProto) -> Constant:
        for attribute in proto.attribute:
            if attribute.name == "value" and attribute.HasField("t"):
                return self.file.array(attribute.t)
            if attribute.name in ("value_int", "value_ints"):
                return np.asarray(attribute.i if attribute.name == "value_int" else attribute.ints, np.int64)
            if attribute.name in ("value_float", "value_floats"):
                return np.asarray(attribute.f if attribute.name == "value_float" else attribute.floats, np.float32)
        raise RefusalError("it holds no numbers", "only tensors, integers and floats are supported")

    def _fold(self, proto: NodeProto) -> Constant:
        if proto.op_type not in FOLDS:
            raise RefusalError("it computes a constant from constants", "export with constant folding on")
        try:
            return FOLDS[proto.op_type](_attributes(proto), [self.constants[name] for name in proto.input if name])
        except (ValueError, TypeError, IndexError, KeyError) as error:
            raise RefusalError(f"its constant operands do not fit ({error})", EXPORT_AGAIN) from error

    def _fold_shape(self, proto: NodeProto) -> None:
        x, y = proto.input[0], proto.output[0]
        shape = self.constants[x].shape if x in self.constants else self.shapes.get(x)
        if shape is None:
            self.unknown.add(y)
        else:
            self.constants[y] = shape_of(_attributes(proto), shape)

    def _translate(self, proto: NodeProto) -> None:
        x, *others = proto.input
        run_time = [name for name in others if name and name not in self.constants]
        if proto.op_type not in RULES or run_time or x in self.constants:
            names = ", ".join(f"'{name}'" for name in run_time or proto.input)
            raise RefusalError(f"its operands {names} are computed at run time", "they must be constants")
        node = Node(
            self.opset,
            _attributes(proto),
            x,
            proto.output[0],
            self.shapes.get(x),
            tuple(self.constants.get(name) for name in others),
            tuple(name for name in proto.output[1:] if name in self.read),
        )
        op = RULES[proto.op_type](node)
        self.shapes[op.y] = None if node.shape is None else open_shape(op, node.shape)
        self.ops.append(op)


def _opset(file: OnnxFile) -> int:
    if file.model.ir_version not in IR_VERSIONS:
        raise file.error(
            f"has IR version {file.model.ir_version}; {IR_VERSIONS[0]} to {IR_VERSIONS[-1]} are supported, "
            "export or convert it with a current onnx"
        )
    versions = [item.version for item in file.model.opset_import if item.domain in _DEFAULT_DOMAINS]
    if not versions:
        raise file.error("names no version of the ONNX operators (opset); the file is truncated, export it again")
    opset = int(max(versions))
    if opset not in OPSETS or len(set(versions)) > 1:
        found = " and ".join(map(str, sorted(set(versions))))
        raise file.error(
            f"has opset {found}; one of {OPSETS[0]} to {OPSETS[-1]} is needed, "
            f"convert it with onnx.version_converter or export with opset_version={OPSETS[-1] - 5}"
        )
    return opset


def _graph_input(file: OnnxFile) -> GraphInput:
    graph = file.model.graph
    initializers = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in initializers]
    if len(inputs) != 1:
        names = ", ".join(f"'{value.name}'" for value in inputs) or "none"
        raise file.error(f"has {len(inputs)} run-time inputs ({names}); exactly one is supported")
    value = inputs[0]
    tensor = value.type.tensor_type
    if tensor.elem_type != TensorProto.FLOAT:
        kind = element_type(tensor.elem_type)
        raise file.error(f"input '{value.name}' has element type {kind}; export the model in float32")
    if not tensor.HasField("shape"):
        raise file.error(f"input '{value.name}' is declared without a shape; export the model with one")
    shape = tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim)
    if len(shape) not in (2, 4) or any(dim is not None and dim < 1 for dim in shape):
        raise file.error(f"input '{value.name}' has shape {shape}; (N, C, H, W) or (N, F) is needed")
    return GraphInput(value.name, shape)


def _producers(file: OnnxFile, source: GraphInput) -> dict[str, int]:
    """The index of the node that computes each value. Every name may be given once."""
    graph = file.model.graph
    taken = [tensor.name for tensor in graph.initializer] + [source.name]
    made = [(name, index) for index, node in enumerate(graph.node) for name in node.output if name]
    seen: set[str] = set()
    for name in [*taken, *(name for name, _ in made)]:
        if name in seen:
            raise file.error(f"the name '{name}' is given to two values; {EXPORT_AGAIN}")
        seen.add(name)
    return dict(made)


def _wanted(
    file: OnnxFile, source: GraphInput, producers: Mapping[str, int], outputs: Sequence[str] | None
) -> tuple[str, ...]:
    """The requested outputs, checked."""
    declared = [value.name for value in file.model.graph.output]
    weights = {tensor.name for tensor in file.model.graph.initializer}
    wanted = declared if outputs is None else [outputs] if isinstance(outputs, str) else list(outputs)
    if not wanted:
        raise file.error("no output is asked for" if outputs is not None else f"declares no output; {EXPORT_AGAIN}")
    for name in wanted:
        if wanted.count(name) > 1:
            raise file.error(f"output '{name}' is asked for twice; name each one once")
        if name == source.name:
            raise file.error(f"output '{name}' is the model's input; ask for a value that the model computes")
        if name not in producers and name not in weights:
            close = difflib.get_close_matches(name, producers, n=3, cutoff=0.5)
            hint = ", ".join(f"'{match}'" for match in close or declared)
            raise file.error(f"has no value '{name}'; {'did you mean' if close else 'its outputs are'} {hint}")
    return tuple(wanted)


def _read_values(file: OnnxFile, producers: Mapping[str, int], wanted: Sequence[str]) -> frozenset[str]:
    """Every value on a path to a requested output."""
    read: set[str] = set()
    pending = list(wanted)
    while pending:
        name = pending.pop()
        if name and name not in read:
            read.add(name)
            if name in producers:
                pending += file.model.graph.node[producers[name]].input
    return frozenset(read)


def _attributes(proto: NodeProto) -> dict[str, Any]:
    return {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in proto.attribute}


def _label(proto: NodeProto) -> str:
    return proto.name or next((name for name in proto.output if name), "")


def _refused(file: OnnxFile, refusals: Sequence[tuple[NodeProto, RefusalError]]) -> str:
    """One line per refused node: operator, name, opset, reason, remedy."""
    versions = {
        "" if item.domain in _DEFAULT_DOMAINS else item.domain: item.version for item in file.model.opset_import
    }
    lines = []
    for proto, refusal in refusals:
        domain = "" if proto.domain in _DEFAULT_DOMAINS else proto.domain
        operator = f"{domain}.{proto.op_type}" if domain else proto.op_type
        lines.append(f"{operator} '{_label(proto)}' (opset {versions.get(domain, 'none')}): {refusal}")
    if any(proto.op_type not in {*RULES, *FOLDS} for proto, _ in refusals):
        lines[-1] += f"; supported operators: {', '.join(sorted(RULES))}"
    return "\n  ".join([f"{len(lines)} nodes are not supported:", *lines] if len(lines) > 1 else lines)
