"""Names of layers: what torchvision and the VGG papers call them, in the forms in which VGG files come."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import GraphProto, TensorProto, helper

from tests.support.onnx_models import onnxruntime_values, random_input, torch_vgg
from tests.support.vgg_spellings import FORMS, Spelling, qdq, torch_legacy
from vgg16gpu.compiler.onnx.layer_names import TapError, names_of_layers, resolve
from vgg16gpu.compiler.onnx.load import load
from vgg16gpu.compiler.vgg.architecture import Vgg
from vgg16gpu.devices.base import Device
from vgg16gpu.errors import ModelError
from vgg16gpu.io.shipped import digits_model
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


@pytest.mark.parametrize(
    ("form", "variant", "norm"), [(form, *net) for form in FORMS for net in LAYERS if not (form is qdq and net[1])]
)  # quantisers fold the normalisation
def test_every_form_of_every_vgg(form: Callable[[Vgg], Spelling], variant: str, norm: bool) -> None:
    made = form(Vgg(variant, batch_norm=norm))
    for module, value in made.values.items():
        if module and module != "prob":
            assert one(made.graph, module) == value
            assert one(made.graph, f"module.{module}") == value
            scope = f"/{module.partition('.')[0]}/{module}" if "." in module else f"/{module}"
            assert one(made.graph, f"{scope}/Op") == value
            assert one(made.graph, f"{scope}/Op_output_0") == value
    names = names_of_layers(made.graph)
    assert {one(made.graph, name): name for name in names.values()} == names
    for name, number in LAYERS[variant, norm].items():
        assert one(made.graph, name) == made.values[f"features.{number}"]
    for name, number in CLASSIFIER.items():
        assert one(made.graph, name) == made.values[f"classifier.{number}"]
    if "prob" in made.values:
        assert one(made.graph, "prob") == made.values["prob"]
    assert one(made.graph, "drop6") == made.values["classifier.1"]
    assert one(made.graph, "classifier.5") == made.values.get("classifier.5", made.values["classifier.4"])


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


def test_modules_of_any_network() -> None:
    made = Spelling()
    x = made.open("x")
    for name in ("/layer1/layer1.0/conv1/Conv", "/layer1/layer1.0/relu/Relu", "/layer1/layer1.0/relu_1/Relu", "/Relu"):
        x = made.add(name.rpartition("/")[2], [x, "w"], f"{name}_output_0", name)
    made.close(x)
    assert one(made.graph, "layer1.0.conv1") == "/layer1/layer1.0/conv1/Conv_output_0"
    assert one(made.graph, "layer1.0.relu") == "/layer1/layer1.0/relu/Relu_output_0"
    assert one(made.graph, "layer1.0") == one(made.graph, "layer1") == "/layer1/layer1.0/relu_1/Relu_output_0"


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


def test_nodes_of_one_name_are_ambiguous() -> None:
    model = torch_vgg()
    for node in model.nodes:
        node.name = "node"
    message = "'node' fits several values; ask for one of 'conv0', 'relu0', 'pool1', .* \\.\\.\\.$"
    with pytest.raises(TapError, match=message):
        resolve(model.proto().graph, ["node"])


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


def test_counting_follows_a_branch_and_stops_behind_what_a_vgg_does_not_have() -> None:
    model = torch_vgg((4, "M", 6, "M"), 8)
    made = Spelling(model.proto().graph)
    made.add("Conv", ["relu0", "w1"], "head", weight=(2, 4, 3, 3))  # a second reader of relu1_1
    made.add("Sigmoid", ["pool3"], "gate")
    made.add("Conv", ["gate", "w2"], "gated", weight=(2, 6, 3, 3))
    assert one(made.graph, "conv1_2") == "head"
    assert resolve(made.graph, ["relu1_1", "pool1", "relu2_1", "fc7"]) == ("relu0", "pool1", "relu2", "fc7")
    with pytest.raises(TapError, match="has no value 'conv3_1'"):
        resolve(made.graph, ["conv3_1"])


def test_preprocessing_in_the_graph_is_no_layer() -> None:
    made = Spelling()
    x = made.add("Sub", [made.open("x"), "mean"], "centred")
    x = made.add("Div", [x, "std"], "normalised")
    x = made.add("Conv", [x, "w", "b"], "y", weight=(4, 3, 3, 3))
    made.close(made.add("Relu", [x], "z"))
    assert resolve(made.graph, ["conv1_1", "features.1"]) == ("y", "z")


def test_average_pools_may_take_the_place_of_max_pools() -> None:
    made = Spelling()
    x = made.add("Conv", [made.open("x"), "w", "b"], "conv", weight=(4, 3, 3, 3))
    x = made.add("Relu", [x], "relu")
    for name in ("halved", "averaged"):
        x = made.add("AveragePool", [x], name, kernel_shape=[2, 2], strides=[2, 2])
    made.close(x)
    assert resolve(made.graph, ["pool1", "avgpool"]) == ("halved", "averaged")


def test_names_at_digits() -> None:
    graph = onnx.load(digits_model(), load_external_data=False).graph
    assert one(graph, "relu1_1") == one(graph, "features.1")


@pytest.mark.parametrize(
    "nodes",
    [
        [("Conv", ["x"], ["y"]), ("Relu", ["y"], ["z"])],
        [("Conv", ["y"], ["y"]), ("Relu", ["z"], ["x"])],
        [("Relu", ["y"], ["x"]), ("Conv", ["x", "x"], ["y"]), ("Relu", ["y"], ["y"])],
        [("Conv", ["x", "w"], []), ("Conv", [], [""]), ("Conv", ["", ""], ["", "z"]), ("Add", ["x", ""], ["y"])],
        [("MatMul", ["x", "w"], ["y"]), ("DequantizeLinear", ["y"], ["z"]), ("MaxPool", ["z"], ["a"])],
    ],
)
@pytest.mark.parametrize("name", ["relu1_1", "features.1", "features.99999999999", "", "/", "//", "module.", "."])
def test_broken_graphs_give_a_value_of_theirs_or_a_message(nodes: Any, name: str) -> None:
    graph = GraphProto(node=[helper.make_node(op, given, made, name="/a/b.1/c") for op, given, made in nodes])
    graph.input.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, None))
    computed = {value for _, _, made in nodes for value in made if value}
    with contextlib.suppress(TapError):
        assert one(graph, name) in computed


def test_large_graphs_and_long_names_take_no_time() -> None:
    made = Spelling()
    x = made.open("x")
    for number in range(5_000):
        x = made.add("Relu", [x], f"value {number}", f"/a.{'.'.join('b' * 400)}/{number}")
    made.graph.node[0].name = "/" + "a/" * 1_000_000
    made.close(x)
    start = time.process_time()
    for name in ("value of none", "/b" * 1_000_000, "module." * 10_000):
        with pytest.raises(TapError):
            resolve(made.graph, [name])
    assert time.process_time() - start < 10


@pytest.mark.export
@pytest.mark.parametrize("dynamo", [False, True], ids=["legacy", "dynamo"])
@pytest.mark.parametrize("network", ["vgg11", "vgg11_bn", "vgg16", "vgg16_bn"])
@pytest.mark.parametrize("folding", [True, False], ids=["folded", "kept"])
def test_against_hooks_of_torch(tmp_path: Path, network: str, dynamo: bool, folding: bool) -> None:
    """Every module that has a name gives what a forward hook of that module gets."""
    torch = pytest.importorskip("torch")
    if dynamo:
        pytest.importorskip("onnxscript")
    from tests.support import export_forms

    net = export_forms.network(network)
    if dynamo:
        choice = {} if folding else {"optimize": False}
    else:
        choice = {} if folding else {"training": torch.onnx.TrainingMode.PRESERVE, "do_constant_folding": False}
    form = export_forms.Form(18, dynamo=dynamo, options=choice)
    path = form.export(net, tmp_path / "m.onnx")
    x = random_input((1, 3, form.size, form.size))
    seen: dict[str, Any] = {}
    for name, module in net.named_modules():
        if name:
            module.register_forward_hook(lambda _, __, y, name=name: seen.__setitem__(name, y.detach().clone().numpy()))
    with torch.no_grad():
        net(torch.from_numpy(x))
    graph = onnx.load(path, load_external_data=False).graph
    values, missing = {}, set()
    for name in seen:
        try:
            values[name] = one(graph, name)
        except TapError:
            missing.add(name)
    # A convolution that its normalisation was folded into is gone.
    gone = {name for name, module in net.named_modules() if isinstance(module, torch.nn.Conv2d)}
    assert missing == (gone if network.endswith("_bn") and folding else set())
    computed = onnxruntime_values(path, x, sorted(set(values.values())))
    for name, value in values.items():
        assert np.linalg.norm(computed[value] - seen[name]) <= 1e-5 * np.linalg.norm(seen[name]), name


def test_an_engine_computes_layers_by_name(device: Device, tmp_path: Path) -> None:
    names = ["relu2_2", "features.0", "pool1", "fc6", "classifier.1"]
    path = torch_vgg().save(tmp_path / "m.onnx")
    x = random_input((2, 3, 8, 8))
    values = resolve(onnx.load(path).graph, names)
    expected = onnxruntime_values(path, x, list(values))
    with Engine(path, device=device.facts.kind, batch=2, outputs=names, kernels="ffma") as engine:
        for name, value, found in zip(names, values, engine.run(x), strict=True):
            np.testing.assert_allclose(found, expected[value], rtol=1e-5, atol=1e-5, err_msg=name)


def test_what_lies_behind_a_layer_is_not_computed(device: Device, tmp_path: Path) -> None:
    path = torch_vgg().save(tmp_path / "m.onnx")
    with Engine(path, device=device.facts.kind, outputs=["relu1_1"]) as engine:
        assert len(engine.graph.ops) == 1


def test_a_layer_that_is_not_there_is_named_with_the_file(tmp_path: Path) -> None:
    path = torch_vgg().save(tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"m\.onnx: has no value 'relu9_9'; did you mean 'relu"):
        load(path, ["relu9_9"])
