"""ONNX file -> canonical Graph.

The file's structure is checked here (versions, names, order, inputs, outputs); what an operator means is in `rules/`.
A model that is not supported is refused as a whole, with every offending node in one message.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from onnx import TensorProto, ValueInfoProto

from vgg16gpu.compiler.graph.graph import Graph, GraphInput
from vgg16gpu.compiler.graph.input_size import SEARCHED_SIZES, fits
from vgg16gpu.compiler.graph.ops import Op
from vgg16gpu.compiler.graph.passes import channels_first_input
from vgg16gpu.compiler.onnx.file import Constant, OnnxFile, element_type, open_onnx
from vgg16gpu.compiler.onnx.folding.fold import FOLDS, OpenShape, has_marks
from vgg16gpu.compiler.onnx.importer import DEFAULT_DOMAINS, OnnxImporter, label
from vgg16gpu.compiler.onnx.initializers import initializer_names, initializers
from vgg16gpu.compiler.onnx.node import EXPORT_AGAIN, MisfitError, UnsupportedNodeError
from vgg16gpu.compiler.onnx.open_shapes import MAX_RANK
from vgg16gpu.compiler.onnx.rules.table import RULES

OPSETS: Final = range(7, 26)
IR_VERSIONS: Final = range(3, 15)
MOST_VALUES: Final = 1 << 31  # of an image: kernels count them in 32 bits
MOST_VALUES_OF_BATCH: Final = 1 << 33

_FLOATS: Final = (TensorProto.FLOAT, TensorProto.FLOAT16)  # what run-time inputs may be; kernels compute in float32
_HINT_COUNT: Final = 1000  # how many ops are looked through for a hint


@dataclass(frozen=True)
class Loaded:
    """A model's outputs: those that `graph` computes (None if there are none), and those that are constants.

    A graph has the run-time inputs that its ops read, no others.
    """

    graph: Graph | None
    constants: Mapping[str, Constant]
    outputs: tuple[str, ...]  # all of them, in order


def load(
    source: str | Path | OnnxFile,
    outputs: Sequence[str] | None = None,
    *,
    bound: Mapping[str, Constant] | None = None,
    shapes: Mapping[str, OpenShape] | None = None,
) -> Graph:
    """Read an ONNX model all of whose requested outputs depend on the input; see `load_model`."""
    file = _opened(source)
    loaded = _load(file, outputs, bound or {}, shapes or {})
    if loaded.graph is None and not _run_time_inputs(file, bound or {}):
        raise file.error("has 0 run-time inputs (none); exactly one is supported")
    for name in loaded.constants:
        raise file.error(f"output '{name}' is a constant; ask for a value that depends on the input")
    assert loaded.graph is not None
    return loaded.graph


def load_model(
    source: str | Path | OnnxFile,
    outputs: Sequence[str] | None = None,
    *,
    bound: Mapping[str, Constant] | None = None,
    shapes: Mapping[str, OpenShape] | None = None,
) -> Loaded:
    """Read an ONNX model.

    `outputs` names the values to compute, inner ones too, by value, node or layer (names.py); by default those that
    the model declares. Nodes that none of them needs are left out. Large weights stay views of the mapped file.
    `bound` has run-time inputs that are constants now: lists of whole numbers, say. `shapes` has shapes of run-time
    inputs, in place of those that the model declares.
    Without it a model may have one run-time input, (N, C, H, W) or (N, F), or several of fixed shapes.

    Raises ModelError when the file cannot be read, an output is unknown, or anything in the model is not supported:
    then every offending node is listed.
    """
    return _load(_opened(source), outputs, bound or {}, shapes or {})


def _opened(source: str | Path | OnnxFile) -> OnnxFile:
    return source if isinstance(source, OnnxFile) else open_onnx(source)


def _load(
    file: OnnxFile, outputs: Sequence[str] | None, bound: Mapping[str, Constant], shapes: Mapping[str, OpenShape]
) -> Loaded:
    opset = _opset(file)
    file = _without_functions(file)
    inputs = _input_shapes(file, _run_time_inputs(file, bound), shapes)
    producers = _producers(file, [*inputs, *bound])
    wanted = _wanted(file, {*inputs, *bound}, producers, outputs)
    read = _read_values(file, producers, wanted)
    translation = OnnxImporter(file, opset, inputs, bound, producers, read)
    for index in sorted({producers[name] for name in read if name in producers}):
        translation.add(file.model.graph.node[index])
    translation.refuse_outputs(wanted)
    wanted = translation.copies(wanted)
    problems = _problem_of_rank(inputs, shapes)
    if translation.refusals:
        if not inputs and not bound:
            raise file.error("has 0 run-time inputs (none); exactly one is supported")
        problems.append(_refused(file, translation))
    if problems:
        raise file.error("\n  ".join(problems))
    if translation.remarks:
        first, *others = translation.remarks
        file.warn(f"{first}{f' (and so {len(others)} more nodes)' if others else ''}")
    constants = {name: _constant(translation, name) for name in wanted if not translation.values[name].is_run_time}
    return Loaded(_graph(translation, tuple(name for name in wanted if name not in constants)), constants, wanted)


def _without_functions(file: OnnxFile) -> OnnxFile:
    if not file.model.functions:
        return file
    from vgg16gpu.compiler.onnx.inline import inline_functions  # noqa: PLC0415 - most files have none

    return inline_functions(file)


def _constant(translation: OnnxImporter, name: str) -> Constant:
    try:
        array = translation.constant(name)
    except UnsupportedNodeError as error:
        raise translation.file.error(f"output '{name}' cannot be read: {error}") from error
    assert array is not None
    if has_marks(array):
        raise translation.file.error(f"output '{name}' depends on a dimension that is open; export with fixed sizes")
    return array


def _graph(translation: OnnxImporter, outputs: tuple[str, ...]) -> Graph | None:
    """Return the ops that the outputs need, with the inputs and constants that these read; None without outputs."""
    ops = _needed(translation.ops, outputs)
    read = {name for op in ops for name in op.operands}
    inputs = [GraphInput(name, shape) for name, shape in translation.inputs.items() if name in read]
    constants = {name: array for name, array in translation.scope.held.items() if name in read}
    return Graph(inputs[0], ops, outputs, tuple(inputs[1:]), constants) if outputs else None


def _needed(ops: Sequence[Op], outputs: Sequence[str]) -> tuple[Op, ...]:
    """Return the ops, in order, that compute what the outputs need."""
    needed: list[Op] = []
    read = set(outputs)
    for op in reversed(ops):
        if op.y in read:
            needed.append(op)
            read.update(op.operands)
    return tuple(needed[::-1])


def _opset(file: OnnxFile) -> int:
    if file.model.ir_version not in IR_VERSIONS:
        raise file.error(
            f"has IR version {file.model.ir_version}; {IR_VERSIONS[0]} to {IR_VERSIONS[-1]} are supported, "
            "export or convert it with a current onnx"
        )
    versions = [item.version for item in file.model.opset_import if item.domain in DEFAULT_DOMAINS]
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


def _run_time_inputs(file: OnnxFile, bound: Mapping[str, Constant]) -> list[ValueInfoProto]:
    graph = file.model.graph
    stored = initializer_names(graph)
    inputs = [value for value in graph.input if value.name not in stored]
    names = [value.name for value in inputs]
    for name in bound:
        if name not in names:
            raise file.error(f"has no run-time input '{name}'; its inputs are {_quoted(names)}")
    return [value for value in inputs if value.name not in bound]


def _input_shapes(
    file: OnnxFile, inputs: Sequence[ValueInfoProto], shapes: Mapping[str, OpenShape]
) -> dict[str, OpenShape]:
    """Return the shapes of all run-time inputs. Raises ModelError for unknown names, and several open inputs."""
    names = [value.name for value in inputs]
    for name in shapes:
        if name not in names:
            raise file.error(f"has no run-time input '{name}'; its inputs are {_quoted(names)}")
    declared = {value.name: _declared_shape(value) for value in inputs}
    is_open = [shape is None or None in shape for name, shape in declared.items() if name not in shapes]
    if len(inputs) > 1 and any(is_open):
        raise file.error(
            f"has {len(inputs)} run-time inputs ({_quoted(names)}); "
            "exactly one is supported, or several whose shapes are fixed"
        )
    return {value.name: _input_shape(file, value, shapes) for value in inputs}


def _problem_of_rank(inputs: Mapping[str, OpenShape], shapes: Mapping[str, OpenShape]) -> list[str]:
    """Return what is wrong with a model's only input, which must be images or rows. Its nodes may tell more."""
    return [
        f"input '{name}' has shape {shape}; (N, C, H, W) or (N, F) is needed"
        for name, shape in inputs.items()
        if len(inputs) == 1 and name not in shapes and len(shape) not in (2, 4)
    ]


def _input_shape(file: OnnxFile, value: ValueInfoProto, shapes: Mapping[str, OpenShape]) -> OpenShape:
    given, kind = shapes.get(value.name), value.type.tensor_type.elem_type
    anything = given is not None and value.type.WhichOneof("value") in (None, "tensor_type")
    if kind not in _FLOATS and not (anything and kind == TensorProto.UNDEFINED):
        raise file.error(f"input '{value.name}' has element type {element_type(kind)}; export the model in float32")
    shape = _declared_shape(value) if given is None else given
    if shape is None:
        raise file.error(f"input '{value.name}' is declared without a shape; export the model with one")
    if any(dim is not None and dim < 1 for dim in shape):
        empty = " (0 means that it holds nothing)" if 0 in shape else ""
        raise file.error(
            f"input '{value.name}' has shape {shape}; all dimensions must be positive{empty}: export the model with "
            "numbers, or with -1 or a name for each dimension that is to be open"
        )
    if len(shape) > MAX_RANK:
        raise file.error(f"input '{value.name}' has {len(shape)} dimensions; at most {MAX_RANK} are supported")
    batch, *sample = (dim or 1 for dim in shape or (1,))
    if math.prod(sample) >= MOST_VALUES or batch * math.prod(sample) >= MOST_VALUES_OF_BATCH:
        raise file.error(
            f"input '{value.name}' has shape {shape}, too many values: an image has fewer than 2^31, a batch fewer "
            "than 2^33; export the model with smaller sizes"
        )
    return shape


def _declared_shape(value: ValueInfoProto) -> OpenShape | None:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim)


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"


def _producers(file: OnnxFile, inputs: Sequence[str]) -> dict[str, int]:
    """Return the index of the node that computes each value. Raises ModelError for a name that two values have."""
    graph = file.model.graph
    taken = [name for name, _ in initializers(graph)] + [*inputs]
    made = [(name, index) for index, node in enumerate(graph.node) for name in node.output if name]
    seen: set[str] = set()
    for name in [*taken, *(name for name, _ in made)]:
        if name in seen:
            raise file.error(f"the name '{name}' is given to two values; {EXPORT_AGAIN}")
        seen.add(name)
    return dict(made)


def _wanted(
    file: OnnxFile, inputs: Collection[str], producers: Collection[str], outputs: Sequence[str] | None
) -> tuple[str, ...]:
    """Return the values of the requested outputs, which may be named by node or layer. Raises ModelError."""
    declared = [value.name for value in file.model.graph.output]
    wanted = declared if outputs is None else [outputs] if isinstance(outputs, str) else list(outputs)
    if not wanted:
        raise file.error("no output is asked for" if outputs is not None else f"declares no output; {EXPORT_AGAIN}")
    distinct = list(dict.fromkeys(wanted)) if outputs is None else wanted  # a file may declare one value twice
    meant = dict(zip(distinct, _meant(file, distinct, {*inputs, *producers}), strict=True))
    values = tuple(meant[name] for name in wanted)
    for name, value in zip(wanted, values, strict=True):
        if outputs is None and name != value:  # a node is called so
            raise file.error(f"declares the output '{name}', which no node computes; {EXPORT_AGAIN}")
        if value in inputs:
            raise file.error(f"output '{value}' is the model's input; ask for a value that the model computes")
    return values


def _meant(file: OnnxFile, names: Sequence[str], values: Collection[str]) -> tuple[str, ...]:
    """Return the value that each name means: the value's own name, or that of its node or layer. Raises ModelError."""
    if len({*names}) == len(names) and all(name in values for name in names):
        return tuple(names)
    from vgg16gpu.compiler.onnx.names import TapError, resolve  # noqa: PLC0415 - few ask for inner layers

    try:
        return resolve(file.model.graph, names)
    except TapError as error:
        raise file.error(str(error)) from error


def _read_values(file: OnnxFile, producers: Mapping[str, int], wanted: Sequence[str]) -> frozenset[str]:
    """Return every value on a path to a requested output."""
    read: set[str] = set()
    pending = list(wanted)
    while pending:
        name = pending.pop()
        if name and name not in read:
            read.add(name)
            if name in producers:
                pending += file.model.graph.node[producers[name]].input
    return frozenset(read)


def _refused(file: OnnxFile, translation: OnnxImporter) -> str:
    """Return one line per refused node: operator, name, opset, reason, remedy."""
    versions = {"" if item.domain in DEFAULT_DOMAINS else item.domain: item.version for item in file.model.opset_import}
    lines, is_hinted = [], False
    for proto, refusal in translation.refusals:
        domain = "" if proto.domain in DEFAULT_DOMAINS else proto.domain
        operator = f"{domain}.{proto.op_type}" if domain else proto.op_type
        lines.append(f"{operator} '{label(proto)}' (opset {versions.get(domain, 'none')}): {refusal}")
        if isinstance(refusal, MisfitError) and not is_hinted:
            size, is_hinted = _fitting_size(translation, refusal.op), True
            lines[-1] += f", {size}x{size} would fit" if size else ""
    if any(proto.op_type not in {*RULES, *FOLDS, "Shape", "Constant"} for proto, _ in translation.refusals):
        lines[-1] += f"; supported operators: {', '.join(sorted(RULES))}"
    return "\n  ".join([f"{len(lines)} nodes are not supported:", *lines] if len(lines) > 1 else lines)


def _fitting_size(translation: OnnxImporter, op: Op) -> int | None:
    """Return an image size that a refused op and all known ops around it would take; None if there is none."""
    ((name, shape), *others) = translation.inputs.items()
    if others or len(shape) != 4 or None in shape[1:]:
        return None
    ops, known = [], {name, *translation.scope.held}
    for other in translation.tried:
        if known.issuperset(other.operands):
            ops.append(other)
            known.add(other.y)
    if len(ops) > _HINT_COUNT or op.y not in known:
        return None
    graph = Graph(GraphInput(name, shape), tuple(ops), (op.y,), constants=translation.scope.held)
    graph = channels_first_input(graph)
    batch, channels = (dim or 1 for dim in graph.input.shape[:2])
    return next((size for size in SEARCHED_SIZES if fits(graph, (batch, channels, size, size))), None)
