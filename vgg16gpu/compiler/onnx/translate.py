"""The nodes of a model, one after the other, to ops and constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import onnx.checker
import onnx.helper
from onnx import AttributeProto, NodeProto, TensorProto

from vgg16gpu.compiler.graph.ops import Op
from vgg16gpu.compiler.onnx.file import Constant, OnnxFile, element_type, is_known_type
from vgg16gpu.compiler.onnx.folding.budget import FoldError
from vgg16gpu.compiler.onnx.folding.fold import FOLDS, OpenShape, fold, has_marks, shape_of
from vgg16gpu.compiler.onnx.folding.qdq import weight_steps
from vgg16gpu.compiler.onnx.node import (
    EXPORT_AGAIN,
    FLOAT32_REMEDY,
    MisfitError,
    Node,
    Operand,
    RefusalError,
    Scope,
    UnknownShapeError,
    Value,
)
from vgg16gpu.compiler.onnx.open_shapes import open_shape
from vgg16gpu.compiler.onnx.rules.integers import CARRIERS, ON_INTEGERS, QDQ_REMEDY
from vgg16gpu.compiler.onnx.rules.table import RULES

DEFAULT_DOMAINS: Final = ("", "ai.onnx")
_CONTROL_FLOW: Final = ("If", "Loop", "Scan")
_TAKE_ROWS: Final = ("Cast", "Clip", "Dropout", "Gemm", "Identity", "LeakyRelu", "MatMul", "Relu", "Reshape")
_TAKE_INTEGERS: Final = CARRIERS | {"DequantizeLinear", "Shape"}


@dataclass
class Translation:
    """What has become of the nodes so far.

    inputs: run-time inputs and their shapes. bound: those that are given as constants. producers: the index of the node
    that computes each value. read: every value that the requested outputs need, they included.
    """

    file: OnnxFile
    opset: int
    inputs: Mapping[str, OpenShape]
    bound: Mapping[str, Constant]
    producers: Mapping[str, int]
    read: frozenset[str]
    ops: list[Op] = field(default_factory=list)
    refusals: list[tuple[NodeProto, RefusalError]] = field(default_factory=list)
    shapes: dict[str, OpenShape | None] = field(default_factory=dict)  # of run-time values; None behind a refusal
    constants: dict[str, Constant] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)  # outputs of refused nodes
    tried: list[Op] = field(default_factory=list)  # all ops, and those that do not fit the size of the input

    def __post_init__(self) -> None:
        self.initializers = {tensor.name: tensor for tensor in self.file.model.graph.initializer}
        self.scope = Scope({*self.inputs, *self.bound, *self.producers, *self.initializers})
        self.shapes.update(self.inputs)
        self.batch_is_open = any(shape[:1] == (None,) for shape in self.inputs.values())

    def add(self, proto: NodeProto) -> None:
        """Translate one node; if that cannot be, note why."""
        try:
            self._add(proto)
        except RefusalError as refusal:
            if isinstance(refusal, MisfitError):
                self.tried.append(refusal.op)
            self.refusals.append((proto, refusal))
            self.unknown.update(filter(None, proto.output))
        except UnknownShapeError:
            self.unknown.update(filter(None, proto.output))

    def refuse_outputs(self, wanted: Sequence[str]) -> None:
        """Note for each output that is no value of its own in the graph who computes it."""
        for name in wanted:
            if name in self.scope.integers:
                reason = f"its result '{name}' is integers, and an output"
                remedy = "ask for what DequantizeLinear makes of it, or export the model with float outputs"
            elif name in self.scope.rows:
                reason, remedy = _several_rows(name), "export with a fixed batch"
            else:
                continue
            self.refusals.append((self.file.model.graph.node[self.producers[name]], RefusalError(reason, remedy)))

    def constant(self, name: str) -> Constant | None:
        """The value of a name that is a constant."""
        if name not in self.constants and name in self.initializers:
            self.constants[name] = self._taken(self._array(self.initializers[name]))
        return self.constants.get(name)

    def _add(self, proto: NodeProto) -> None:
        _check_operator(proto)
        if proto.op_type == "Constant":
            self.constants[proto.output[0]] = self._taken(self._constant_node(proto))
            return
        self._check(proto)
        for name in filter(None, proto.input):
            self._resolve(name)
        if proto.op_type not in _TAKE_INTEGERS and (names := [x for x in proto.input if x in self.scope.integers]):
            raise RefusalError(f"it computes with integers, '{names[0]}'", QDQ_REMEDY)
        rows = [name for name in proto.input if name in self.scope.rows]
        if rows and (proto.op_type not in _TAKE_ROWS or rows != proto.input[:1]):
            raise RefusalError(_several_rows(rows[0]), "use Flatten with axis 1, or export with a fixed batch")
        # A rule can still judge a node whose x is behind a refusal; nothing can be said of one whose constants are.
        if not self.unknown.isdisjoint(proto.input[1:] if proto.op_type in RULES else proto.input):
            self.unknown.update(filter(None, proto.output))
        elif proto.op_type == "Shape":
            self._fold_shape(proto)
        elif all(name in self.constants for name in proto.input if name):
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
        if name in self.shapes or name in self.unknown or self.constant(name) is not None:
            return
        if name in self.bound:
            self.constants[name] = self._taken(self.bound[name])
            return
        if name in self.producers:
            later = self.file.model.graph.node[self.producers[name]]
            raise RefusalError(
                f"it reads '{name}' before {later.op_type} '{label(later)}' computes it",
                "the nodes are unsorted or form a cycle, export the model again",
            )
        raise RefusalError(f"its operand '{name}' is missing", "export the model with its weights")

    def _taken(self, array: Constant) -> Constant:
        """A constant of the file: float16 becomes float32."""
        self.scope.memory.allow(array)
        if has_marks(array):
            raise RefusalError("a constant that it reads is out of range", EXPORT_AGAIN)
        return array.astype(np.float32) if array.dtype == np.float16 else array

    def _array(self, tensor: TensorProto) -> Constant:
        """The value of a tensor that a node reads."""
        if not is_known_type(tensor.data_type):
            name = tensor.name or "of a Constant node"
            raise RefusalError(f"its tensor '{name}' has element type {element_type(tensor.data_type)}", FLOAT32_REMEDY)
        return self.file.array(tensor)

    def _constant_node(self, proto: NodeProto) -> Constant:
        for attribute in proto.attribute:
            if attribute.name == "value" and attribute.HasField("t"):
                return self._array(attribute.t)
            if attribute.name in ("value_int", "value_ints"):
                return np.asarray(attribute.i if attribute.name == "value_int" else attribute.ints, np.int64)
            if attribute.name in ("value_float", "value_floats"):
                return np.asarray(attribute.f if attribute.name == "value_float" else attribute.floats, np.float32)
        raise RefusalError("it holds no numbers", "only tensors, integers and floats are supported")

    def _attributes(self, proto: NodeProto) -> dict[str, Any]:
        """Attributes by name, tensors as arrays."""
        return {
            attribute.name: self._taken(self._array(attribute.t))
            if attribute.type == AttributeProto.TENSOR
            else onnx.helper.get_attribute_value(attribute)
            for attribute in proto.attribute
        }

    def _fold(self, proto: NodeProto) -> Constant:
        if proto.op_type not in FOLDS:
            raise RefusalError("it computes a constant from constants", "export with constant folding on")
        operands = [self.constants[name] if name else None for name in proto.input]
        attributes = self._attributes(proto)
        try:
            self._keep_steps(proto, attributes, operands)
            return fold(proto.op_type, attributes, operands, self.scope.memory)
        except FoldError as error:
            is_quantised = proto.op_type in ("QuantizeLinear", "DequantizeLinear")
            raise RefusalError(str(error), QDQ_REMEDY if is_quantised else EXPORT_AGAIN) from error

    def _keep_steps(self, proto: NodeProto, attributes: Mapping[str, Any], operands: Sequence[Constant | None]) -> None:
        """Note the steps of weights that are integers in the file, also behind what only turns them."""
        x, y = proto.input[:1], proto.output[0]
        steps = self.scope.steps.get(x[0]) if x else None
        if proto.op_type == "DequantizeLinear":
            steps = weight_steps(attributes, operands)
        elif steps is not None and proto.op_type in ("Identity", "Transpose"):
            steps = fold(proto.op_type, attributes, [steps], self.scope.memory)
        else:
            return
        if steps is not None:
            self.scope.steps[y] = steps

    def _fold_shape(self, proto: NodeProto) -> None:
        x, y = proto.input[0], proto.output[0]
        shape = self.constants[x].shape if x in self.constants else self.shapes.get(x)
        if shape is None:
            self.unknown.add(y)
        else:
            self.constants[y] = shape_of(self._attributes(proto), shape)

    def _translate(self, proto: NodeProto) -> None:
        if proto.op_type not in RULES:
            names = ", ".join(f"'{name}'" for name in proto.input)
            raise RefusalError(f"its operands {names} are computed at run time", "they must be constants")
        node = Node(
            self.opset,
            self._attributes(proto),
            tuple(proto.input),
            tuple(self._operand(name) for name in proto.input),
            proto.output[0],
            tuple(name for name in proto.output[1:] if name),
            self.read,
            self.scope,
        )
        try:
            made = RULES[proto.op_type](node)
        except FoldError as error:
            raise RefusalError(str(error), "export it with smaller sizes") from error
        for op in made if isinstance(made, tuple) else (made,):
            self._append(op)
        self.constants.update(self.scope.known)
        if proto.op_type in CARRIERS and proto.input[0] in self.scope.integers:
            self.scope.integers[proto.output[0]] = self.scope.integers[proto.input[0]]
        if proto.op_type != "Reshape" and proto.input[0] in self.scope.rows:
            self.scope.rows[proto.output[0]] = self.scope.rows[proto.input[0]]

    def _operand(self, name: str) -> Operand:
        if not name:
            return None
        return self.constants[name] if name in self.constants else Value(name, self.shapes.get(name))

    def _append(self, op: Op) -> None:
        held = self.scope.constants
        shapes = [held[name].shape if name in held else self.shapes.get(name) for name in op.operands]
        known = [shape for shape in shapes if shape is not None]
        complete = len(known) == len(shapes)
        self.shapes[op.y] = open_shape(op, known, self.batch_is_open) if complete else None
        self.ops.append(op)
        self.tried.append(op)


def _check_operator(proto: NodeProto) -> None:
    if proto.domain == "com.microsoft":
        raise RefusalError(
            f"operators of domain '{proto.domain}' are not supported",
            "export with plain ONNX operators: the float32 model, or the QuantizeLinear/DequantizeLinear (QDQ) form",
        )
    if proto.domain not in DEFAULT_DOMAINS:
        raise RefusalError(
            f"operators of domain '{proto.domain}' are not supported", "export with plain ONNX operators"
        )
    if proto.op_type in _CONTROL_FLOW:
        raise RefusalError("control flow is not supported", "export the model for one path through it, by tracing")
    if proto.op_type in ON_INTEGERS:
        raise RefusalError("it computes with integers", QDQ_REMEDY)
    if proto.op_type not in {*RULES, *FOLDS, "Shape", "Constant"}:
        raise RefusalError("this operator is not supported", "export the model without it")
    if not proto.output or not proto.output[0]:
        raise RefusalError("its first output has no name", EXPORT_AGAIN)


def _several_rows(name: str) -> str:
    return f"'{name}' has several rows for each image of an open batch"


def label(proto: NodeProto) -> str:
    """What a node is called in messages."""
    return proto.name or next((name for name in proto.output if name), "")
