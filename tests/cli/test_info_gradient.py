"""`info --gradient`: the memory that an engine then really takes for its gradient."""

import json

import pytest
from click.testing import CliRunner

from tests.cli.test_info import info
from vgg16gpu.cli import cli
from vgg16gpu.io.shipped import digits_model
from vgg16gpu.runtime.engine import Engine


@pytest.mark.first_case(reason="runtime/plans/test_memory_of_gradients.py has the memory")
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_what_a_gradient_takes_is_what_an_engine_takes_for_it(precision):
    asked = ("--device", "cpu", "--batch", 3, "--precision", precision)
    told = json.loads(info(digits_model(), *asked, "--gradient", "--json"))["gradient"]
    found = []
    for gradient in (False, True):
        with Engine(digits_model(), device="cpu", batch=3, precision=precision, gradient=gradient) as engine:
            found.append(sum(engine.device._heap._sizes.values()))  # what it has allocated and not freed
    assert found[1] - found[0] == told["memory"]["device_nbytes"]
    assert told["memory"]["shared_weights_nbytes"] > 0
    shown = info(digits_model(), *asked, "--gradient")
    assert "Gradient to the input, batch 3: " in shown
    assert json.loads(info(digits_model(), *asked, "--json"))["gradient"] is None


def test_gradients_in_int8_are_refused():
    result = CliRunner().invoke(cli, ["info", str(digits_model()), "--gradient", "--precision", "int8"])
    assert result.exit_code == 2
    assert "gradients are computed in fp32, fp16, bf16" in result.stderr
