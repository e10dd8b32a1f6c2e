"""`info`: the published figures of VGG16, and memory that an engine then really takes. No weights are needed."""

import json
import time
import tracemalloc
from dataclasses import replace
from itertools import pairwise

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

from tests.support.onnx_models import torch_vgg
from vgg16gpu.cli import cli
from vgg16gpu.compiler.choices import PRECISIONS
from vgg16gpu.compiler.compile import SAMPLES
from vgg16gpu.compiler.graph.ops import Relu
from vgg16gpu.compiler.graph.passes import IMAGE_PASSES, simplify
from vgg16gpu.compiler.onnx.load import load
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


@pytest.mark.parametrize(("size", "gflop"), [(224, "30.94 GFLOP"), (244, "36.20 GFLOP")])
def test_vgg16(tmp_path, size, gflop):
    path = hollow(tmp_path / "vgg16.onnx", size=size)
    text = info(path, "--device", "cpu")
    assert gflop in text
    assert "138,357,544" in text
    assert "Device memory:" in text
    report = json.loads(info(path, "--device", "cpu", "--json"))
    memory = report["memory"]
    assert report["parameters"] == 138_357_544
    assert memory["device_nbytes"] == memory["weights_nbytes"] + memory["activations_nbytes"]
    assert 4 * 138_357_544 <= memory["weights_nbytes"] <= 4 * 138_357_544 * 1.001
    # The largest map (64 channels) and its pooled successor at least; room to split sums on many cores at most.
    largest = 4 * 64 * size * size
    assert 1.25 * largest <= memory["activations_nbytes"] <= 4 * largest
    assert [layer["shape"][2] for layer in report["layers"] if layer["op"] == "Pool"][:5] == [
        size >> i for i in range(1, 6)
    ]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_stored_value_has_a_place(device, precision):
    report = json.loads(info(digits_model(), "--device", device, "--precision", precision, "--json"))
    for value in report["values"]:
        assert value["offset"] + value["nbytes"] <= report["memory"]["activations_nbytes"]
        assert value["offset"] % 256 == 0


STORED = {"fp32": "F16_PAIR", "fp16": "F16", "bf16": "BF16", "int8": "U8"}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.usefixtures("h200")
def test_what_an_h200_runs_and_stores_in_each_precision(precision):
    options = ("--device", "cuda", "--precision", precision)
    report = json.loads(info(digits_model(), *options, "--json"))
    assert (report["device"], report["precision"], report["kernels"]) == (H200.name, precision, "auto")
    maps = [value for value in report["values"] if "/features/" in value["name"]]
    assert {value["element"] for value in maps} == {STORED[precision]}
    assert maps[-1]["kernels"] == "wgmma"
    output = report["values"][-1]
    assert (output["name"], output["element"]) == ("output", "F32")
    text = info(digits_model(), *options)
    assert f"Plan for {H200.name}, precision {precision}, kernels auto" in text
    row = next(line for line in text.splitlines() if maps[-1]["name"] in line and "wgmma" in line)
    assert STORED[precision] in row


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


@pytest.mark.parametrize("more", [(), ("--graph",)])
def test_other_outputs_need_less(more, tmp_path):
    path = hollow(tmp_path / "vgg16.onnx", size=32)
    whole, cut = (json.loads(info(path, *more, *options, "--json")) for options in ((), ("--outputs", "relu1_2")))
    assert [output["shape"] for output in cut["outputs"]] == [[1, 64, 32, 32]]
    assert cut["parameters"] == 3 * 64 * 9 + 64 + 64 * 64 * 9 + 64 < whole["parameters"]
    result = CliRunner().invoke(cli, ["info", str(path), "--outputs", "nothing"])
    assert result.exit_code == 2
    assert "nothing" in result.stderr


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


def test_a_refused_model_as_json(tmp_path):
    path = refused_model(tmp_path / "m.onnx")
    result = CliRunner().invoke(cli, ["info", str(path), "--json"])
    assert (result.exit_code, result.stderr) == (1, "")
    report = json.loads(result.stdout)
    assert (report["model"], report["file_nbytes"]) == (str(path), path.stat().st_size)
    found = [tuple(node[key] for key in ("node", "op", "opset", "reason", "remedy")) for node in report["refused"]]
    for got, expected in zip(found, REFUSED, strict=True):
        assert got[:3] == expected[:3]
        assert got[3].startswith(expected[3])
        assert got[4].startswith(expected[4])
    assert {"Conv", "Gemm", "MaxPool"} <= set(report["supported_operators"])
    assert json.loads(info(digits_model(), "--device", "cpu", "--json"))["refused"] == []


def test_what_is_wrong_with_a_whole_file_is_one_line(tmp_path):
    path = torch_vgg().save(tmp_path / "m.onnx", opset=3)
    for arguments in ([str(path)], [str(path), "--json"], [str(tmp_path / "none.onnx"), "--graph"]):
        result = CliRunner().invoke(cli, ["info", *arguments])
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith(f"vgg16gpu: {arguments[0]}: ")
        assert result.stderr.count("\n") == 1


def passes(path, *arguments):
    report = json.loads(info(path, "--graph", "--json", *arguments))
    return report, {stage["pass"]: stage for stage in report["passes"]}


def test_graph_shows_what_each_pass_folds(tmp_path):
    path = torch_vgg((4, "M"), norm=True).save(tmp_path / "m.onnx")
    report, found = passes(path, "--batch", "2")
    assert list(found) == ["load", *(step.__name__ for step in IMAGE_PASSES)]
    assert report["input"]["shape"] == [2, 3, 8, 8]
    assert "steps" not in report
    assert [row["op"] for row in found["load"]["ops"]] == [
        type(op).__name__.replace("Pool", "Pool (max)") for op in load(path).ops
    ]
    assert found["load"]["ops"][0] == {"op": "Conv", "value": "conv0", "reads": ["input"], "shape": [2, 4, 8, 8]}
    (folded,) = found["fold_batch_norm"]["ops"]
    assert (folded["op"], folded["value"], folded["shape"]) == ("Conv", "norm0", [2, 4, 8, 8])
    assert [(source["op"], source["value"]) for source in folded["was"]] == [
        ("Conv", "conv0"),
        ("BatchNorm", "norm0"),
    ]
    assert [row["op"] for row in found["fuse_relu"]["ops"]] == ["Conv (relu)", "Gemm (relu)", "Gemm (relu)"]
    (pooled,) = found["fuse_max_pool"]["ops"]
    assert (pooled["op"], pooled["shape"]) == ("Conv (relu, pool)", [2, 4, 4, 4])
    assert [source["value"] for source in pooled["was"]] == ["relu0", "avgpool"]
    assert [row["op"] for row in found["fold_flatten"]["ops"]] == ["Gemm (relu, flattens)"]
    counts = [stage["op_count"] for stage in report["passes"]]
    assert counts[0] == len(load(path).ops)
    assert counts[-1] == len(simplify(load(path)).ops) == 4
    for before, stage in pairwise(report["passes"]):
        swallowed = sum(len(row["was"]) - 1 for row in stage["ops"]) + len(stage["dropped"])
        assert before["op_count"] - swallowed == stage["op_count"]


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


def test_graph_names_what_only_reads_another_value(tmp_path):
    model = torch_vgg((4, "M"))
    model.nodes[4].input[0] = "same"  # Flatten
    model.nodes.insert(4, helper.make_node("Identity", ["avgpool"], ["same"], "same"))
    _, found = passes(model.save(tmp_path / "m.onnx", ["avgpool", "output"]))
    made, moved = found["drop_identity"]["ops"]
    assert [source["value"] for source in made["was"]] == ["pool1", "avgpool", "same"]
    assert (made["op"], made["value"], moved["op"]) == ("Pool (max)", "avgpool", "Flatten")
    assert [source["value"] for source in moved["was"]] == ["flatten"]
    assert (moved["was"][0]["reads"], moved["reads"]) == (["same"], ["avgpool"])


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


def test_graph_of_a_large_file_reads_no_weights(tmp_path):
    path = hollow(tmp_path / "vgg16.onnx", size=224)
    tracemalloc.start()
    start = time.process_time()
    info(path, "--graph")
    elapsed = time.process_time() - start
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert elapsed < 5
    assert peak < 50e6
