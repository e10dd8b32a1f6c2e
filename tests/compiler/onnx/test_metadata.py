"""Metadata of model files."""

from __future__ import annotations

import tracemalloc

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.onnx_models import torch_vgg
from vgg16gpu.compiler.model import Model
from vgg16gpu.compiler.onnx.metadata import PREPROCESS_KEY, encoded
from vgg16gpu.errors import ModelError
from vgg16gpu.io.preprocessing import Preprocess


def save(path, metadata, values=1):
    weight = numpy_helper.from_array(np.ones(values, np.float32), "w")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [values]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", ends[:1], ends[1:], [weight])
    model = helper.make_model(graph)
    helper.set_model_props(model, metadata)
    path.write_bytes(model.SerializeToString())


@pytest.mark.parametrize("metadata", [{}, {"vgg16gpu.note": "Grüße"}, {"a": "", "b": "[1, 2]"}])
def test_reads_all_entries(metadata, tmp_path):
    save(tmp_path / "m.onnx", metadata)
    assert Model(tmp_path / "m.onnx").metadata == metadata


def test_does_not_read_the_weights(tmp_path):
    save(tmp_path / "m.onnx", {"a": "b"}, values=10_000_000)
    tracemalloc.start()
    try:
        assert Model(tmp_path / "m.onnx").metadata == {"a": "b"}
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_metadata_behind_a_whole_file_is_added_to_it(tmp_path):
    path = tmp_path / "m.onnx"
    save(path, {"a": "1"})
    with path.open("ab") as file:
        file.write(encoded({"b": "Grüße", "c": ""}))
    assert Model(path).metadata == {"a": "1", "b": "Grüße", "c": ""}
    onnx.checker.check_model(path)
    assert encoded({}) == b""


def test_not_a_model(tmp_path):
    (tmp_path / "m.onnx").write_text("hello")
    with pytest.raises(ModelError):
        Model(tmp_path / "m.onnx")


def test_preprocessing_of_another_number_of_channels_is_refused(tmp_path):
    model = torch_vgg()
    model.save(tmp_path / "plain.onnx")
    metadata = encoded({PREPROCESS_KEY: Preprocess.named("unit", 1).to_json()})
    (tmp_path / "m.onnx").write_bytes((tmp_path / "plain.onnx").read_bytes() + metadata)
    opened = Model(tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"its metadata 'vgg16gpu\.preprocess' is wrong: it is of 1 channels, .* 3"):
        opened.preprocess(opened.graph(), (1, 3, 8, 8))
