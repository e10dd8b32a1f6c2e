"""Names of layers: what torchvision and the VGG papers call them, in the forms in which VGG files come."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import GraphProto, TensorProto, helper

from tests.support.exported_files import FOLDER, MODULES, sample
from tests.support.onnx_models import onnxruntime_values, random_input, torch_vgg
from vgg16gpu.compiler.onnx.names import TapError, names_of_layers, resolve
from vgg16gpu.compiler.vgg.architecture import Vgg
from vgg16gpu.devices.base import Device
from vgg16gpu.runtime.engine import Engine

# torchvision's numbers of the layers that people ask for, as published with every port of VGG features.
LAYERS = {
    ("vgg11", False): {"conv1_1": 0, "relu3_2": 9, "pool4": 15, "relu5_2": 19, "pool5": 20},
    ("vgg13", False): {"relu2_2": 8, "conv3_1": 10, "relu4_2": 18, "pool5": 24},
    ("vgg16", False): {
        "conv1_1": 0, "relu1_1": 1, "relu1_2": 3, "pool1": 4, "relu2_2": 8, "relu3_3": 15, "conv4_1": 17,
        "conv4_3": 21, "relu4_3": 22, "pool4": 23, "relu5_3": 29, "pool5": 30,
    },
    ("vgg19", False): {
        "relu1_1": 1, "relu2_1": 6, "relu3_1": 11, "relu4_1": 20, "relu4_2": 22, "conv5_4": 34, "pool5": 36
    },
    ("vgg16", True): {"conv1_1": 0, "bn1_1": 1, "relu1_2": 5, "relu3_3": 22, "bn4_3": 31, "relu4_3": 32, "pool5": 43},
    ("vgg19", True): {"relu1_1": 2, "conv5_4": 49, "relu5_4": 51, "pool5": 52},
}  # fmt: skip
CLASSIFIER = {"fc6": 0, "relu6": 1, "fc7": 3, "relu7": 4, "fc8": 6}


def one(graph: GraphProto, name: str) -> str:
    return resolve(graph, [name])[0]


@dataclass
class Spelling:
    """A graph that grows; `values[module]` is the value that torchvision's module of that name computes."""

    graph: GraphProto = field(default_factory=GraphProto)
    values: dict[str, str] = field(default_factory=dict)

    def add(self, op: str, inputs: list[str], output: str, name: str = "", weight: Any = (), **options: Any) -> str:
        """Append a node, with an initializer for its second operand if that has a shape."""
        self.graph.node.append(helper.make_node(op, inputs, [output], name, **options))
        if weight:
            self.graph.initializer.append(TensorProto(name=inputs[1], dims=weight, data_type=TensorProto.FLOAT))
        return output

    def open(self, name: str) -> str:
        self.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 3, 224, 224)))
        return name

    def close(self, name: str) -> Spelling:
        self.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
        return self


def torch_legacy(net: Vgg) -> Spelling:
    """Return a net as torch's exporter writes it since 1.13, with the value of each layer."""
    graph = net.graph()
    return Spelling(
        graph, {layer.name: node.output[0] for layer, node in zip(net.layers, graph.node, strict=True) if layer.name}
    )


@pytest.mark.every_case
@pytest.mark.parametrize(("variant", "norm"), LAYERS)
def test_layers_of_every_vgg(variant: str, norm: bool) -> None:
    made = torch_legacy(Vgg(variant, batch_norm=norm))
    for name, number in LAYERS[variant, norm].items():
        assert one(made.graph, name) == made.values[f"features.{number}"]
    for name, number in CLASSIFIER.items():
        assert one(made.graph, name) == made.values[f"classifier.{number}"]
    assert one(made.graph, "drop6") == made.values["classifier.1"]
    assert one(made.graph, "/features/features.0/Op_output_0") == one(made.graph, "module.features.0")


@pytest.mark.every_case
@pytest.mark.parametrize("file", MODULES)
def test_modules_of_exported_files(file: str) -> None:
    """Each module's name gives what a forward hook of torch got; a convolution that is folded away has none."""
    path = FOLDER / file
    graph = onnx.load(path, load_external_data=False).graph
    values, missing = {}, set()
    for name in MODULES[file]:
        try:
            values[name] = one(graph, name)
        except TapError:
            missing.add(name)
    if file in ("torch-legacy-norm-folded.onnx", "torch-dynamo-norm.onnx"):
        assert missing == {f"features.{number}" for number in (0, 4, 8, 11, 15, 18, 22, 25)}
    else:
        assert missing == {"torch-legacy-branches.onnx": {"stem", "norm"}, "torch-dynamo-branches.onnx": {"stem"}}.get(
            file, set()
        )
    computed = onnxruntime_values(path, sample(path, 1), sorted(set(values.values())))
    for name, value in values.items():
        found = np.abs(computed[value]).sum(), computed[value].flat[-1]
        np.testing.assert_allclose(found, MODULES[file][name], rtol=1e-4, atol=1e-4, err_msg=name)


def test_dynamo_without_its_modules() -> None:
    """Drop metadata, as some tools do: layers are counted."""
    proto = onnx.load(FOLDER / "torch-dynamo-plain.onnx")
    names = {name: value for value, name in names_of_layers(proto.graph).items()}
    for node in proto.graph.node:
        del node.metadata_props[:]
        node.name = ""
    assert {name: value for value, name in names_of_layers(proto.graph).items() if name != "avgpool"} == {
        name: value for name, value in names.items() if name != "avgpool"
    }
    assert one(proto.graph, "classifier.3") == names["fc7"]


def test_keras_has_its_bias_in_another_node() -> None:
    graph = onnx.load(FOLDER / "keras-tf2onnx.onnx").graph
    names = {name: value.partition("/")[2] for value, name in names_of_layers(graph).items()}
    assert names["relu2_2"] == "conv2d_3_1/Relu:0"
    assert (names["fc6"], names["fc7"]) == ("dense_1/BiasAdd:0", "dense_1_2/BiasAdd:0")
    assert one(graph, "prob") == graph.output[0].name


def test_caffe2_names_its_weights_after_the_layers() -> None:
    """The zoo's vgg19, which onnx has with it without its weights: nodes have no names of layers."""
    graph = onnx.load(Path(onnx.__file__).parent / "backend/test/data/light/light_vgg19.onnx").graph
    nodes = {node.output[0]: node for node in graph.node}
    layers = [name for name in names_of_layers(graph).values() if name.startswith(("conv", "fc"))]
    assert len(layers) == 19
    for name in layers:
        assert nodes[one(graph, name)].input[1] == f"{name}_w_0"


def test_rounding_is_behind_the_layer_that_quantisers_leave() -> None:
    graph = onnx.load(FOLDER / "quantised-defaults.onnx").graph
    makers = {node.output[0]: node.op_type for node in graph.node}
    assert [makers[one(graph, name)] for name in ("conv1_1", "fc6", "pool5")] == ["Conv", "Gemm", "MaxPool"]
    assert one(graph, "features.20") == f"{one(graph, 'pool5')}_DequantizeLinear_Output"


def test_a_value_goes_before_a_node_and_a_node_before_a_layer() -> None:
    model = torch_vgg()
    model.nodes[0].output[0] = model.nodes[1].input[0] = "relu1_2"  # the first convolution
    assert one(model.proto().graph, "relu1_2") == "relu1_2"
    model.nodes[1].name = "pool2"
    graph = model.proto().graph
    assert one(graph, "pool2") == "relu0"
    assert one(graph, "relu2_2") == "relu3"
    assert one(graph, "input") == "input"
    assert one(graph, "fc6.weight") == "fc6.weight"


def test_a_sequential_is_its_last_layer_and_may_be_inside_of_another_module() -> None:
    made = torch_legacy(Vgg("vgg11"))
    assert one(made.graph, "features") == made.values["features.20"]
    assert one(made.graph, "classifier") == "output"
    for node in made.graph.node:
        node.name = f"/net{node.name}"
    for name in ("features.6", "net.features.6", "module.net.features.6", "/features/features.6/Conv"):
        assert one(made.graph, name) == made.values["features.6"]
    assert one(made.graph, "net") == "output"


def test_two_towers_need_the_whole_path() -> None:
    made = Spelling()
    x = made.open("x")
    for tower in "ab":
        made.add("Conv", [x, f"w_{tower}"], f"y_{tower}", f"/{tower}/features/features.0/Conv", (4, 3, 3, 3))
    made.close(made.add("Add", ["y_a", "y_b"], "y", "/Add"))
    with pytest.raises(TapError, match=r"^'features\.0' fits several values; ask for one of 'y_a', 'y_b'$"):
        resolve(made.graph, ["features.0"])
    with pytest.raises(TapError, match=r"^'conv1_1' fits several values; ask for one of 'y_a', 'y_b'$"):
        resolve(made.graph, ["conv1_1"])
    assert resolve(made.graph, ["b.features.0", "a.features.0"]) == ("y_b", "y_a")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["features.99"], r"has no value 'features\.99'; did you mean 'features\.9', 'features\.\d+', 'features"),
        (["relu3_4"], r"has no value 'relu3_4'; did you mean 'relu3_3', 'relu"),
        (["bn3_3"], "has no value 'bn3_3'; did you mean"),
        (["prob"], "has no value 'prob'; its outputs are 'output', its layers 'conv1_1' to 'fc8'$"),
        (["classifier.7"], r"has no value 'classifier\.7'; did you mean 'classifier"),
        (["zzz"], "has no value 'zzz'; its outputs are 'output', its layers"),
        ([""], "has no value ''; its outputs are 'output', its layers"),
        (["relu3_3", "relu3_3"], "output 'relu3_3' is asked for twice; name each one once"),
        (
            ["relu3_3", "features.15"],
            "output 'features.15' and 'relu3_3' are one value, '/features/features.15/Relu_output_0'; name each",
        ),
    ],
)
def test_what_is_refused(names: list[str], message: str) -> None:
    with pytest.raises(TapError, match=message):
        resolve(torch_legacy(Vgg("vgg16")).graph, names)


def test_a_normalisation_that_the_legacy_exporter_folded() -> None:
    made = folded("Conv")
    with pytest.raises(TapError, match=r"'features\.3' is no value of the file: the exporter folded 'features\.4'"):
        resolve(made.graph, ["features.3"])
    assert one(made.graph, "features.4") == made.values["features.4"] == "/features/features.3/Conv_output_0"
    assert one(made.graph, "features.5") == one(made.graph, "relu1_2") == made.values["features.5"]
    assert one(made.graph, "conv1_2") == made.values["features.4"]


def test_a_normalisation_that_the_dynamo_exporter_folded() -> None:
    made = folded("BatchNormalization")
    for layer in ("features.3", "features.7"):
        with pytest.raises(TapError, match=f"has no value '{layer}'; did you mean 'features"):
            resolve(made.graph, [layer])
    assert one(made.graph, "features.4") == made.values["features.4"]
    assert one(made.graph, "features.5") == one(made.graph, "relu1_2") == made.values["features.5"]
    # Without the modules, the weights' names still tell that the convolutions cannot be counted in torchvision's way.
    for node in made.graph.node:
        node.name = ""
    with pytest.raises(TapError, match=r"has no value 'features\.5'; .*its layers 'conv1_1' to 'fc8'"):
        resolve(made.graph, ["features.5"])
    assert one(made.graph, "relu1_2") == made.values["features.5"]
    assert one(made.graph, "classifier.3") == made.values["classifier.3"]


def folded(kept: str) -> Spelling:
    """vgg16_bn with each normalisation in its convolution; the node keeps the scope of `kept` of the two."""
    net = Vgg("vgg16", batch_norm=True)
    made = torch_legacy(net)
    nodes = list(made.graph.node)
    for conv, norm in pairwise(nodes):
        if norm.op_type != "BatchNormalization":
            continue
        module = norm.name.split("/")[2]
        if kept == "Conv":  # legacy: the convolution's names, weights without a name
            reader = next(node for node in nodes if norm.output[0] in node.input)
            made.values[module] = reader.input[0] = conv.output[0]
            conv.input[1] = f"onnx::Conv_{len(module)}"
        else:  # dynamo: the normalisation's names, the convolution's weights
            conv.name, conv.output[0] = norm.name, norm.output[0]
        made.graph.node.remove(norm)
    return made


def test_what_is_not_a_vgg_has_no_layers_to_count() -> None:
    made = Spelling()
    x = made.add("Conv", [made.open("x"), "w"], "y", weight=(96, 3, 11, 11), kernel_shape=[11, 11], strides=[4, 4])
    made.close(made.add("Relu", [x], "z"))
    with pytest.raises(TapError, match="has no value 'relu1_1', and its layers cannot be counted: it does not begin"):
        resolve(made.graph, ["relu1_1"])


def test_large_graphs_and_long_names_take_no_time() -> None:
    made = Spelling()
    x = made.open("x")
    for number in range(1_000):
        x = made.add("Relu", [x], f"value {number}", f"/a.{'.'.join('b' * 400)}/{number}")
    made.graph.node[0].name = "/" + "a/" * 1_000_000
    made.close(x)
    start = time.process_time()
    for name in ("value of none", "/b" * 1_000_000, "module." * 10_000):
        with pytest.raises(TapError):
            resolve(made.graph, [name])
    assert time.process_time() - start < 3


def test_an_engine_computes_layers_by_name(device: Device, tmp_path: Path) -> None:
    names = ["relu2_2", "features.0", "pool1", "fc6", "classifier.1"]
    path = torch_vgg().save(tmp_path / "m.onnx")
    x = random_input((2, 3, 8, 8))
    values = resolve(onnx.load(path).graph, names)
    expected = onnxruntime_values(path, x, list(values))
    with Engine(path, device=device.facts.kind, batch=2, outputs=names, kernels="ffma") as engine:
        for name, value, found in zip(names, values, engine.run(x), strict=True):
            np.testing.assert_allclose(found, expected[value], rtol=1e-5, atol=1e-5, err_msg=name)
