"""loader: the forms that are accepted, against onnxruntime, and the structure that is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.exported_files import FOLDER, MODULES
from tests.support.onnx_models import FORMS as STORED
from tests.support.onnx_models import Model, onnxruntime_values, random_input, torch_vgg
from tests.support.reference import evaluate
from vgg16gpu.compiler.graph.graph import Graph
from vgg16gpu.compiler.graph.input_size import resolve_input_shape
from vgg16gpu.compiler.graph.passes import simplify
from vgg16gpu.compiler.onnx.load import load
from vgg16gpu.compiler.onnx.rules.table import RULES
from vgg16gpu.errors import ModelError

# What no exporter of today writes; those of today have made the files of tests/fixtures/exported.
FORMS: dict[str, Callable[[Path], Path]] = {
    "opset7": lambda path: torch_vgg().save(path, opset=7),
    "weights-as-inputs-ir3": lambda path: torch_vgg(size=11).save(path, opset=8, ir_version=3, weights_as_inputs=True),
    **{name: partial(shutil.copy, STORED / f"{name}.onnx") for name in ("view-opset9", "zoo-mxnet", "zoo-caffe2")},
}


def relative_error(got: Any, expected: Any) -> float:
    return float(np.abs(got - expected).max() / np.abs(expected).max())


def check_against_onnxruntime(path: Path, graph: Graph) -> None:
    shape = resolve_input_shape(graph, graph.input.shape[0] or 2)
    x = random_input(shape)
    expected = onnxruntime_values(path, x, graph.outputs)
    values = evaluate(graph, x)
    for name in graph.outputs:
        assert values[name].shape == expected[name].shape, name
        assert relative_error(values[name], expected[name]) < 1e-5, name


@pytest.mark.every_case
@pytest.mark.parametrize("form", FORMS)
def test_every_form_means_what_onnxruntime_computes(tmp_path: Path, form: str) -> None:
    path = FORMS[form](tmp_path / "m.onnx")
    graph = simplify(load(path))
    check_against_onnxruntime(path, graph)
    assert {type(op).__name__ for op in graph.ops} <= {"Conv", "Gemm", "Softmax", "Pool"}


@pytest.mark.parametrize("name", [name for name in MODULES if "norm" in name or "view" in name])
def test_every_value_can_be_asked_for(name: str) -> None:
    path = FOLDER / name
    names = [op.y for op in load(path).ops]
    graph = simplify(load(path, names))
    assert graph.outputs == tuple(names)
    assert {op.y for op in graph.ops} == set(names)
    check_against_onnxruntime(path, graph)


def test_weights_from_constant_nodes_and_identities(tmp_path: Path) -> None:
    model = Model(("n", 2, 5, 5))
    model.node("Constant", [], "w", value=numpy_helper.from_array(random_input((3, 2, 3, 3))))
    model.constant("b", random_input((3,)))
    model.node("Identity", ["b"], "shared")
    model.node("Conv", ["input", "w", "shared"], "y")
    path = model.save(tmp_path / "m.onnx")
    graph = load(path)
    assert [op.y for op in graph.ops] == ["y"]
    check_against_onnxruntime(path, graph)


# Outputs


def test_a_used_second_output_of_a_node_without_a_first_is_refused(tmp_path: Path) -> None:
    model = Model()
    model.nodes.append(helper.make_node("Dropout", ["input"], ["", "mask"], "it"))
    with pytest.raises(ModelError, match=r"Dropout 'it' .* its first output has no name"):
        load(model.save(tmp_path / "m.onnx", ["mask"]))


def test_dead_nodes_are_dropped_and_do_not_offend(tmp_path: Path) -> None:
    model = torch_vgg((4, "M"))
    model.node("Gelu", ["relu0"], "unused")
    model.node("Relu", ["nowhere"], "unused2")
    path = model.save(tmp_path / "m.onnx", ["output"])
    assert load(path, ["relu0"]).ops[-1].y == "relu0"
    assert len(load(path, ["relu0"]).ops) == 2
    assert "unused" not in {op.y for op in load(path).ops}


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (["fc6.rely"], "has no value 'fc6.rely'; did you mean 'fc6.relu'"),
        (["zzz"], "has no value 'zzz'; its outputs are 'output'"),
        ([], "no output is asked for"),
        (["output", "output"], "'output' is asked for twice"),
        (["input"], "'input' is the model's input"),
        (["fc6.weight"], "output 'fc6.weight' is a constant; ask for a value that depends on the input"),
    ],
)
@pytest.mark.every_case
def test_outputs_that_are_refused(tmp_path: Path, outputs: list[str], message: str) -> None:
    path = torch_vgg().save(tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=message):
        load(path, outputs)


# Refusals


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        load(path)
    return str(caught.value)


def test_all_offending_nodes_are_listed_at_once(tmp_path: Path) -> None:
    model = Model(("n", 4, 8, 8))
    x = model.node("Gelu", ["input"], "norm", name="first")
    x = model.conv(x, "strange", 1, 4, kernel_shape=[5, 5])
    x = model.node("MaxPool", [x], "flat", kernel_shape=[2, 2, 2])
    x = model.conv(x, "fine", 4, 4)
    x = model.node("Gelu", [x], "gelu", name="last", domain="com.microsoft")
    message = refusal(model.save(tmp_path / "m.onnx")).splitlines()
    assert message[0].endswith("m.onnx: 4 nodes are not supported:")
    assert message[1] == "  Gelu 'first' (opset 17): this operator is not supported; export the model without it"
    assert message[2] == (
        "  Conv '/strange' (opset 17): kernel_shape [5, 5] differs from its weight's; "
        "the file is broken, export the model again"
    )
    assert message[3] == (
        "  MaxPool '/flat' (opset 17): kernel_shape is [2, 2, 2]; two positive numbers (2-D) are needed"
    )
    assert message[4] == (
        "  com.microsoft.Gelu 'last' (opset none): operators of domain 'com.microsoft' are not supported; "
        "export with plain ONNX operators: the float32 model, or the QuantizeLinear/DequantizeLinear (QDQ) form; "
        f"supported operators: {', '.join(sorted(RULES))}"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"opset": 6}, "has opset 6; one of 7 to 25 is needed"),
        ({"opset": 99}, "has opset 99; one of 7 to 25 is needed"),
        ({"ir_version": 2}, "has IR version 2; 3 to 14 are supported"),
        ({"ir_version": 99}, "has IR version 99"),
    ],
)
@pytest.mark.every_case
def test_versions(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    assert message in refusal(torch_vgg().save(tmp_path / "m.onnx", **options))


def edited(path: Path, edit: Callable[[onnx.ModelProto], object]) -> Path:
    """A VGG after `edit` has been at it."""
    proto = torch_vgg((4, "M")).proto()
    edit(proto)
    path.write_bytes(proto.SerializeToString())
    return path


def close_a_cycle(proto: onnx.ModelProto) -> None:
    proto.graph.node[0].input[0] = "output"


def add_input(proto: onnx.ModelProto) -> None:
    proto.graph.input.append(helper.make_tensor_value_info("mask", TensorProto.FLOAT, [1]))


def refer(proto: onnx.ModelProto) -> None:
    attribute = proto.graph.node[-1].attribute[-1]
    attribute.ClearField("i")
    attribute.ref_attr_name = "outer"


def first_dim(proto: onnx.ModelProto) -> Any:
    return proto.graph.input[0].type.tensor_type.shape.dim[0]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (close_a_cycle, r"Conv '/conv0' .* reads 'output' before Gemm '/output' computes it; .* form a cycle"),
        (lambda proto: proto.graph.initializer.pop(0), r"operand 'conv0.weight' is missing; export .* its weights"),
        (lambda proto: proto.graph.initializer.pop(1), r"operand 'conv0.bias' is missing"),
        (refer, "attribute of it refers to a function's"),
        (lambda proto: proto.graph.node[0].output.__setitem__(0, ""), r"operand 'conv0' is missing"),
        (add_input, r"has 2 run-time inputs \('input', 'mask'\); exactly one"),
        (lambda proto: proto.graph.input.pop(), r"has 0 run-time inputs \(none\)"),
        (lambda proto: proto.graph.output.pop(), "declares no output"),
        (lambda proto: proto.opset_import.pop(), "names no version"),
        (lambda proto: proto.opset_import.add(domain="ai.onnx", version=9), "has opset 9 and 17"),
        (lambda proto: proto.graph.node.append(proto.graph.node[0]), "name 'conv0' is given to two values"),
        (lambda proto: proto.graph.initializer.append(proto.graph.initializer[0]), "'conv0.weight' is given to two"),
        (
            lambda proto: first_dim(proto).__setattr__("dim_value", 0),
            r"has shape .0, 3, 8, 8.; all dimensions must be positive .0 means .* with -1 or a name for each",
        ),
        (lambda proto: first_dim(proto).__setattr__("dim_value", -2), "has shape .*-2, 3, 8, 8"),
        (lambda proto: proto.graph.input[0].type.tensor_type.shape.dim.pop(), "has shape .*; .N, C, H, W. or .N, F."),
        (lambda proto: proto.graph.input[0].type.tensor_type.ClearField("shape"), "is declared without a shape"),
        (lambda proto: proto.graph.input[0].ClearField("type"), "has element type UNDEFINED"),
    ],
)
@pytest.mark.every_case
def test_broken_structure(tmp_path: Path, edit: Callable[[onnx.ModelProto], object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load(edited(tmp_path / "m.onnx", edit))


@pytest.mark.parametrize("kind", ["BFLOAT16", "DOUBLE", "UINT8"])
def test_input_types(tmp_path: Path, kind: str) -> None:
    model = Model((1, 2), input_type=TensorProto.DataType.Value(kind))
    model.node("Relu", ["input"], "y")
    assert f"input 'input' has element type {kind}; export the model in float32" in refusal(
        model.save(tmp_path / "m.onnx")
    )


@pytest.mark.parametrize("op", ["If", "Loop", "Scan"])
def test_control_flow_is_refused(tmp_path: Path, op: str) -> None:
    model = Model()
    model.node(op, ["input"], "y")
    assert "control flow is not supported; export the model for one path" in refusal(model.save(tmp_path / "m.onnx"))


def test_other_channels_are_no_matter_of_size(tmp_path: Path) -> None:
    model = torch_vgg((4, "M"))
    model.input_shape = (1, 4, 8, 8)
    message = refusal(model.save(tmp_path / "m.onnx"))
    assert message.endswith(
        "weights for 3 channels, input has 4; export the model for inputs with 3 channels, in the layout (N, C, H, W)"
    )


def test_a_declared_output_is_a_value_whatever_nodes_are_called(tmp_path: Path) -> None:
    model = Model((1, 3, 8, 8))
    model.node("Relu", ["input"], "y", name="output")
    built = model.proto()
    built.graph.output[0].name = "output"
    onnx.save(built, tmp_path / "m.onnx")
    assert "declares the output 'output', which no node computes" in refusal(tmp_path / "m.onnx")


def test_an_image_without_a_batch_is_told_what_it_lacks(tmp_path: Path) -> None:
    model = Model((3, 8, 8))
    model.node("Conv", ["input", model.constant("weight", np.ones((4, 3, 3, 3), np.float32))], "y")
    message = refusal(model.save(tmp_path / "m.onnx"))
    assert message.endswith(
        "it needs (N, C, H, W), so a batch dimension in front; export the model with a batch dimension"
    )
