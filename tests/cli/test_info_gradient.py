"""`info --gradient`: the memory that an engine then really takes for its gradient."""

import json

from click.testing import CliRunner

from tests.cli.test_info import info
from tests.support.onnx_models import torch_vgg
from vgg16gpu.cli import cli
from vgg16gpu.io.shipped import digits_model
from vgg16gpu.runtime.engine import Engine


def test_what_a_gradient_takes_is_what_an_engine_takes_for_it(tmp_path):
    path = torch_vgg((4, "M")).save(tmp_path / "m.onnx")
    asked = (path, "--device", "cpu", "--batch", 3)
    told = json.loads(info(*asked, "--gradient", "--json"))["gradient"]
    found = []
    for gradient in (False, True):
        with Engine(path, device="cpu", batch=3, gradient=gradient) as engine:
            found.append(sum(engine.device._heap._sizes.values()))  # what it has allocated and not freed
    assert found[1] - found[0] == told["memory"]["device_nbytes"]
    assert told["memory"]["shared_weights_nbytes"] > 0
    shown = info(*asked, "--gradient")
    assert "Gradient to the input, batch 3: " in shown
    assert json.loads(info(*asked, "--json"))["gradient"] is None


def test_gradients_in_int8_are_refused():
    result = CliRunner().invoke(cli, ["info", str(digits_model()), "--gradient", "--precision", "int8"])
    assert result.exit_code == 2
    assert "gradients are computed in fp32, fp16, bf16" in result.stderr
