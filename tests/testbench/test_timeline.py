"""testbench.timeline: what instrumented kernels say, and the command."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from testbench.timeline.__main__ import timeline_command
from testbench.timeline.measure import Wanted, _stamped, measure
from testbench.timeline.stamps import WORDS
from tests.support.kernel_harness import assert_same_bits
from tests.support.onnx_models import torch_vgg
from vgg16gpu import Engine
from vgg16gpu.compiler.model import Model
from vgg16gpu.io.shipped import digits_model
from vgg16gpu.program.types import Arena
from vgg16gpu.zoo.generate import make_vgg


@pytest.mark.alone(reason="measures times of blocks")
def test_every_block_of_a_run_says_when_it_began_and_ended(device):
    """In the order of the launches, and each event after the one before."""
    wanted = Wanted(Model(digits_model()), device.facts.kind, ("fp32",), "auto", None, 4, repeats=4)
    found = measure(wanted, "fp32")
    told = [one for one in found.launches if one.blocks]
    assert len(told) >= 8
    assert found.span_us > 0
    assert found.plain_us > 0
    for one in told:
        begun, done = one.blocks.times[:, 0], one.blocks.times[:, 4]
        assert not np.isnan(begun).any()
        assert not np.isnan(done).any()
        present = np.where(np.isnan(one.blocks.times), -np.inf, one.blocks.times)
        assert (np.maximum.accumulate(present, axis=1)[:, -1] <= done + 0.1).all()
        assert (done >= begun).all()
    ends = [np.nanmax(one.blocks.times) for one in told]
    assert ends == sorted(ends)


@pytest.mark.slow(reason="test_the_command runs them")
def test_instrumented_kernels_compute_the_same_bits(device):
    x = np.random.default_rng(3).standard_normal((3, 1, 32, 32)).astype(np.float32)
    with Engine(digits_model(), device=device.facts.kind, batch=3) as engine:
        right = engine.run(x)
        steps, places, count = _stamped(engine.program.all_steps())
        assert sum(place is not None for place in places) >= 8
        engine.device.build({step.kernel for step in steps})
        room = engine.device.allocate(8 * WORDS * count)
        (output,) = engine.program.outputs
        engine.device.zero(engine.executor._bases[Arena.ACTIVATIONS] + output.pointer.offset, output.nbytes)
        engine.executor.bind(steps, beside=room)()
        engine.device.synchronize()
        assert_same_bits(engine.executor.read(output), right)
        engine.device.free(room)


@pytest.mark.gpu
@pytest.mark.alone(reason="measures times of blocks")
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("batch", [1, 8])
def test_kernels_of_hopper_tell_too(hopper, tmp_path, precision, batch):
    del hopper
    path = tmp_path / "wide.onnx"
    make_vgg(path, variant="vgg16", size=64, width=64, hidden=512, classes=100)
    found = measure(Wanted(Model(path), "cuda", (precision,), "auto", None, batch, repeats=10), precision)
    assert not [one.kernel for one in found.launches if one.blocks is None and "wgmma" in one.kernel]
    for one in found.launches:
        if one.blocks:
            assert not np.isnan(one.blocks.times[:, 0]).any()
            assert not np.isnan(np.nanmax(one.blocks.times[:, 2:], axis=1)).any()
    assert 0.3 * found.plain_us < found.span_us < 3 * found.plain_us + 50


@pytest.mark.slow(reason="a program of the authors; tests of the GPU measure with it")
def test_the_command(tmp_path):
    output, drawn = tmp_path / "t.json", tmp_path / "t.html"
    model = torch_vgg((4, "M")).save(tmp_path / "m.onnx")
    command = [str(model), "--device", "cpu", "--page", str(drawn), "--output", str(output)]
    done = CliRunner().invoke(timeline_command, command)
    assert done.exit_code == 0, done.output
    assert "conv 3x3 3->4 + relu" in done.output
    assert drawn.read_text().startswith("<!doctype html>")
    (told,) = json.loads(output.read_text())["timelines"]
    assert (told["precision"], told["batch"]) == ("fp32", 1)
    assert told["launches"][0]["blocks"] > 0
