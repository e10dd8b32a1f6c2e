"""LeNet with its convolutions by each version: on the host, and by variants on a device."""

from contextlib import closing

import numpy as np

from tests.lab.lenet.small import EFFORT, VARIANTS
from vgg16gpu import Engine
from vgg16gpu.bench.measure.timing import summarise
from vgg16gpu.checks.accuracy import layer_error, score_error
from vgg16gpu_lab.lenet import train as lenet_train
from vgg16gpu_lab.lenet.columns import ColumnsOnDevice
from vgg16gpu_lab.lenet.forward import OnDevice, Sequential, activations, scores_of_all, timed
from vgg16gpu_lab.lenet.net import LeNet, Shape
from vgg16gpu_lab.measure.measure import Status, verdict


def test_of_parallel_im2col_the_device_makes_the_columns_alone(device, net, x, monkeypatch):
    """No product, nothing written beside the columns; the host multiplies them as the sequential version does."""
    bound, launched = {}, []

    def bind(steps, arenas, real=device.bind):
        def launch():
            launched.extend(step.kernel.name for step in steps)
            bound[launch]()

        bound[launch] = real(steps, arenas)
        return launch

    monkeypatch.setattr(device, "bind", bind)
    monkeypatch.setattr(device, "unbind", lambda launch, real=device.unbind: real(bound[launch]))
    with closing(ColumnsOnDevice(device, net, 8)) as version:
        scores = scores_of_all(net, version, x[:16], 8)
        assert set(launched) == {"im2col_taps"}
        assert len(launched) == 4  # two batches, two layers
        assert np.array_equal(scores, scores_of_all(net, Sequential(net), x[:16], 8))
        assert [layer.trespass() for layer in version.layers.values()] == ["", ""]


def versions_of(device, net, batch):
    """Every version of the experiment, by name, open."""
    yield "sequential-cpu", Sequential(net)
    with closing(ColumnsOnDevice(device, net, batch)) as columns:
        yield "im2col-alone", columns
    for name, variant in VARIANTS.items():
        with closing(OnDevice(device, net, variant, batch)) as version:
            yield name, version


def test_every_version_is_right_within_the_net_and_adds_the_bias(device, net, x):
    """Also in a last batch that is not full, and in both layers in turns; the bias within the kernel or on the host."""
    maps, expected_scores = activations(net, x[:8]), net.expected(x)
    for name, version in versions_of(device, net, 8):
        assert score_error(scores_of_all(net, version, x, 8), expected_scores).max() < 1e-5, name
        for layer, bias in (("conv1", net.parameters["conv1.bias"]), ("conv2", net.parameters["conv2.bias"])):
            y, expected = version.convolve(layer, maps[layer].x), maps[layer].expected
            assert layer_error(y, expected) < 1e-5, name
            assert layer_error(y, expected - bias.reshape(-1, 1, 1)) > 1e-3, name
            assert version.measure(layer, maps[layer], EFFORT).error < 1e-5, name


def test_an_odd_image_works_in_every_hand(tmp_path, device):
    random = np.random.default_rng(1)
    shape = Shape(15)  # maps of 15, 7, 3, 1
    net = LeNet(shape, lenet_train.initial(shape, random), 0.5, 0.25)
    net.write(tmp_path / "odd.onnx")
    x = random.standard_normal((3, 1, 15, 15), np.float32)
    with Engine(tmp_path / "odd.onnx", device="cpu") as engine:
        assert score_error(engine.run(x), net.expected(x)).max() < 1e-5
    with closing(OnDevice(device, net, VARIANTS["direct-chw"], 3)) as version:
        assert score_error(scores_of_all(net, version, x, 3), net.expected(x)).max() < 1e-5


def test_a_wrong_score_has_no_time():
    judged = verdict(1e-3, "scores", 1e-5, "the right ones")
    assert judged.reason == "error 0.001 against the right ones, allowed is 1e-05: no time"
    assert judged.status is Status.WRONG
    assert timed(judged, summarise([1.0])).compute is None
    assert verdict(float("nan"), "scores", 1e-5).status is Status.WRONG
    assert timed(verdict(1e-7, "scores", 1e-5), summarise([1.0])).compute.warm.median_s == 1.0
