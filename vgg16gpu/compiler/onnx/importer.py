"""The nodes of a model, one after the other, to ops and constants."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, Final

import numpy as np
import onnx.checker
import onnx.helper
from onnx import AttributeProto, NodeProto, SparseTensorProto

from vgg16gpu.compiler.graph.ops import Identity, Op
from vgg16gpu.compiler.onnx.file import Constant, OnnxFile, element_type, is_known_type
from vgg16gpu.compiler.onnx.folding.budget import FoldError
from vgg16gpu.compiler.onnx.folding.fold import FOLDS, OpenShape, fold, has_marks, shape_of
from vgg16gpu.compiler.onnx.folding.qdq import weight_steps
from vgg16gpu.compiler.onnx.folding.sparse import array_of
from vgg16gpu.compiler.onnx.initializers import Stored, initializers
from vgg16gpu.compiler.onnx.node import (
    EXPORT_AGAIN,
    FLOAT32_REMEDY,
    ImportContext,
    MisfitError,
    NodeView,
    OnnxValue,
    UnknownShapeError,
    UnsupportedNodeError,
)
from vgg16gpu.compiler.onnx.open_shapes import open_shape
from vgg16gpu.compiler.onnx.rules.integers import CARRIERS, ON_INTEGERS, QDQ_REMEDY
from vgg16gpu.compiler.onnx.rules.table import RULES

DEFAULT_DOMAINS: Final = ("", "ai.onnx")
_CONTROL_FLOW: Final = ("If", "Loop", "Scan")
_TAKE_ROWS: Final = ("Cast", "Clip", "Dropout", "Gemm", "Identity", "LeakyRelu", "MatMul", "Relu", "Reshape")
_TAKE_INTEGERS: Final = CARRIERS | {"DequantizeLinear", "Shape"}


@dataclass
class OnnxImporter:
    """What has become of the nodes so far.

    inputs: run-time inputs and their shapes. bound: those that are given as constants. producers: the index of the node
    that computes each value. read: every value that the requested outputs need, they included.
    """

    file: OnnxFile
    opset: int
    inputs: Mapping[str, OpenShape]
    bound: InitVar[Mapping[str, Constant]]
    producers: InitVar[Mapping[str, int]]
    read: InitVar[Collection[str]]
    ops: list[Op] = field(default_factory=list)
    refusals: list[tuple[NodeProto, UnsupportedNodeError]] = field(default_factory=list)
    tried: list[Op] = field(default_factory=list)  # all ops, and those that do not fit the size of the input
    remarks: list[str] = field(default_factory=list)  # what users should know of nodes that are taken

    def __post_init__(self, bound: Mapping[str, Constant], producers: Mapping[str, int], read: Collection[str]) -> None:
        stored: dict[str, Stored | Constant] = dict(initializers(self.file.model.graph))
        stored |= bound
        names = dict.fromkeys([*self.inputs, *stored, *producers])
        self.scope = ImportContext({n: OnnxValue(n, stored.get(n), producers.get(n), is_read=n in read) for n in names})
        for name, shape in self.inputs.items():
            self.values[name].becomes_run_time(shape)
        self.batch_is_open = any(shape[:1] == (None,) for shape in self.inputs.values())

    @property
    def values(self) -> Mapping[str, OnnxValue]:
        """Every value by name."""
        return self.scope.values

    def add(self, proto: NodeProto) -> None:
        """Translate one node; if that cannot be, note why."""
        try:
            self._add(proto)
        except UnsupportedNodeError as refusal:
            if isinstance(refusal, MisfitError):
                self.tried.append(refusal.op)
            self.refusals.append((proto, refusal))
            self._refuse(proto)
        except UnknownShapeError:
            self._refuse(proto)

    def refuse_outputs(self, wanted: Sequence[str]) -> None:
        """Note for each output that is no value of its own in the graph who computes it."""
        for name in wanted:
            value = self.values[name]
            if value.integers:
                reason = f"its result '{name}' is integers, and an output"
                remedy = "ask for what DequantizeLinear makes of it, or export the model with float outputs"
            elif value.rows is not None:
                reason, remedy = _several_rows(name), "export with a fixed batch"
            else:
                continue
            assert value.producer is not None  # it is no input and no constant
            self.refusals.append((self.file.model.graph.node[value.producer], UnsupportedNodeError(reason, remedy)))

    def copies(self, wanted: Sequence[str]) -> tuple[str, ...]:
        """Return the outputs; a repeated one that an op computes becomes a copy with a name of its own."""
        found: list[str] = []
        for name in wanted:
            if name not in found or not self.values[name].is_run_time:
                found.append(name)
                continue
            copy = self.scope.fresh(name)
            self._append(Identity(name, copy, (copy,)))
            found.append(copy)
        return tuple(found)

    def constant(self, name: str) -> Constant | None:
        """Return the value of a name that is a constant; None for any other name."""
        value = self.values.get(name)
        if value is None:
            return None
        if value.array is None and value.stored is not None:
            stored = value.stored if isinstance(value.stored, np.ndarray) else self._array(value.stored)
            value.becomes_constant(self._taken(stored))
        return value.array

    def _add(self, proto: NodeProto) -> None:
        _check_operator(proto)
        if proto.op_type == "Constant":
            self.values[proto.output[0]].becomes_constant(self._taken(self._constant_node(proto)))
            return
        self._check(proto)
        for name in filter(None, proto.input):
            self._resolve(name)
        operands = [self.values[name] if name else None for name in proto.input]
        present = [operand for operand in operands if operand is not None]
        integers = [operand.name for operand in present if operand.integers]
        if integers and proto.op_type not in _TAKE_INTEGERS:
            raise UnsupportedNodeError(f"it computes with integers, '{integers[0]}'", QDQ_REMEDY)
        rows = [operand.name for operand in present if operand.rows is not None]
        if rows and (proto.op_type not in _TAKE_ROWS or rows != proto.input[:1]):
            raise UnsupportedNodeError(_several_rows(rows[0]), "use Flatten with axis 1, or export with a fixed batch")
        # A rule can still judge a node whose x is behind a refusal; nothing can be said of one whose constants are.
        judged = operands[1:] if proto.op_type in RULES else operands
        if any(operand is not None and operand.is_refused for operand in judged):
            self._refuse(proto)
        elif proto.op_type == "Shape":
            self._fold_shape(proto)
        elif all(operand.is_constant for operand in present):
            self.values[proto.output[0]].becomes_constant(self._fold(proto, operands))
        else:
            self._translate(proto, operands)

    def _refuse(self, proto: NodeProto) -> None:
        for name in filter(None, proto.output):
            self.values[name].is_refused = True

    def _check(self, proto: NodeProto) -> None:
        """Check attributes and operand counts against the operator's own schema. Raises UnsupportedNodeError."""
        if any(attribute.ref_attr_name for attribute in proto.attribute):
            raise UnsupportedNodeError("an attribute of it refers to a function's", EXPORT_AGAIN)
        context = onnx.checker.C.CheckerContext()
        context.ir_version = self.file.model.ir_version
        context.opset_imports = {"": self.opset}
        try:
            onnx.checker.check_node(proto, context)
        except (onnx.checker.ValidationError, UnicodeDecodeError) as error:
            raise UnsupportedNodeError(str(error).splitlines()[0].rstrip(". "), EXPORT_AGAIN) from error

    def _resolve(self, name: str) -> None:
        """Raise UnsupportedNodeError unless a value is known: computed before, a constant, or behind a refusal."""
        value = self.values.get(name)
        if value and (value.is_run_time or value.is_refused or self.constant(name) is not None):
            return
        if value and value.producer is not None:
            later = self.file.model.graph.node[value.producer]
            raise UnsupportedNodeError(
                f"it reads '{name}' before {later.op_type} '{label(later)}' computes it",
                f"that needs the result of this node: the nodes form a cycle, {EXPORT_AGAIN}",
            )
        raise UnsupportedNodeError(f"its operand '{name}' is missing", "export the model with its weights")

    def _taken(self, array: Constant) -> Constant:
        """Return a constant of the file, float16 as float32. Raises UnsupportedNodeError."""
        self.scope.memory.allow(array)
        if has_marks(array):
            raise UnsupportedNodeError("a constant that it reads is out of range", EXPORT_AGAIN)
        return array.astype(np.float32) if array.dtype == np.float16 else array

    def _array(self, stored: Stored) -> Constant:
        """Return the value of a tensor that a node reads as a dense array. Raises UnsupportedNodeError."""
        tensor = stored.values if isinstance(stored, SparseTensorProto) else stored
        if not is_known_type(tensor.data_type):
            name = tensor.name or "of a Constant node"
            raise UnsupportedNodeError(
                f"its tensor '{name}' has element type {element_type(tensor.data_type)}", FLOAT32_REMEDY
            )
        try:
            return array_of(self.file, stored, self.scope.memory)
        except FoldError as error:
            raise UnsupportedNodeError(str(error), EXPORT_AGAIN) from error

    def _constant_node(self, proto: NodeProto) -> Constant:
        for attribute in proto.attribute:
            if attribute.name == "value" and attribute.HasField("t"):
                return self._array(attribute.t)
            if attribute.name == "sparse_value" and attribute.HasField("sparse_tensor"):
                return self._array(attribute.sparse_tensor)
            if attribute.name in ("value_int", "value_ints"):
                return np.asarray(attribute.i if attribute.name == "value_int" else attribute.ints, np.int64)
            if attribute.name in ("value_float", "value_floats"):
                return np.asarray(attribute.f if attribute.name == "value_float" else attribute.floats, np.float32)
        raise UnsupportedNodeError("it holds no numbers", "only tensors, integers and floats are supported")

    def _attributes(self, proto: NodeProto) -> dict[str, Any]:
        """Return attributes by name, tensors as arrays."""
        return {
            attribute.name: self._taken(self._array(attribute.t))
            if attribute.type == AttributeProto.TENSOR
            else onnx.helper.get_attribute_value(attribute)
            for attribute in proto.attribute
        }

    def _fold(self, proto: NodeProto, operands: Sequence[OnnxValue | None]) -> Constant:
        if proto.op_type not in FOLDS:
            raise UnsupportedNodeError(
                "it computes a constant from constants", "export with constant folding on, or fold the file by onnxsim"
            )
        attributes = self._attributes(proto)
        try:
            self._keep_steps(proto, attributes, operands)
            return fold(proto.op_type, attributes, _arrays(operands), self.scope.memory)
        except FoldError as error:
            is_quantised = proto.op_type in ("QuantizeLinear", "DequantizeLinear")
            raise UnsupportedNodeError(str(error), QDQ_REMEDY if is_quantised else EXPORT_AGAIN) from error

    def _keep_steps(
        self, proto: NodeProto, attributes: Mapping[str, Any], operands: Sequence[OnnxValue | None]
    ) -> None:
        """Note the steps of weights that are integers in the file, also behind what only turns them."""
        x, y = next(iter(operands), None), self.values[proto.output[0]]
        if proto.op_type == "DequantizeLinear":
            y.steps = weight_steps(attributes, _arrays(operands))
        elif x and x.steps is not None and proto.op_type in ("Identity", "Transpose"):
            y.steps = fold(proto.op_type, attributes, [x.steps], self.scope.memory)

    def _fold_shape(self, proto: NodeProto) -> None:
        x, y = self.values[proto.input[0]], self.values[proto.output[0]]
        if x.shape is None:
            y.is_refused = True
        else:
            y.becomes_constant(shape_of(self._attributes(proto), x.shape))

    def _translate(self, proto: NodeProto, operands: Sequence[OnnxValue | None]) -> None:
        if proto.op_type not in RULES:
            names = ", ".join(f"'{name}'" for name in proto.input)
            raise UnsupportedNodeError(
                f"this operator is supported for constants alone, and its operands {names} are computed at run time",
                "export the model without it",
            )
        node = NodeView(
            self.opset,
            self._attributes(proto),
            tuple(proto.input),
            tuple(operands),
            proto.output[0],
            tuple(name for name in proto.output[1:] if name),
            self.scope,
        )
        try:
            made = RULES[proto.op_type](node)
        except FoldError as error:
            raise UnsupportedNodeError(str(error), "export it with smaller sizes") from error
        for op in made if isinstance(made, tuple) else (made,):
            self._append(op)
        while self.scope.remarks:
            self.remarks.append(f"{proto.op_type} '{label(proto)}': {self.scope.remarks.pop()}")
        x, y = operands[0], node.result
        if x and proto.op_type in CARRIERS:
            y.integers = x.integers
        if x and x.rows is not None and proto.op_type != "Reshape":
            y.rows = x.rows

    def _append(self, op: Op) -> None:
        shapes = [self.values[name].shape for name in op.operands]
        known = [shape for shape in shapes if shape is not None]
        complete = len(known) == len(shapes)
        self.values[op.y].becomes_run_time(open_shape(op, known, self.batch_is_open) if complete else None)
        self.ops.append(op)
        self.tried.append(op)


def _check_operator(proto: NodeProto) -> None:
    if proto.domain == "com.microsoft":
        raise UnsupportedNodeError(
            f"operators of domain '{proto.domain}' are not supported",
            "export with plain ONNX operators: the float32 model, or the QuantizeLinear/DequantizeLinear (QDQ) form",
        )
    if proto.domain not in DEFAULT_DOMAINS:
        raise UnsupportedNodeError(
            f"operators of domain '{proto.domain}' are not supported", "export with plain ONNX operators"
        )
    if proto.op_type in _CONTROL_FLOW:
        raise UnsupportedNodeError(
            "control flow is not supported", "export the model for one path through it, by tracing"
        )
    if proto.op_type in ON_INTEGERS:
        raise UnsupportedNodeError("it computes with integers", QDQ_REMEDY)
    if proto.op_type not in {*RULES, *FOLDS, "Shape", "Constant"}:
        raise UnsupportedNodeError("this operator is not supported", "export the model without it")
    if not proto.output or not proto.output[0]:
        raise UnsupportedNodeError("its first output has no name", EXPORT_AGAIN)


def _arrays(operands: Sequence[OnnxValue | None]) -> list[Constant | None]:
    return [None if operand is None else operand.array for operand in operands]


def _several_rows(name: str) -> str:
    return f"'{name}' has several rows for each image of an open batch"


def label(proto: NodeProto) -> str:
    """Return the name of a node in messages: its own, else its first output."""
    return proto.name or next((name for name in proto.output if name), "")
