"""`info`: the published figures of VGG16, and memory that an engine then really takes. No weights are needed."""

import json

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

from vgg16gpu.cli import cli
from vgg16gpu.cli.info import H200, device_facts
from vgg16gpu.devices.cache import cache_dir
from vgg16gpu.engine import Engine
from vgg16gpu.errors import DeviceError
from vgg16gpu.prepare import PRECISIONS, SAMPLES
from vgg16gpu.tuned import table
from vgg16gpu.zoo.architecture import Vgg
from vgg16gpu.zoo.digits import digits_model


@pytest.fixture
def h200(monkeypatch):
    """`--device cuda` plans for it, whatever GPU there is."""

    def nothing():
        raise DeviceError("no GPU")

    monkeypatch.setattr("vgg16gpu.cli.info._gpu_facts", nothing)


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


def test_costs_grow_with_the_batch(tmp_path):
    path = hollow(tmp_path / "vgg16.onnx", size=224)
    one, four = (json.loads(info(path, "--device", "cpu", "--batch", n, "--json")) for n in (1, 4))
    assert four["flop"] == 4 * one["flop"]
    assert four["memory"]["weights_nbytes"] == one["memory"]["weights_nbytes"]
    assert four["memory"]["activations_nbytes"] > 2 * one["memory"]["activations_nbytes"]
    assert four["input"]["shape"] == [4, 3, 224, 224]


def test_what_info_says_is_what_an_engine_takes():
    report = json.loads(info(digits_model(), "--device", "cpu", "--batch", 3, "--json"))
    with Engine(digits_model(), device="cpu", batch=3) as engine:
        assert report["memory"]["device_nbytes"] == engine.plan.device_nbytes
        assert [step["kernel"] for step in report["steps"][1:]] == [step.kernel.label for step in engine.program.steps]
    assert report["parameters"] == 204_282
    assert sum(step["flop"] for step in report["steps"]) >= report["flop"]


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
def test_kernels_can_be_chosen():
    found = {}
    for kernels in ("wgmma", "mma", "ffma"):
        report = json.loads(
            info(digits_model(), "--device", "cuda", "--precision", "fp16", "--kernels", kernels, "--json")
        )
        found[kernels] = {value["kernels"] for value in report["values"] if value["kernels"]}
        assert report["kernels"] == kernels
    assert found == {"wgmma": {"wgmma"}, "mma": {"mma"}, "ffma": {"ffma"}}


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


def test_facts_need_no_gpu():
    assert device_facts("cpu").kind == "cpu"
    assert device_facts("cpu").multiprocessors >= 1
    assert device_facts("cuda").kind == "cuda"
    assert H200.multiprocessors == 132


@pytest.mark.usefixtures("h200")
def test_an_h200_has_the_tiles_that_were_measured_on_one():
    assert device_facts("cuda") == H200
    assert device_facts("cuda").tuned == table("NVIDIA H200", cache_dir()) != {}


def test_a_size_that_the_model_forbids_is_refused():
    result = CliRunner().invoke(cli, ["info", str(digits_model()), "--size", "64"])
    assert result.exit_code == 2
    assert "fixed" in result.stderr
