"""LeNet with its convolutions by each version: on the host, and by variants on a device."""

from contextlib import closing

from tests.lab.lenet.small import EFFORT, VARIANTS
from vgg16gpu.bench.measure.timing import summarise
from vgg16gpu.checks.accuracy import layer_error, score_error
from vgg16gpu_lab.lenet.columns import ColumnsOnDevice
from vgg16gpu_lab.lenet.forward import OnDevice, Sequential, activations, scores_of_all, timed
from vgg16gpu_lab.measure.measure import Status, verdict


def versions_of(device, net, batch):
    """Versions of the experiment on the host and on the device, with a bias of their own and without, open."""
    yield "sequential-cpu", Sequential(net)
    with closing(ColumnsOnDevice(device, net, batch)) as columns:
        yield "im2col-alone", columns
    for name in ("tiled-shared", "constant-weights", "direct-chw"):  # test_variants.py has each
        with closing(OnDevice(device, net, VARIANTS[name], batch)) as version:
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


def test_a_wrong_score_has_no_time():
    judged = verdict(1e-3, "scores", 1e-5, "the right ones")
    assert judged.reason == "error 0.001 against the right ones, allowed is 1e-05: no time"
    assert judged.status is Status.WRONG
    assert timed(judged, summarise([1.0])).compute is None
    assert verdict(float("nan"), "scores", 1e-5).status is Status.WRONG
    assert timed(verdict(1e-7, "scores", 1e-5), summarise([1.0])).compute.warm.median_s == 1.0
