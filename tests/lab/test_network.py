"""A whole network in the ways of S5: each is right, what is wrong gets no time, slow ones are not repeated."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from vgg16gpu.devices import open_device
from vgg16gpu.errors import DeviceError, KernelError
from vgg16gpu.fit import resolve_input_shape
from vgg16gpu.lab.experiment import Choice
from vgg16gpu.lab.measure import Effort, Status
from vgg16gpu.lab.network import OnnxruntimeNet, SequentialNet, measure_network, work_of
from vgg16gpu.lab.seeds import s5
from vgg16gpu.lab.stand import Stand
from vgg16gpu.lab.variants import variants
from vgg16gpu.prepare import Request, load_graph
from vgg16gpu.zoo.generate import make_vgg

IMAGES = 4
EFFORT = Effort(seconds=0.0, samples=5, limit=1.0, cold=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("network") / "vgg.onnx"
    make_vgg(path, size=37, width=4, hidden=32, classes=10)  # 37 -> 18 -> 9 -> 4 -> 2 -> 1: odd sizes on the way
    return path


@pytest.fixture(scope="module")
def graph(model):
    return load_graph(Request(model))


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(0).standard_normal((IMAGES, 3, 37, 37)).astype(np.float32)


@pytest.fixture(scope="module")
def expected(model, x):
    return OnnxruntimeNet(model).run(x)


class Fixed:
    """Gives the scores that it was made with, in turn."""

    def __init__(self, scores, last=math.inf):
        self.scores, self.last, self.runs, self.closed = scores, last, 0, 0

    def run(self, x):
        assert x.shape == (1, 3, 37, 37)
        self.runs += 1
        if self.runs > self.last:
            raise KernelError("gave up")
        return self.scores[(self.runs - 1) % len(self.scores)][np.newaxis]

    def close(self):
        self.closed += 1


def measured(running, iterations, x, expected, *, full=False, effort=EFFORT):
    return measure_network(lambda: running, iterations, x, expected, effort, full=full)


def test_one_after_the_other_on_the_host(graph, x, expected):
    net = SequentialNet(graph, (1, 3, 37, 37))
    found = measure_network(lambda: net, (1,), x, expected, replace(EFFORT, limit=math.inf), full=False)
    (once,) = found
    assert once.measurement.status is Status.RIGHT
    assert once.measurement.error < 1e-5
    assert once.measurement.compute.warm.samples == IMAGES


def test_work(graph):
    work = work_of(graph, resolve_input_shape(graph, 1, None))
    maps = {37: [(3, 4), (4, 4)], 18: [(4, 8), (8, 8)], 9: [(8, 16), (16, 16), (16, 16)]}
    maps |= {4: [(16, 32), (32, 32), (32, 32)], 2: [(32, 32)] * 3}
    convolutions = sum(9 * size * size * c * o for size, layers in maps.items() for c, o in layers)
    products = sum(a * b for a, b in pairwise([32, 32, 32, 10]))  # the last pool leaves a pixel
    assert work.flop == 2 * (convolutions + products)
    weights = sum(9 * c * o for layers in maps.values() for c, o in layers) + products
    assert work.nbytes == 4 * (weights + 3 * 37 * 37 + 10)


def test_one_iteration_is_the_checked_runs_and_more_are_capped(x, expected):
    running = Fixed(expected)
    one, five = measured(running, (1, 5), x, expected)
    assert [found.measurement.compute.warm.samples for found in (one, five)] == [IMAGES, 3]
    assert (running.runs, running.closed) == (IMAGES + 3, 1)
    assert one.measurement.checked == "scores of 4 of 4 images against onnxruntime's"
    (many,) = measured(Fixed(expected), (500,), x, expected, effort=replace(EFFORT, seconds=math.inf))
    assert many.measurement.compute.warm.samples == EFFORT.samples


def test_full_runs_all_of_them(x, expected):
    running = Fixed(expected)
    (five,) = measured(running, (5,), x, expected, full=True)
    assert five.measurement.compute.warm.samples == 5 * IMAGES
    assert running.runs == 6 * IMAGES


def test_what_takes_long_is_checked_on_one_image(x, expected):
    running = Fixed(expected)
    (one,) = measured(running, (1,), x, expected, effort=replace(EFFORT, limit=0.0))
    assert one.measurement.checked == "scores of 1 of 4 images against onnxruntime's"
    assert (running.runs, one.measurement.compute.warm.samples) == (1, 1)


@pytest.mark.parametrize("change", [lambda y: y * 1.01, lambda y: y * np.nan, lambda y: y[::-1]])
def test_wrong_scores_get_no_time(x, expected, change):
    found = measured(Fixed(change(expected)), (1, 5), x, expected)
    assert [(each.measurement.status, each.mean_s, each.measurement.compute) for each in found] == [
        (Status.WRONG, None, None)
    ] * 2
    assert "no time" in found[0].measurement.reason


@pytest.mark.parametrize(
    ("error", "status"), [(DeviceError("full"), Status.REFUSED), (KernelError("x"), Status.FAILED)]
)
def test_what_cannot_be_opened(x, expected, error, status):
    def opened():
        raise error

    (found,) = measure_network(opened, (1,), x, expected, EFFORT, full=False)
    assert (found.measurement.status, found.measurement.reason, found.mean_s) == (status, str(error), None)


@pytest.mark.parametrize("last", [0, IMAGES])
def test_what_fails_on_the_way_has_no_time_and_is_closed(x, expected, last):
    """In the checked runs, and in those after them."""
    running = Fixed(expected, last)
    found = measured(running, (1, 5), x, expected)
    assert {(each.measurement.status, each.measurement.reason, each.mean_s) for each in found} == {
        (Status.FAILED, "gave up", None)
    }
    assert (len(found), running.closed) == (2, 1)


def small_vgg(monkeypatch):
    """The experiment's model, with a sixteenth of its channels."""
    monkeypatch.setattr(s5, "make_vgg", lambda path, size: make_vgg(path, size=size, width=4, hidden=32, classes=10))


def test_the_experiment(device, monkeypatch):
    small_vgg(monkeypatch)
    stand = Stand(device, variants(), EFFORT)
    rows = s5.EXPERIMENT.run(stand, Choice(device.facts.kind, quick=True), lambda *_: None)
    stand.close()
    assert [(row.method, row.parameter) for row in rows] == [
        (version.method, f"iterations={n}") for version in s5.VERSIONS for n in version.iterations
    ]
    assert {row.status for row in rows} == {Status.RIGHT}
    assert all(row.ours > 0 and row.size == "32" and row.theirs is None for row in rows)
    assert {row.method for row in rows if row.ours_percent is None} == set(s5.HOSTS)


def test_a_cpu_estimates_what_would_take_too_long(monkeypatch):
    small_vgg(monkeypatch)
    monkeypatch.setattr(s5, "SIZES", (64,))
    device, _ = open_device("cpu")
    stand = Stand(device, variants(), replace(EFFORT, limit=0.0))
    rows = s5.EXPERIMENT.run(stand, Choice("cpu"), lambda *_: None)
    assert {row.status for row in rows} == {Status.ESTIMATED}
    (cpu,) = (row for row in rows if row.method == "cpu")
    assert cpu.ours > 0
    assert "32x32, scaled by FLOP" in cpu.remark
    stand.close()
    device.close()
