"""`info`: the published figures of VGG16, and memory that an engine then really takes. No weights are needed."""

import json
from dataclasses import replace

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

from tests.support.onnx_models import torch_vgg
from vgg16gpu.cli import cli
from vgg16gpu.compiler.compile import SAMPLES
from vgg16gpu.compiler.graph.ops import Relu
from vgg16gpu.compiler.vgg.architecture import Vgg
from vgg16gpu.devices.facts import H200
from vgg16gpu.errors import DeviceError
from vgg16gpu.io.shipped import digits_model
from vgg16gpu.runtime.engine import Engine


@pytest.fixture
def h200(monkeypatch):
    """`--device cuda` plans for it, whatever GPU there is."""

    def nothing():
        raise DeviceError("no GPU")

    monkeypatch.setattr("vgg16gpu.devices.facts._gpu_facts", nothing)


def hollow(path, **options):
    """A VGG whose weights are a sparse file of zeros: 553 MB that take no room."""
    net = Vgg("vgg16", **options)
    graph = onnx.GraphProto()
    graph.CopyFrom(net.graph())
    offset = 0
    for name, shape in (parameter for layer in net.layers for parameter in layer.parameters):
        tensor = graph.initializer.add(name=name, dims=shape, data_type=TensorProto.FLOAT)
        tensor.data_location = TensorProto.EXTERNAL
        nbytes = 4 * int(np.prod(shape))
        for key, value in (("location", "zeros.bin"), ("offset", offset), ("length", nbytes)):
            tensor.external_data.add(key=key, value=str(value))
        offset += nbytes
    with (path.parent / "zeros.bin").open("wb") as file:
        file.truncate(offset)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def info(*args):
    result = CliRunner().invoke(cli, ["info", *map(str, args)])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_vgg16(tmp_path):
    path = hollow(tmp_path / "vgg16.onnx", size=224)
    text = info(path, "--device", "cpu")
    assert "30.94 GFLOP" in text
    assert "138,357,544" in text
    assert "Device memory:" in text
    report = json.loads(info(path, "--device", "cpu", "--json"))
    memory = report["memory"]
    assert report["parameters"] == 138_357_544
    assert memory["device_nbytes"] == memory["weights_nbytes"] + memory["activations_nbytes"]
    assert 4 * 138_357_544 <= memory["weights_nbytes"] <= 4 * 138_357_544 * 1.001
    # The largest map (64 channels) and its pooled successor at least; room to split sums on many cores at most.
    largest = 4 * 64 * 224 * 224
    assert 1.25 * largest <= memory["activations_nbytes"] <= 4 * largest
    assert [layer["shape"][2] for layer in report["layers"] if layer["op"] == "Pool"][:5] == [
        224 >> i for i in range(1, 6)
    ]


@pytest.mark.usefixtures("h200")
def test_pairs_have_a_second_pass():
    report = json.loads(info(digits_model(), "--device", "cuda", "--json"))
    second = report["second_pass"]
    assert second["samples"] == SAMPLES
    assert 0 < second["activations_nbytes"] <= report["memory"]["activations_nbytes"]
    assert 0 < second["calibration_nbytes"] <= report["memory"]["activations_nbytes"]
    text = info(digits_model(), "--device", "cuda")
    assert f"fixed on {SAMPLES} typical inputs" in text
    assert "run again in float32 arithmetic" in text
    for others in (("--device", "cpu"), ("--device", "cuda", "--precision", "fp16")):
        assert json.loads(info(digits_model(), *others, "--json"))["second_pass"] is None
        assert "again" not in info(digits_model(), *others)


def test_several_batch_sizes_are_one_engine():
    report = json.loads(info("digits", "--device", "cpu", "--batch", "4,1", "--json"))
    with Engine("digits", device="cpu", batch=(1, 4)) as engine:
        assert report["memory"]["device_nbytes"] == engine.plan.device_nbytes
    assert report["batches"] == [1, 4]
    assert report["input"]["shape"][0] == 4
    assert report["flop"] == 4 * json.loads(info("digits", "--device", "cpu", "--json"))["flop"]
    shown = info("digits", "--device", "cpu", "--batch", "1,2,4")
    assert "Batch 4 is shown; the engine runs 1, 2 too, in the same memory" in shown
    assert "is shown" not in info("digits", "--device", "cpu", "--batch", "4")


def test_a_card_is_named_by_its_number(monkeypatch):
    asked = []
    monkeypatch.setattr("vgg16gpu.devices.facts._gpu_facts", lambda ordinal=0: asked.append(ordinal) or H200)
    assert "Plan for NVIDIA H200" in info("digits", "--device", "cuda:3", "--kernels", "ffma")
    assert asked == [3]
    monkeypatch.undo()
    result = CliRunner().invoke(cli, ["info", "digits", "--device", "cuda:99"])
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)


def test_what_sizes_a_model_takes(tmp_path):
    path = hollow(tmp_path / "vgg16.onnx", size=224)
    whole, cut = ("--device", "cpu"), ("--device", "cpu", "--outputs", "relu2_2")
    fixed = json.loads(info(path, "--json", *whole))["sizes"]
    assert "takes 25088 numbers, which 224x224 gives; give outputs=[...] that end before it" in fixed
    assert f"Image size: {fixed}" in info(path, *whole)
    assert "Image size: open: height from 2 on, width from 2 on" in info(path, *cut)
    assert json.loads(info(path, "--json", "--size", "64x48", *cut))["input"]["shape"] == [1, 3, 64, 48]


def refused_model(path):
    """A model that four nodes keep from running, two of them for the same reason."""
    model = torch_vgg((4, "M"))
    model.node("Det", ["output"], "d1", name="no [bold] such")
    model.node("STFT", ["d1"], "d2")
    model.nodes.append(helper.make_node("QGemm", ["d2"], ["d3"], "q", domain="com.microsoft"))
    model.batch_norm("d3", "d4", 5, training_mode=1)
    proto = model.proto()
    proto.opset_import.add(domain="com.microsoft", version=1)
    path.write_bytes(proto.SerializeToString())
    return path


REFUSED = [
    ("no [bold] such", "Det", "17", "this operator is not supported", "export the model without it"),
    ("/d2", "STFT", "17", "this operator is not supported", "export the model without it"),
    ("q", "com.microsoft.QGemm", "1", "operators of domain 'com.microsoft' are not supported", "export with plain"),
    ("/d4", "BatchNormalization", "17", "training_mode", "export with model.eval()"),
]


def test_a_refused_model_is_explained(tmp_path):
    path = refused_model(tmp_path / "m.onnx")
    for arguments in ([], ["--graph"]):
        result = CliRunner().invoke(cli, ["info", str(path), *arguments])
        assert (result.exit_code, result.stderr) == (1, "")
        assert "m.onnx (0.0" in result.stdout
        assert "is refused\n4 nodes are not supported:" in result.stdout
        rows = [[cell.strip() for cell in line.split("│")] for line in result.stdout.splitlines() if "│" in line]
        for node, op, opset, reason, remedy in REFUSED:
            row = next(row for row in rows if row[2] == node)
            assert (row[1], row[3]) == (op, opset)
            assert row[4].startswith(reason)
            assert row[5].startswith(remedy)
            assert f"- {remedy}" in result.stdout
        assert "- export the model without it (2 nodes)" in result.stdout
        assert "(1 node)" in result.stdout
        assert "\nSupported operators: Add, " in result.stdout


def passes(path, *arguments):
    report = json.loads(info(path, "--graph", "--json", *arguments))
    return report, {stage["pass"]: stage for stage in report["passes"]}


def test_graph_as_text(tmp_path):
    path = torch_vgg((4, "M"), norm=True).save(tmp_path / "m.onnx")
    text = info(path, "--graph")
    _, found = passes(path)
    assert f"Graph as loaded: {found['load']['op_count']} ops\n" in text
    assert "flatten_to_reshape: nothing to do\n" in text
    before = found["fuse_relu"]["op_count"] + 3
    assert f"fuse_relu: {before} ops -> {before - 3} ops; 3 changed\n" in text
    _, _, section = text.partition("fuse_max_pool: ")
    lines = [[cell.strip() for cell in line.split("│")] for line in section.splitlines() if "│" in line]
    assert lines[0][1:-1] == ["Conv (relu, pool)", "avgpool", "input", "1x4x4x4", "Conv (relu)", "relu0"]
    assert lines[1][1:-1] == ["", "", "", "", "Pool (max)", "avgpool"]
    assert f"Graph to be planned: 4 ops, from {found['load']['op_count']} ops\n" in text
    assert "Plan for" not in text


def test_graph_shows_ops_that_appear_and_disappear(tmp_path, monkeypatch):
    def swap_the_last(graph, keep):
        """Another last op.

        And more.
        """
        del keep
        made = Relu(graph.ops[-1].x, "made", ("made",))
        return replace(graph, ops=(*graph.ops[:-1], made), outputs=("made",))

    monkeypatch.setattr("vgg16gpu.cli.info.graph.IMAGE_PASSES", (swap_the_last,))
    path = torch_vgg((4, "M")).save(tmp_path / "m.onnx")
    _, found = passes(path)
    stage = found["swap_the_last"]
    assert stage["what"] == "Another last op."
    assert stage["ops"] == [{"op": "Relu", "value": "made", "reads": ["fc7.relu"], "shape": [1, 7], "was": []}]
    assert stage["dropped"] == [{"op": "Gemm", "value": "output", "reads": ["fc7.relu"]}]
    cells = [[cell.strip() for cell in line.split("│")][1:-1] for line in info(path, "--graph").splitlines()]
    assert ["Relu", "made", "fc7.relu", "1x7", "new", ""] in cells
    assert ["dropped", "", "", "", "Gemm", "output"] in cells
