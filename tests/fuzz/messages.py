"""Damage to a model of which one knows what its fields mean: dimensions, operators, operands, weights, functions."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

from tests.fuzz.fields import HUGE
from tests.fuzz.seeds import PATHS, send_out


class _UnfitError(Exception):
    """This change is none for this model."""


def change_message(random: Random, data: bytes) -> tuple[bytes, str] | None:
    """The model changed by protobuf; None when it cannot be read, or has nothing to change."""
    try:
        model = ModelProto.FromString(data)
    except DecodeError:
        return None
    name, change = random.choice(tuple(_MESSAGES.items()))
    with contextlib.suppress(_UnfitError, ValueError, TypeError, IndexError):  # or a value that the field does not take
        change(random, model)
        return model.SerializeToString(), name
    return None


def _one(random: Random, items: Any) -> Any:
    if not len(items):
        raise _UnfitError
    return items[random.randrange(len(items))]


def _node(random: Random, model: ModelProto) -> Any:
    return _one(random, _one(random, [model.graph.node, model.graph.node, *(body.node for body in model.functions)]))


def _tensor(random: Random, model: ModelProto) -> Any:
    inner = [item.t for node in model.graph.node for item in node.attribute if item.HasField("t")]
    return _one(random, [*model.graph.initializer, *inner])


def _values(graph: GraphProto) -> list[str]:
    made = [name for node in graph.node for name in node.output]
    return [*made, *(value.name for value in graph.input), *(tensor.name for tensor in graph.initializer)]


def _weight_dim(random: Random, model: ModelProto) -> None:
    dims = _tensor(random, model).dims
    index = random.randrange(max(len(dims), 1))
    dims[index : index + 1] = [random.choice(HUGE)]


def _weight_rank(random: Random, model: ModelProto) -> None:
    dims = _tensor(random, model).dims
    if random.random() < 0.5 and dims:
        del dims[random.randrange(len(dims))]
    else:
        dims.extend([random.choice((0, 1, 1, 2))] * random.choice((1, 1, 5, 40, 70)))


def _weight_elements(random: Random, model: ModelProto) -> None:
    """2^62 elements, in one dimension or several, perhaps with a zero among them."""
    dims = _tensor(random, model).dims
    dims[:] = random.choice(([1 << 62], [1 << 31, 1 << 31], [1 << 62, 0], [0, 1 << 62, 1 << 62], [1 << 32] * 4))


def _input_dim(random: Random, model: ModelProto) -> None:
    tensor = _one(random, [*model.graph.input, *model.graph.output, *model.graph.value_info]).type.tensor_type
    dim = _one(random, tensor.shape.dim)
    if random.random() < 0.3:
        dim.dim_param = random.choice(("n", "N", "batch", ""))
    else:
        dim.dim_value = random.choice((*HUGE, 5, 8))


def _input_type(random: Random, model: ModelProto) -> None:
    tensor = _one(random, [*model.graph.input, *model.graph.output]).type.tensor_type
    random.choice((lambda: tensor.ClearField("shape"), lambda: setattr(tensor, "elem_type", random.randrange(30))))()


def _attribute(random: Random, model: ModelProto) -> None:
    item = _one(random, _node(random, model).attribute)
    if item.type == onnx.AttributeProto.INTS and item.ints:
        index = random.randrange(len(item.ints))
        item.ints[index : index + random.choice((1, 1, 9))] = random.choices(
            (*HUGE, 4, 5), k=random.choice((1, 1, 1, 3))
        )
    elif item.type == onnx.AttributeProto.FLOAT:
        item.f = random.choice((0.0, -1.0, 2.0, 0.1, float("nan"), float("inf"), -float("inf"), 3e38, 1e-40))
    elif item.type == onnx.AttributeProto.STRING:
        item.s = random.choice(
            (b"", b"SAME_LOWER", b"SAME_UPPER", b"VALID", b"constant", b"reflect", b"\xff", b"x" * 99)
        )
    else:
        item.i = random.choice(HUGE)


def _attribute_type(random: Random, model: ModelProto) -> None:
    """A string where a number is needed, and so on."""
    item = _one(random, _node(random, model).attribute)
    values = (b"three", [b"a", b"b"], 1, 0.5, [1, 2], [0.5], numpy_helper.from_array(np.ones(2)), GraphProto(name="g"))
    item.CopyFrom(helper.make_attribute(item.name, random.choice(values)))


def _attribute_set(random: Random, model: ModelProto) -> None:
    """An attribute more, less, twice, or with a name of another one."""
    items = _node(random, model).attribute
    names = (
        *("axis", "perm", "group", "pads", "strides", "dilations", "ceil_mode", "alpha"),
        *("transA", "to", "axes", "mode"),
    )
    match random.randrange(4):
        case 0:
            items.append(
                helper.make_attribute(random.choice(names), random.choice((0, 1, 2, -1, [1, 1], [0, 2, 1], 0.5)))
            )
        case 1:
            del items[random.randrange(len(items)) if items else 0]
        case 2:
            items.append(_one(random, items))
        case _:
            _one(random, items).name = random.choice((*names, "", "value"))


def _operator(random: Random, model: ModelProto) -> None:
    _node(random, model).op_type = random.choice(OPERATORS)


def _domain(random: Random, model: ModelProto) -> None:
    _node(random, model).domain = random.choice(("ai.onnx", "local", "com.microsoft", "nobody", ""))


def _rename(random: Random, model: ModelProto) -> None:
    graph = model.graph
    item = _one(random, [*graph.node, *graph.initializer, *graph.input, *graph.output])
    item.name = random.choice(("", "é", "x" * 5000, "a\nb", "\x1b[2J", *_values(graph)))


def _rewire(random: Random, model: ModelProto) -> None:
    """Another operand: perhaps one that is computed later, perhaps itself."""
    inputs = _node(random, model).input
    inputs[random.randrange(len(inputs)) if inputs else 0] = random.choice([*_values(model.graph), "", "nothing"])


def _operands(random: Random, model: ModelProto) -> None:
    inputs = _node(random, model).input
    if random.random() < 0.5 and inputs:
        del inputs[random.randrange(len(inputs))]
    else:
        inputs.extend([random.choice([*_values(model.graph), ""])] * random.choice((1, 2, 20)))


def _results(random: Random, model: ModelProto) -> None:
    outputs = _node(random, model).output
    match random.randrange(3):
        case 0:
            outputs.append(random.choice(("", "extra", *_values(model.graph))))
        case 1:
            del outputs[random.randrange(len(outputs)) if outputs else 0]
        case _:
            outputs[random.randrange(len(outputs)) if outputs else 0] = random.choice(["", *_values(model.graph)])


def _nodes(random: Random, model: ModelProto) -> None:
    """One node less, twice, or elsewhere."""
    nodes = model.graph.node
    node = onnx.NodeProto()
    node.CopyFrom(_one(random, nodes))
    match random.randrange(3):
        case 0:
            nodes.remove(node)
        case 1:
            nodes.insert(random.randrange(len(nodes) + 1), node)
        case _:
            nodes.remove(node)
            nodes.insert(random.randrange(len(nodes) + 1), node)


def _another_node(random: Random, model: ModelProto) -> None:
    """A further node between two others: mostly a valid one, so that all kinds of graphs are run."""
    graph = model.graph
    index = random.randrange(len(graph.node) + 1)
    names = [name for node in graph.node[:index] for name in node.output] + [value.name for value in graph.input]
    x = random.choice(names)
    node = _valid_node(random, x, names, [tensor.name for tensor in graph.initializer])
    graph.node.insert(index, node)
    for later in graph.node[index + 1 :]:
        for place, name in enumerate(later.input):
            if name == x:
                later.input[place] = node.output[0]
    if all(x != name for later in graph.node[index + 1 :] for name in later.input) and random.random() < 0.5:
        graph.output.append(onnx.ValueInfoProto(name=node.output[0]))


def _valid_node(random: Random, x: str, names: list[str], weights: list[str]) -> onnx.NodeProto:
    operator, attributes = random.choice(
        (
            ("Relu", {}),
            ("Identity", {}),
            ("LeakyRelu", {"alpha": random.choice((0.1, 0.0, -2.0, 1.0))}),
            ("Softmax", {"axis": random.choice((-1, 0, 1, 2, 3))}),
            ("LogSoftmax", {"axis": random.choice((-1, 0, 1, 2, 3))}),
            ("Transpose", {"perm": random.sample(range(4), 4)}),
            ("Transpose", {"perm": random.sample(range(2), 2)}),
            ("Transpose", {}),
            ("Flatten", {"axis": random.choice((0, 1, 2, -1))}),
            ("Concat", {"axis": random.choice((0, 1, -1, 3))}),
            ("Add", {}),
            ("Sub", {}),
            ("Mul", {}),
            ("Div", {}),
            ("MatMul", {}),
            ("Gemm", {"alpha": 0.5, "transA": random.randrange(2), "transB": random.randrange(2)}),
            ("Sum", {}),
            ("Dropout", {}),
            ("GlobalAveragePool", {}),
            ("LRN", {"size": random.choice((1, 2, 3, 100))}),
            ("MaxPool", {"kernel_shape": [2, 2], "ceil_mode": random.randrange(2), "strides": [2, 1]}),
            ("MaxPool", {"kernel_shape": [3, 2], "dilations": [1, 2], "pads": [1, 0, 1, 1]}),
            ("AveragePool", {"kernel_shape": [2, 3], "auto_pad": "SAME_LOWER", "strides": [1, 2]}),
            ("AveragePool", {"kernel_shape": [3, 3], "pads": [1, 1, 0, 1], "count_include_pad": random.randrange(2)}),
        )
    )
    others = [random.choice([x, *names, *weights]) for _ in range(random.choice((1, 1, 2)))]
    operands = others if operator in ("Add", "Sub", "Mul", "Div", "MatMul", "Gemm", "Sum", "Concat") else []
    return helper.make_node(operator, [x, *operands], [f"more{random.randrange(1000)}"], **attributes)


def _opset(random: Random, model: ModelProto) -> None:
    match random.randrange(3):
        case 0:
            _one(random, model.opset_import).version = random.choice((*range(-1, 30), *HUGE))
        case 1:
            model.opset_import.add(domain=random.choice(("", "ai.onnx", "local")), version=random.randrange(5, 27))
        case _:
            model.ir_version = random.choice((*range(15), *HUGE))


def _data_type(random: Random, model: ModelProto) -> None:
    _tensor(random, model).data_type = random.choice((*range(24), 999, -1))


def _raw_length(random: Random, model: ModelProto) -> None:
    tensor = _tensor(random, model)
    raw = tensor.raw_data
    tensor.raw_data = random.choice((raw[:-1], raw[: len(raw) // 2], raw + b"\0", raw * 2, b""))


def _two_places(random: Random, model: ModelProto) -> None:
    """Values in raw_data and in a typed field, or in the wrong one."""
    tensor = _tensor(random, model)
    count = random.choice((1, len(tensor.raw_data) // 4, 100))
    if random.random() < 0.5:
        tensor.ClearField("raw_data")
    match random.randrange(4):
        case 0:
            tensor.float_data.extend([0.25] * count)
        case 1:
            tensor.int32_data.extend([random.choice((1, -1, 1 << 20))] * count)
        case 2:
            tensor.int64_data.extend([random.choice((1, -1, 1 << 62))] * count)
        case _:
            tensor.string_data.extend([b"text"] * count)


def _numbers(random: Random, model: ModelProto) -> None:
    """Other values: whole numbers that say shapes, floats that are none."""
    tensor = _tensor(random, model)
    sizes = {TensorProto.FLOAT: "<f4", TensorProto.INT64: "<i8", TensorProto.FLOAT16: "<f2", TensorProto.INT8: "i1"}
    if tensor.data_type not in sizes or not tensor.raw_data:
        raise _UnfitError
    values = np.frombuffer(tensor.raw_data, sizes[tensor.data_type]).copy()
    index = random.randrange(values.size)
    if values.dtype.kind == "f":
        values[index] = random.choice((0.0, 1.0, -3.0, 100.0, float("nan"), float("inf"), -float("inf"), 6e4))
    else:
        values[index] = random.choice((0, 1, -1, 2, 3, 5, 100)) if values.dtype == np.int8 else random.choice(HUGE)
    tensor.raw_data = values.tobytes()


def _outside(random: Random, model: ModelProto) -> None:
    """External data at a hostile place."""
    tensor = _tensor(random, model)
    need = 4 * int(np.prod([max(dim, 0) for dim in tensor.dims], dtype=object)) if len(tensor.dims) < 9 else 4
    offset = random.choice((0, 0, 0, 8, 4096, -1, -4, 1 << 62, "x", "", "1e3", "0x10", "9" * 500))
    send_out(tensor, random.choice(PATHS), offset, random.choice((need, need, need, -1, 0, 1 << 62, "x")))
    if random.random() < 0.1:
        tensor.external_data.add(key=random.choice(("location", "offset", "checksum", "field")), value="../secret.bin")


def _deep_graphs(random: Random, model: ModelProto) -> None:
    """If nodes inside each other."""
    graph = GraphProto(name="innermost")
    for _ in range(random.choice((1, 5, 15, 30))):
        outer = GraphProto(name="outer")
        outer.node.append(helper.make_node("If", [_one(random, _values(model.graph))], ["y"], then_branch=graph))
        graph = outer
    model.graph.node.insert(0, graph.node[0])


def _call_functions(random: Random, model: ModelProto) -> None:
    """Functions that call each other: deeply, endlessly, or so that their number doubles each time."""
    depth, calls = random.choice(((1, 1), (40, 1), (400, 1), (12, 2), (25, 2), (40, 3)))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("deep", 1)]
    endless = random.random() < 0.3
    for level in range(depth):
        below = f"F{level - 1}" if level else f"F{depth - 1}" if endless else ""
        domain = "deep" if below else ""
        chain = ["x", *(f"m{index}" for index in range(calls - 1)), "y"]
        nodes = [helper.make_node(below or "Relu", [a], [b], domain=domain) for a, b in itertools.pairwise(chain)]
        model.functions.append(helper.make_function("deep", f"F{level}", ["x"], ["y"], nodes, opsets))
    model.opset_import.append(opsets[1])
    node = _one(random, model.graph.node)
    if not node.input:
        raise _UnfitError
    x, node.input[0] = node.input[0], "from_function"
    model.graph.node.insert(0, helper.make_node(f"F{depth - 1}", [x], ["from_function"], domain="deep"))


def _many_nodes(random: Random, model: ModelProto) -> None:
    """A long chain before a node, or as many nodes that read the same value."""
    node = _one(random, model.graph.node)
    if not node.input:
        raise _UnfitError
    x, operator, in_chain = node.input[0], random.choice(("Identity", "Relu", "Dropout", "Add")), random.random() < 0.5
    index = list(model.graph.node).index(node)
    names = [f"many{number}" for number in range(random.choice((2, 20, 1200, 4000)))]
    read = [x, *names[:-1]] if in_chain else [x] * len(names)
    nodes = [
        helper.make_node(operator, [name] * (1 + (operator == "Add")), [made])
        for name, made in zip(read, names, strict=True)
    ]
    node.input[0] = names[-1]
    rest = list(model.graph.node)[index:]
    del model.graph.node[index:]
    model.graph.node.extend([*nodes, *rest])


def _blow_up(random: Random, model: ModelProto) -> None:
    """A few bytes that ask for much memory: operators that make large values of small ones."""
    node = _one(random, model.graph.node)
    if not node.input:
        raise _UnfitError
    x = node.input[0]
    big = random.choice(
        ([1 << 40], [1 << 16, 1 << 16], [1 << 31], [1 << 62, 4], [-1], [0, 1 << 62], [100, 100, 100, 100])
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array(big, np.int64), "big"))
    pads = numpy_helper.from_array(
        np.array([0] * 4 + [0, 0, 0, random.choice((1 << 20, 1 << 40, -(1 << 40)))]), "big_pads"
    )
    model.graph.initializer.append(pads)
    made = random.choice(
        (
            helper.make_node("ConstantOfShape", ["big"], ["large"]),
            helper.make_node("Expand", [x, "big"], ["large"]),
            helper.make_node("Tile", [x, "big"], ["large"]),
            helper.make_node("Reshape", [x, "big"], ["large"]),
            helper.make_node("Pad", [x, "big_pads"], ["large"]),
            helper.make_node("Unsqueeze", [x, "big"], ["large"]),
            helper.make_node("Gather", [x, "big"], ["large"]),
            helper.make_node("Range", ["big", "big", "big"], ["large"]),
        )
    )
    node.input[0] = "large"
    index = list(model.graph.node).index(node)
    model.graph.node.insert(index, made)


OPERATORS: Final = (
    *("Conv", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "Gemm", "MatMul", "Add", "Sub"),
    *("Mul", "Div", "Sum", "Relu", "LeakyRelu", "Clip", "Softmax", "LogSoftmax", "Flatten", "Reshape", "Shape"),
    *("Gather", "Slice", "Cast", "Squeeze", "Unsqueeze", "Concat", "Constant", "ConstantOfShape", "Dropout"),
    *("BatchNormalization", "LRN", "Identity", "Transpose", "Pad", "QuantizeLinear", "DequantizeLinear"),
    *("QLinearConv", "If", "Loop", "Sqrt", "Expand", "Range", "Size", "Split", "Twice", "Resize"),
    "",
    "No such operator",
)
_MESSAGES: Final[Mapping[str, Callable[[Random, ModelProto], None]]] = {
    "weight dimension": _weight_dim,
    "weight rank": _weight_rank,
    "2^62 elements": _weight_elements,
    "declared dimension": _input_dim,
    "declared type": _input_type,
    "attribute value": _attribute,
    "attribute type": _attribute_type,
    "attributes": _attribute_set,
    "operator": _operator,
    "domain": _domain,
    "name": _rename,
    "operand": _rewire,
    "operands": _operands,
    "outputs": _results,
    "nodes": _nodes,
    "another node": _another_node,
    "one more node": _another_node,
    "versions": _opset,
    "element type": _data_type,
    "length of raw_data": _raw_length,
    "values in two places": _two_places,
    "values": _numbers,
    "external data": _outside,
    "deep graphs": _deep_graphs,
    "deep functions": _call_functions,
    "many nodes": _many_nodes,
    "blow-up": _blow_up,
}
