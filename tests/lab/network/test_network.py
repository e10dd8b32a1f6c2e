"""A whole network in the ways of S5: each is right, what is wrong gets no time, slow ones are not repeated."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import Mock

import numpy as np
import pytest

from vgg16gpu.compiler.graph.input_size import resolve_input_shape
from vgg16gpu.compiler.model import Model
from vgg16gpu.errors import DeviceError, KernelError
from vgg16gpu.zoo.generate import make_vgg
from vgg16gpu_lab.experiment import Choice
from vgg16gpu_lab.experiments import s5
from vgg16gpu_lab.ladder.rung import Setting
from vgg16gpu_lab.measure.bench_rig import BenchRig
from vgg16gpu_lab.measure.measure import Effort, Status
from vgg16gpu_lab.network import causes as network_causes
from vgg16gpu_lab.network import layers as network_layers
from vgg16gpu_lab.network import pools as network_pools
from vgg16gpu_lab.network.host import OnnxruntimeNet, measure_network, work_of
from vgg16gpu_lab.network.rows import NetworkRows, Place, Prepared
from vgg16gpu_lab.variants import variants

IMAGES = 4
EFFORT = Effort(seconds=0.0, samples=5, limit=1.0, cold=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("network") / "vgg.onnx"
    make_vgg(path, size=37, width=4, hidden=32, classes=10)  # 37 -> 18 -> 9 -> 4 -> 2 -> 1: odd sizes on the way
    return path


@pytest.fixture(scope="module")
def graph(model):
    return Model(model).graph()


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(0).standard_normal((IMAGES, 3, 37, 37)).astype(np.float32)


@pytest.fixture(scope="module")
def expected(model, x):
    return OnnxruntimeNet(model).run(x)


class Fixed:
    """Gives the scores that it was made with, in turn."""

    def __init__(self, scores, last=math.inf):
        self.scores, self.last, self.runs, self.closed, self.seen = scores, last, 0, 0, []

    def run(self, x):
        assert x.shape == (1, 3, 37, 37)
        self.runs += 1
        self.seen.append(x)
        if self.runs > self.last:
            raise KernelError("gave up")
        return self.scores[(self.runs - 1) % len(self.scores)][np.newaxis]

    def close(self):
        self.closed += 1


def measured(running, iterations, x, expected, *, most_s=None, effort=EFFORT):
    return measure_network(lambda: running, iterations, x, expected, effort, most_s=most_s)


def test_work(graph):
    work = work_of(graph, resolve_input_shape(graph, 1, None))
    maps = {37: [(3, 4), (4, 4)], 18: [(4, 8), (8, 8)], 9: [(8, 16), (16, 16), (16, 16)]}
    maps |= {4: [(16, 32), (32, 32), (32, 32)], 2: [(32, 32)] * 3}
    convolutions = sum(9 * size * size * c * o for size, layers in maps.items() for c, o in layers)
    products = sum(a * b for a, b in pairwise([32, 32, 32, 10]))  # the last pool leaves a pixel
    assert work.flop == 2 * (convolutions + products)
    weights = sum(9 * c * o for layers in maps.values() for c, o in layers) + products
    assert work.nbytes == 4 * (weights + 3 * 37 * 37 + 10)


def test_all_iterations_are_made_or_none(x, expected):
    running = Fixed(expected)
    found = measured(running, (1, 5, 50), x, expected, most_s=60.0)
    assert [each.measurement.compute.warm.samples for each in found] == [1, 5, 50]
    assert running.runs == IMAGES + 55
    assert all(each.measurement.details["mean_s"] == each.mean_s for each in found)
    running = Fixed(expected)
    one, many = measured(running, (1, 500), x, expected, most_s=0.0)
    assert one.measurement.status is Status.RIGHT
    assert (many.measurement.status, many.mean_s, running.runs) == (Status.MISSING, None, IMAGES)
    assert many.measurement.reason.startswith("not measured: 500 runs would take 0 s, 0 s are allowed")


def test_what_takes_long_is_checked_on_one_image(x, expected):
    running = Fixed(expected)
    one, five = measured(running, (1, 5), x, expected, effort=replace(EFFORT, limit=0.0))
    assert one.measurement.checked == "scores of 1 of 4 images against onnxruntime's"
    assert one.measurement.compute.warm.samples == 1
    assert five.measurement.compute.warm.samples == 1  # nor run again
    assert running.runs == 1
    running = Fixed(expected)
    _, all_made = measured(running, (1, 5), x, expected, effort=replace(EFFORT, limit=0.0), most_s=math.inf)
    assert all_made.measurement.compute.warm.samples == 5
    for seen in running.seen:
        np.testing.assert_array_equal(seen, x[:1])


def test_wrong_scores_get_no_time(x, expected):
    for wrong in (expected * 1.01, expected * np.nan, expected[::-1]):
        found = measured(Fixed(wrong), (1, 5), x, expected)
        outcomes = [(each.measurement.status, each.mean_s, each.measurement.compute) for each in found]
        assert outcomes == [(Status.WRONG, None, None)] * 2
        assert "no time" in found[0].measurement.reason


def test_what_cannot_be_opened_or_fails_on_the_way_has_no_time(x, expected):
    for error, status in ((DeviceError("full"), Status.REFUSED), (KernelError("x"), Status.FAILED)):
        opened = Mock(side_effect=error)
        (found,) = measure_network(opened, (1,), x, expected, EFFORT, most_s=None)
        assert (found.measurement.status, found.measurement.reason, found.mean_s) == (status, str(error), None)
    for last in (0, IMAGES):  # in the checked runs, and in those after them
        running = Fixed(expected, last)
        found = measured(running, (1, 5), x, expected)
        outcomes = {(each.measurement.status, each.measurement.reason, each.mean_s) for each in found}
        assert outcomes == {(Status.FAILED, "gave up", None)}
        assert (len(found), running.closed) == (2, 1)


def small_vgg(monkeypatch):
    """The experiment's model, with a sixteenth of its channels."""
    monkeypatch.setattr(s5, "make_vgg", lambda path, size: make_vgg(path, size=size, width=2, hidden=16, classes=10))


VGG16 = [
    *("conv1_1", "conv1_2", "pool1", "conv2_1", "conv2_2", "pool2", "conv3_1", "conv3_2", "conv3_3", "pool3"),
    *("conv4_1", "conv4_2", "conv4_3", "pool4", "conv5_1", "conv5_2", "conv5_3", "pool5", "fc6", "fc7", "fc8"),
]


def rows_of(rows, table):
    return [row for row in rows if row.table == table]


def test_the_experiment(device, monkeypatch):
    small_vgg(monkeypatch)
    rig = BenchRig(device, variants(), replace(EFFORT, samples=1))
    rows = s5.EXPERIMENT.run(rig, Choice(device.facts.kind, quick=True), lambda *_: None)
    rig.close()
    assert [(row.method, row.parameter) for row in rows_of(rows, s5.TABLE)] == [
        (version.method, f"iterations={n}") for version in s5.VERSIONS for n in version.iterations
    ]
    assert {row.status for row in rows} == {Status.RIGHT}
    assert len({row.key for row in rows}) == len(rows)
    assert all(row.ours > 0 and row.theirs is None for row in rows)
    assert {row.method for row in rows_of(rows, s5.TABLE) if row.ours_percent is None} == set(s5.HOSTS)
    assert {row.size for row in rows if row.table != network_pools.TABLE} == {"32"}
    causes = rows_of(rows, network_causes.TABLE)
    assert [(row.method, row.parameter) for row in causes] == [(each.method, "") for each in network_causes.causes()]
    assert all("weights stay on the GPU" in row.note for row in causes[:4])
    layers = rows_of(rows, network_layers.TABLE)
    assert [row.parameter for row in layers] == VGG16
    assert [row.parameter for row in layers if "ns a product" not in row.note] == [f"pool{n}" for n in range(1, 6)]


def test_pools_are_run(device, monkeypatch):
    """61 and 15: what is odd loses a row and a column."""
    monkeypatch.setattr(s5, "make_vgg", lambda path, size: make_vgg(path, size=size, width=1, hidden=2, classes=2))
    given = Prepared(setting_of(s5._made, device), None, None)
    rows = list(network_pools.pool_rows(given, Place("S5", network_pools.TABLE, "61")))
    kinds = [("pool_columns", "after ReLU"), ("pool_columns", "any sign")]
    kinds += [("start_at_zero", maps) for _, maps in kinds]
    assert [(row.size, row.method, row.parameter, row.ours) for row in rows] == [
        (size, *kind, half) for size, half in (("61", 30), ("30", 15), ("15", 7), ("7", 3), ("3", 1)) for kind in kinds
    ]
    errors = {(row.size, row.method, row.parameter): row.measurement.error for row in rows}
    assert {row.status for row in rows} == {Status.RIGHT}
    assert errors.pop(("61", "start_at_zero", "any sign")) > 0
    assert not any(error for (_, *kind), error in errors.items() if tuple(kind) != ("start_at_zero", "any sign"))


@pytest.mark.parametrize(
    ("written", "words"),
    [(lambda found: found[:-1], "numbers were written, not"), (lambda found: found[::-1], "other numbers")],
)
def test_a_wrong_pool_is_told(device, monkeypatch, written, words):
    monkeypatch.setattr(s5, "make_vgg", lambda path, size: make_vgg(path, size=size, width=2, hidden=2, classes=2))
    right = network_pools.run_pool
    monkeypatch.setattr(network_pools, "run_pool", lambda *args, **options: written(right(*args, **options)))
    row = next(network_pools.pool_rows(Prepared(setting_of(s5._made, device), None, None), Place("S5", "pool", "61")))
    assert (row.status, row.ours) == (Status.WRONG, None)
    assert words in row.remark


def setting_of(made, device):
    """A setting of 61 pixels a side."""
    with TemporaryDirectory() as folder:
        model = made(Path(folder), 61)
    return Setting(model.model, model.graph, model.shape, device, device.facts.kind)


def test_layers_of_another_answer_have_no_time(device, monkeypatch):
    small_vgg(monkeypatch)
    rig = BenchRig(device, variants(), EFFORT)
    with TemporaryDirectory() as folder:
        network = NetworkRows(s5._made(Path(folder), 32), None, rig, Choice(device.facts.kind, quick=True))
    network.given.expected[:] += 1
    rows = list(network_layers.layer_rows(network, Place("S5", network_layers.TABLE, "32"), rig))
    assert {(row.status, row.ours) for row in rows} == {(Status.WRONG, None)}
    rig.close()
