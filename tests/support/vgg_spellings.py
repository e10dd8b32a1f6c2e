"""One VGG in the forms in which files of it come: what each calls its nodes and values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnx import GraphProto, TensorProto, helper

from vgg16gpu.compiler.vgg.architecture import Layer, Vgg


@dataclass
class Spelling:
    """A VGG in one form. `values[module]` is the value that torchvision's module of that name computes."""

    graph: GraphProto = field(default_factory=GraphProto)
    values: dict[str, str] = field(default_factory=dict)

    def add(
        self, op: str, inputs: Sequence[str], output: str, name: str = "", weight: tuple[int, ...] = (), **options: Any
    ) -> str:
        """Append a node, with an initializer for its second operand if that has a shape."""
        self.graph.node.append(helper.make_node(op, inputs, [output], name, **options))
        if weight:
            self.graph.initializer.append(TensorProto(name=inputs[1], dims=weight, data_type=TensorProto.FLOAT))
        return output

    def open(self, name: str, shape: Sequence[int] = (1, 3, 224, 224)) -> str:
        self.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        return name

    def close(self, name: str) -> Spelling:
        self.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
        return self


def options(layer: Layer) -> dict[str, list[int]]:
    match layer.kind:
        case "Conv":
            return {"kernel_shape": [3, 3], "pads": [1] * 4}
        case "MaxPool" | "AveragePool":
            return {"kernel_shape": [layer.window] * 2, "strides": [layer.window] * 2}
        case _:
            return {}


def torch_legacy(net: Vgg) -> Spelling:
    """What torch's exporter writes since 1.13, and `vgg16gpu model make`."""
    graph = net.graph()
    return Spelling(
        graph, {layer.name: node.output[0] for layer, node in zip(net.layers, graph.node, strict=True) if layer.name}
    )


def torch_numbered(net: Vgg) -> Spelling:
    """torch before 1.13: values are numbers, nodes have no scopes, weights their names."""
    result = Spelling()
    x = result.open("input.1")
    for number, layer in enumerate(net.layers):
        operands = [x, *(name for name, _ in layer.parameters)]
        x = result.add(layer.kind, operands, str(number + 33), f"{layer.kind}_{number}", layer.shape, **options(layer))
        result.values[layer.name] = x
    return result.close(x)


def torch_dynamo(net: Vgg) -> Spelling:
    """torch's dynamo exporter: modules in the metadata, casts around the average pool, Dropout as Identity."""
    result = Spelling()
    x = result.open("input")

    def node(op: str, module: str, operands: list[str], weight: tuple[int, ...] = (), **values: Any) -> str:
        number = len(result.graph.node)
        y = result.add(op, operands, f"{op.lower()}_{number}", f"node_{op}_{number}", weight, **values)
        scopes = ["", *([module.partition(".")[0]] if "." in module else []), module, y]
        result.graph.node[-1].metadata_props.add(key="pkg.torch.onnx.name_scopes", value=str(scopes))
        result.values[module] = y
        return y

    for layer in net.layers:
        operands = [x, *(name for name, _ in layer.parameters)]
        if layer.kind == "AveragePool":
            cast = node("Cast", "avgpool", [x], to=TensorProto.FLOAT)
            x = node("Cast", "avgpool", [node("AveragePool", "avgpool", [cast], **options(layer))], to=10)
        elif layer.kind == "Flatten":
            x = node("Reshape", "", [x, "shape"])
        else:
            x = node(layer.kind, layer.name, operands, layer.shape, **options(layer))
        if layer.name in ("classifier.1", "classifier.4"):
            x = node("Identity", f"classifier.{int(layer.name[-1]) + 1}", [x])
    return result.close(x)


def bare_dynamo(net: Vgg) -> Spelling:
    """The same after a tool that drops metadata."""
    result = torch_dynamo(net)
    for node in result.graph.node:
        del node.metadata_props[:]
    del result.values["classifier.2"], result.values["classifier.5"]  # found as well, as what they are equal to
    result.values["avgpool"] = next(node.output[0] for node in result.graph.node if node.op_type == "AveragePool")
    return result


def mxnet(net: Vgg) -> Spelling:
    """The ONNX Model Zoo's vgg16-7: no average pool, Flatten before each Gemm, Dropout kept."""
    result = Spelling()
    x = result.open("data")
    counts: dict[str, int] = {}
    for layer in net.layers:
        if layer.kind in ("AveragePool", "Flatten"):
            continue
        kind = {"Gemm": "dense", "BatchNormalization": "batchnorm", "MaxPool": "pool"}.get(layer.kind, layer.kind)
        name = f"vgg0_{kind.lower()}{counts.setdefault(kind, 0)}"
        counts[kind] += 1
        if layer.kind == "Gemm":
            x = result.add("Flatten", [x], f"flatten_{name}", f"flatten_{name}")
        operands = [x, f"{name}_weight", f"{name}_bias"][: 3 if layer.shape else 1]
        x = result.add(layer.kind, operands, f"{name}_fwd", f"{name}_fwd", layer.shape, **options(layer))
        result.values[layer.name] = x
        if layer.name in ("classifier.1", "classifier.4"):
            x = result.add("Dropout", [x], f"vgg0_dropout{layer.name[-1]}_fwd")
    return result.close(x)


def caffe2(net: Vgg) -> Spelling:
    """The zoo's vgg19-caffe2: nodes without names, Reshape to a constant, Dropout with a mask, Softmax."""
    result = Spelling()
    x = result.open("data_0")
    for number, layer in enumerate(net.layers):
        operands = [x, f"w{number}_0", f"b{number}_0"][: 3 if layer.shape else 1]
        if layer.kind == "AveragePool":
            continue
        if layer.kind == "Flatten":
            x = result.add("Reshape", [x, "OC2_DUMMY_1"], "OC2_DUMMY_0", weight=(2,))
            continue
        x = result.add(layer.kind, operands, f"value{number}_1", weight=layer.shape, **options(layer))
        result.values[layer.name] = x
        if layer.name in ("classifier.1", "classifier.4"):
            x = result.add("Dropout", [x], f"value{number}_2")
            result.graph.node[-1].output.append(f"_value{number}_mask")
    result.values["prob"] = result.add("Softmax", [x], "prob_1")
    return result.close("prob_1")


def keras(net: Vgg) -> Spelling:
    """Keras through tf2onnx: NHWC outside, biases in an Add, a shape computed at run time, MatMul, Softmax."""
    result = Spelling()
    x = result.add("Transpose", [result.open("input_1:0", (1, 224, 224, 3))], "in:0", perm=[0, 3, 1, 2])
    for number, layer in enumerate(net.layers):
        y = f"StatefulPartitionedCall/l{number}/{layer.kind}:0"
        if layer.kind == "AveragePool":
            continue
        if layer.kind == "Flatten":
            x = result.add("Transpose", [x], "nhwc:0", perm=[0, 2, 3, 1])
            result.add("Shape", [x], "dims:0")
            result.add("Gather", ["dims:0", "zero"], "rows:0")
            result.add("Concat", ["rows:0", "columns"], "shape:0", axis=0)
            x = result.add("Reshape", [x, "shape:0"], "flat:0")
        elif layer.kind == "Gemm":
            product = result.add("MatMul", [x, f"k{number}"], f"product{number}:0", weight=layer.shape[::-1])
            x = result.add("Add", [f"bias{number}", product], y)
        elif layer.kind == "Conv":
            product = result.add("Conv", [x, f"k{number}"], f"product{number}:0", weight=layer.shape)
            x = result.add("Add", [product, f"bias{number}"], y)
        else:
            operands = [x, *(f"{part}{number}" for part in layer.shape and "smvx")]
            x = result.add(layer.kind, operands, y, **options(layer))
        result.values[layer.name] = x
    result.values["prob"] = result.add("Softmax", [x], "predictions:0", axis=-1)
    return result.close("predictions:0")


def timm(net: Vgg) -> Spelling:
    """timm: fc6 and fc7 are convolutions of 7x7 and 1x1, then a global pool."""
    result = Spelling()
    x = result.open("input")
    for number, layer in enumerate(net.layers):
        op, values = layer.kind, options(layer)
        if op in ("AveragePool", "Flatten"):
            continue
        if layer.name == "classifier.6":
            x = result.add("GlobalAveragePool", [x], "global")
            x = result.add("Flatten", [x], "flat")
        elif op == "Gemm":
            side = 7 if layer.name == "classifier.0" else 1
            op, values = "Conv", {"kernel_shape": [side, side]}
        operands = [x, f"w{number}", f"b{number}"][: 3 if layer.shape else 1]
        x = result.add(op, operands, f"value{number}", weight=layer.shape, **values)
        result.values[layer.name] = x
    return result.close(x)


def qdq(net: Vgg) -> Spelling:
    """A quantised file: each value goes through integers; ReLUs behind convolutions are in the quantisation."""
    result = Spelling()
    x = result.open("data")
    for number, layer in enumerate(net.layers):
        if layer.kind in ("AveragePool", "Flatten"):
            continue
        if layer.shape:
            result.add("DequantizeLinear", [f"w{number}", "scale"], f"w{number}_dq", weight=layer.shape)
            x = result.add(layer.kind, [x, f"w{number}_dq", f"b{number}"], f"value{number}", **options(layer))
        elif layer.kind == "MaxPool":
            x = result.add(layer.kind, [x], f"value{number}", **options(layer))
        result.values[layer.name] = x
        if layer.kind != "Relu":
            x = result.add("QuantizeLinear", [x, "scale", "zero"], f"value{number}_q")
            x = result.add("DequantizeLinear", [x, "scale", "zero"], f"value{number}_dq")
    return result.close(x)


FORMS: tuple[Callable[[Vgg], Spelling], ...] = (
    torch_legacy, torch_numbered, torch_dynamo, bare_dynamo, mxnet, caffe2, keras, timm, qdq
)  # fmt: skip
