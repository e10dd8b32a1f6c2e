"""What a user may ask for, and what is refused before a device is touched."""

import re

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

from tests.support.onnx_models import Model
from vgg16gpu.cli import cli
from vgg16gpu.compiler.compile import EngineOptions, compile_model
from vgg16gpu.compiler.graph.graph import Graph, GraphInput
from vgg16gpu.compiler.graph.ops import Transpose
from vgg16gpu.compiler.model import Model as OnnxModel
from vgg16gpu.errors import InputError, ModelError
from vgg16gpu.program.types import DeviceFacts
from vgg16gpu.runtime.engine import Engine
from vgg16gpu.runtime.session import Session

FACTS = DeviceFacts("cpu", "a processor", 2, (0, 0), 232448, 1 << 34, 1 << 33)


def plan(**wanted):
    return compile_model(OnnxModel("digits"), EngineOptions(**wanted), FACTS)


@pytest.mark.parametrize("batch", [3, np.int64(3), (3,), [np.int32(3), 3], np.array([3])], ids=repr)
def test_any_integer_is_a_batch(batch):
    assert [program.batch for program in plan(batch=batch).programs] == [3]


@pytest.mark.parametrize("batch", [0, -1, 65536, 1.5, None, True, "1", (), (1, 2.0), (1, True)], ids=repr)
def test_anything_else_is_refused(batch):
    with pytest.raises(InputError, match="give one size, or several, each between 1 and 65535"):
        plan(batch=batch)


@pytest.mark.parametrize("size", [32.0, (32, 32, 32), (), "32", (32, None)], ids=repr)
def test_sizes_are_one_or_two_integers(size):
    with pytest.raises(InputError, match="one number of pixels, or height and width"):
        plan(size=size)


@pytest.mark.parametrize(
    "wanted",
    [{"mean": "abc"}, {"mean": 0.5}, {"mean": (np.nan,)}, {"std": (np.inf,)}, {"std": (0.0,)}, {"mean": (0.1, 0.2)}],
    ids=repr,
)
def test_normalisation_is_one_finite_number_a_channel(wanted):
    with pytest.raises(InputError, match="one finite number for each of 1 channels"):
        plan(**wanted)


def test_other_precisions_models_and_outputs_are_refused():
    with pytest.raises(ModelError, match="'int4' is not supported; accepted: fp32, fp16, bf16"):
        plan(precision="int4")
    with pytest.raises(ModelError, match="kernels 'cublas' are not known; accepted: auto, wgmma, mma, ffma"):
        plan(kernels="cublas")
    with pytest.raises(InputError, match="outputs \\[3\\]: give names"):
        plan(outputs=[3])
    for model in (5, None, bytearray(10**6)):
        with pytest.raises(
            InputError, match=r"^model is .*; give the path of an ONNX file, 'digits', .* or a "
        ) as caught:
            OnnxModel(model)
        assert len(str(caught.value)) < 300
    for model in (b"x" * 10**6, onnx.ModelProto()):
        with pytest.raises(ModelError, match=r"^the model in memory: (is|has) "):
            OnnxModel(model)


def test_digits_is_a_model_unless_a_file_has_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert plan(precision="int8").programs[0].outputs[0].shape == (1, 10)
    with Session("digits", "cpu") as session:
        assert [value.shape for value in session.inputs] == [(None, 1, 32, 32)]
    (tmp_path / "digits").write_text("mine")
    with pytest.raises(ModelError, match="digits: is not an ONNX model"):
        OnnxModel("digits").graph()
    with pytest.raises(InputError, match="model is 5; give the path"):
        Session(5, "cpu")


def two_inputs(path, *shapes):
    """The sum of two inputs."""
    model = Model(shapes[0])
    model.node("Add", ["input", "z"], "y")
    proto = model.proto()
    proto.graph.input.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, shapes[1]))
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.mark.parametrize("shapes", [((1, 3, 8, 8), (8, 8)), ((), (1, 4))], ids=str)
def test_several_inputs_are_refused_with_a_remedy(tmp_path, shapes):
    path = two_inputs(tmp_path / "m.onnx", *shapes)
    message = f"has 2 run-time inputs, 'input' {shapes[0]} and 'z' {shapes[1]}; an engine takes one; use "
    for remedy in ("vgg16gpu.session.Session", "vgg16gpu.onnx_backend"):
        with pytest.raises(ModelError, match=re.escape(message) + ".*" + re.escape(remedy)):
            Engine(path, device="cpu")
    for command in (["info"], ["info", "--graph"], ["infer", "-", "--model"]):
        result = CliRunner().invoke(cli, [*command, str(path)], input="1 2 3")
        assert (result.exit_code, result.stdout) == (2, "")
        assert message in result.stderr


def test_the_only_input_that_is_read_is_images_or_rows(tmp_path):
    """The loader looks at the rank where a file has one input."""
    model = Model((2, 3, 4))
    model.node("Relu", ["input"], "y")
    proto = model.proto()
    proto.graph.input.append(helper.make_tensor_value_info("unread", TensorProto.FLOAT, [1]))
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError, match=r"'input' has shape \(2, 3, 4\); an engine takes \(N, C, H, W\) or \(N, F\)"):
        OnnxModel(path).graph()


def mixed(batch):
    """A model that turns a matrix, and with it the rows of its batch; of an open one the loader takes no such file."""
    model = OnnxModel("digits")
    graph = Graph(GraphInput("x", (batch, 6)), (Transpose("x", "y", ("y",), (1, 0)),), ("y",))
    model.graph = lambda *_: graph
    return model


@pytest.mark.parametrize(("batch", "fits"), [(1, True), (2, False)])
def test_images_that_are_mixed_come_one_by_one(batch, fits):
    model, options = mixed(None), EngineOptions(batch=batch)
    if fits:
        assert compile_model(model, options, FACTS).programs[0].outputs[0].shape == (6, 1)
    else:
        with pytest.raises(ModelError, match=r"Transpose 'y' mixes the images of a batch.* use batch 1"):
            compile_model(model, options, FACTS)
