"""compiler/quantization/scale_file.py: scales beside a model, and everything that makes them unfit."""

import json
import os
import shutil

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from vgg16gpu.compiler.model import Model
from vgg16gpu.compiler.quantization.scale_file import (
    read_preprocess,
    read_scales,
    scales_path,
    write_scales,
)
from vgg16gpu.compiler.quantization.scheme import Scale, quantised_inputs
from vgg16gpu.errors import ModelError
from vgg16gpu.io.preprocessing import Preprocess
from vgg16gpu.io.shipped import digits_model


@pytest.fixture
def model(tmp_path):
    return shutil.copy(digits_model(), tmp_path / "net.onnx")


def graph_of(model, outputs=None):
    return Model(model).graph(outputs=outputs)


def written(model):
    graph = graph_of(model)
    random = np.random.default_rng(2)
    scales = {name: Scale(float(np.float32(random.random())), s) for name, s in quantised_inputs(graph).items()}
    write_scales(model, graph, scales, method="a guess", images=7, images_digest="0" * 64)
    return scales


def changed(model, change):
    path = scales_path(model)
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_the_same_scales_come_back(model):
    scales = written(model)
    assert scales_path(model).name == "net.onnx.int8.json"
    assert read_scales(model, graph_of(model)) == scales
    content = json.loads(scales_path(model).read_text())
    assert (content["method"], content["images"], content["images_sha256"]) == ("a guess", 7, "0" * 64)


def test_what_was_done_to_pictures_is_beside_them(model):
    scales = written(model)
    assert read_preprocess(model) is None
    preprocess, graph = Preprocess.named("symmetric", 1), graph_of(model)
    write_scales(model, graph, scales, method="", images=1, images_digest="", preprocess=preprocess)
    assert read_preprocess(model) == preprocess
    assert read_scales(model, graph) == scales
    changed(model, lambda content: content.pop("preprocess"))  # as older versions wrote it
    assert read_preprocess(model) is None
    assert read_scales(model, graph) == scales
    changed(model, lambda content: content.update(preprocess="keras"))
    with pytest.raises(ModelError, match=r"its 'preprocess' is broken .*; `python -m vgg16gpu calibrate"):
        read_preprocess(model)


def test_a_missing_file_says_how_to_make_it(model):
    with pytest.raises(
        ModelError, match=r"net.onnx.int8.json does not exist; `python -m vgg16gpu calibrate .*net.onnx"
    ):
        read_scales(model, graph_of(model))


@pytest.mark.parametrize("text", ["", "[]", "{", '{"version": 1, "values": {}}', '{"version": 2}'])
def test_files_that_are_none(model, text):
    scales_path(model).write_text(text)
    with pytest.raises(ModelError, match=r"is no file of int8 scales, version 2; .* calibrate"):
        read_scales(model, graph_of(model))


def test_a_missing_value_is_named(model):
    written(model)
    changed(model, lambda content: content["values"].pop("input"))
    with pytest.raises(ModelError, match=r"has no scale for value 'input'.* calibrate"):
        read_scales(model, graph_of(model))


@pytest.mark.parametrize(
    "entry",
    [
        {"step": 0.0},
        {"step": -1.0},
        {"step": 1e-40},
        {"step": 1e300},
        {"step": float("nan")},
        {"step": 1},
        {"step": None},
        {"signed": 0},
    ],
)
@pytest.mark.every_case
def test_broken_entries_are_named(model, entry):
    written(model)
    changed(model, lambda content: content["values"]["input"].update(entry))
    with pytest.raises(ModelError, match=r"the scale of value 'input' is broken .* calibrate"):
        read_scales(model, graph_of(model))


@pytest.mark.parametrize("name", ["features.2.weight", "classifier.3.bias"])
def test_other_weights_are_refused(model, name):
    written(model)
    proto = onnx.load(model)
    tensor = next(tensor for tensor in proto.graph.initializer if tensor.name.endswith(name))
    numbers = np.array(numpy_helper.to_array(tensor))
    numbers.flat[-1] = np.nextafter(numbers.flat[-1], np.float32(9))
    tensor.CopyFrom(numpy_helper.from_array(numbers, tensor.name))
    onnx.save(proto, model)
    with pytest.raises(ModelError, match=r"belongs to other weights than the model has now .* calibrate"):
        read_scales(model, graph_of(model))


def test_a_file_that_nobody_has_written_since_is_not_read_again(model, monkeypatch):
    scales = written(model)
    graph = graph_of(model)
    copy = shutil.copy(model, model.with_name("copy.onnx"))  # later, so that its weights are looked at
    shutil.copy(scales_path(model), scales_path(copy))
    assert read_scales(copy, graph) == scales
    monkeypatch.setattr(
        "vgg16gpu.compiler.quantization.scale_file.weight_digests", lambda _: pytest.fail("the weights were read")
    )
    assert read_scales(model, graph) == scales
    for looked_at in (copy, model):
        os.utime(model, ns=(1, 1))
        with pytest.raises(pytest.fail.Exception, match="the weights were read"):
            read_scales(looked_at, graph)


def test_weights_in_files_beside_the_model_are_always_looked_at(model):
    """The model file stays as it is when these are written."""
    proto = onnx.load(model)
    onnx.save(proto, model, save_as_external_data=True, location="weights.bin", size_threshold=0)
    written(model)
    assert json.loads(scales_path(model).read_text())["model"] is None
    data = model.with_name("weights.bin")
    data.write_bytes(bytes(1024) + data.read_bytes()[1024:])
    with pytest.raises(ModelError, match="belongs to other weights"):
        read_scales(model, graph_of(model))
