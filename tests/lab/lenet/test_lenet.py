"""LeNet: its shapes, gradients and training, its ONNX file in other hands, its convolutions by variants."""

import gzip
import json
import struct
from contextlib import closing
from dataclasses import replace

import numpy as np
import onnx
import pytest

from vgg16gpu import Engine
from vgg16gpu.bench.measure.ceilings import Ceilings
from vgg16gpu.bench.measure.timing import summarise
from vgg16gpu.checks.accuracy import layer_error, score_error
from vgg16gpu.checks.onnxruntime_session import open_session
from vgg16gpu.compiler.model import Model
from vgg16gpu.errors import DeviceError, InputError
from vgg16gpu.lab.experiment import Choice
from vgg16gpu.lab.experiments import s3
from vgg16gpu.lab.lenet import lesson as lenet_lesson
from vgg16gpu.lab.lenet import train as lenet_train
from vgg16gpu.lab.lenet.columns import ColumnsOnDevice
from vgg16gpu.lab.lenet.data import Dataset, digits, framed, from_idx
from vgg16gpu.lab.lenet.forward import OnDevice, Sequential, activations, scores_of_all, timed
from vgg16gpu.lab.lenet.net import LeNet, Shape, columns_of, pooled, read_lenet
from vgg16gpu.lab.measure.bench_rig import BenchRig
from vgg16gpu.lab.measure.measure import Effort, Status, verdict
from vgg16gpu.lab.problem import Problem
from vgg16gpu.lab.published import published
from vgg16gpu.lab.variants import variants
from vgg16gpu.zoo.digits import heldout

IMAGE = 16  # pixels a side: a third of the work of 28
STEPS = 120  # of training, where any net will do that tells digits apart
VARIANTS = {
    variant.name: variant for variant in variants() if variant.name in {method.variant for method in s3.METHODS}
}
ON_HOST = ("sequential_cpu", "parallel_im2col")  # whose product is numpy's: no variant is asked for
TABLES = ("lenet", "parts", "batch", "tile")
PARTS = ("conv1", "conv2", "forward")
EFFORT = Effort(seconds=0.0, samples=3, cold=False)


@pytest.fixture(scope="module")
def data():
    return digits(IMAGE)


@pytest.fixture(scope="module")
def net(data):
    return lenet_train.train(data, steps=STEPS)


@pytest.fixture(scope="module")
def model(net, data, tmp_path_factory):
    path = tmp_path_factory.mktemp("lenet") / "lenet.onnx"
    net.write(path, data.classes)
    return path


@pytest.fixture(scope="module")
def x(data):
    return data.normalised(data.heldout[:20])


def test_the_digits_are_the_ones_of_the_shipped_net_and_its_training():
    data = digits()
    images, _, labels = heldout()
    assert data.training.shape == (1347, 28, 28, 1)
    assert data.heldout.shape == (450, 28, 28, 1)
    assert np.array_equal(data.heldout_labels, labels)
    small = images.reshape(450, 8, 4, 8, 4).mean((2, 4))
    ours = data.heldout[:, 2:26, 2:26].reshape(450, 8, 3, 8, 3).mean((2, 4))
    assert np.corrcoef(small.ravel(), ours.ravel())[0, 1] > 0.99
    assert not data.training[:, [0, 1, 26, 27]].any()
    assert not data.training[:, :, [0, 1, 26, 27]].any()
    everything = np.concatenate([data.training, data.heldout]).reshape(1797, -1)
    assert len(np.unique(everything, axis=0)) == 1797  # nothing is in both


def test_the_digits_are_scikit_learns():
    load_digits = pytest.importorskip("sklearn.datasets").load_digits
    levels, labels = load_digits(return_X_y=True)
    ours = digits(12)  # 8x8 in a frame
    pixels = np.concatenate([ours.training, ours.heldout])[:, 2:10, 2:10, 0].reshape(1797, 64)
    expected = ((levels * 255 + 8) // 16).astype(np.uint8)
    rows = np.column_stack([pixels, np.concatenate([ours.training_labels, ours.heldout_labels])])
    others = np.column_stack([expected, labels.astype(np.uint8)])
    assert np.array_equal(rows[np.lexsort(rows.T)], others[np.lexsort(others.T)])


@pytest.mark.parametrize(("image", "side", "features"), [(12, 8, 16), (28, 24, 400), (32, 32, 576), (37, 32, 784)])
def test_other_image_sizes(image, side, features):
    data = digits(image)
    assert data.image == image
    rows = np.flatnonzero(data.training.any((0, 2, 3)))
    assert rows[0] >= (image - side) // 2
    assert rows[-1] < (image - side) // 2 + side
    assert Shape(image).parameters["fc1.weight"] == (120, features)


def test_images_that_are_too_small():
    with pytest.raises(InputError, match="12x12 and larger, not 11"):
        Shape(11)
    with pytest.raises(InputError, match="8x8 do not fit into 7x7"):
        digits(7)


def test_lenet_5_has_61706_parameters():
    parameters = Shape().parameters
    assert sum(int(np.prod(size)) for size in parameters.values()) == 61706
    assert parameters["conv2.weight"] == (16, 6, 5, 5)
    assert list(parameters)[-1] == "fc3.bias"


@pytest.mark.parametrize("problem", [Problem(2, 3, 7, 6, 4, 3, 2, 1), Problem(1, 1, 5, 5, 2, 5)])
def test_columns_times_weights_are_the_convolution(problem):
    x, weight = problem.random(3)
    y = weight.reshape(problem.outputs, -1) @ columns_of(x, problem)
    assert np.abs(y.reshape(problem.y_shape) - problem.expected(x, weight)).max() < 1e-5


def test_pools_drop_an_odd_row_and_column():
    y = np.array([[[[1, 5, 9], [2, -3, 9], [9, 9, 9]]]], np.float32)
    assert pooled(y).tolist() == [[[[5]]]]


def test_gradients_are_the_slopes_of_the_loss():
    shape, random = Shape(12), np.random.default_rng(5)
    parameters = {
        name: value + random.normal(0, 0.1, value.shape) for name, value in lenet_train.initial(shape, random).items()
    }
    x, labels = random.standard_normal((3, 1, 12, 12)), np.array([1, 7, 2], np.uint8)
    _, gradients = lenet_train.loss_and_gradients(shape, parameters, x, labels)
    assert gradients.keys() == parameters.keys()
    for name, value in parameters.items():
        direction = random.standard_normal(value.shape)
        losses = []
        for step in (1e-6, -1e-6):
            moved = parameters | {name: value + step * direction}
            losses.append(lenet_train.loss_and_gradients(shape, moved, x, labels)[0])
        slope = (losses[0] - losses[1]) / 2e-6
        assert slope == pytest.approx((gradients[name] * direction).sum(), rel=1e-4, abs=1e-8), name


def test_moved_images_keep_their_pixels():
    images = np.zeros((50, 9, 9, 1), np.uint8)
    images[:, 4, 4] = 7
    moved = lenet_train.shifted(images, np.random.default_rng(0))
    places = np.argwhere(moved[..., 0] == 7)[:, 1:]
    assert len(places) == 50
    assert set(places.ravel()) == {2, 3, 4, 5, 6}


def test_the_rate_rises_and_falls_to_nearly_nothing():
    rates = [lenet_train.rate(step, 200) for step in range(200)]
    assert rates.index(max(rates)) == 49
    assert 0 < rates[-1] < rates[0] < lenet_train.RATE


def test_training_learns_and_repeats_itself(net, data):
    x = data.normalised(data.heldout)
    assert (net.expected(x).argmax(1) == data.heldout_labels).mean() > 0.8
    steps = []
    first = lenet_train.train(data, steps=3, progress=lambda *step: steps.append(step))
    assert steps == [(1, 3), (2, 3), (3, 3)]
    again, other = lenet_train.train(data, steps=3), lenet_train.train(data, seed=1, steps=3)
    assert all(np.array_equal(again.parameters[name], value) for name, value in first.parameters.items())
    assert not np.array_equal(other.parameters["conv1.weight"], first.parameters["conv1.weight"])


@pytest.mark.slow(reason="a whole training; others check some of its steps")
def test_the_net_of_the_experiment_has_at_least_98_percent_right():
    data = digits()
    scores = read_lenet(lenet_train.trained_model(data)).expected(data.normalised(data.heldout))
    assert (scores.argmax(1) == data.heldout_labels).mean() >= 0.98


def test_a_trained_net_is_kept(data, tmp_path, monkeypatch):
    monkeypatch.setenv("VGG16GPU_CACHE", str(tmp_path / "cache"))
    path = lenet_train.trained_model(data, steps=1)
    assert path.is_relative_to(tmp_path)
    monkeypatch.setattr(lenet_train, "train", None)
    assert lenet_train.trained_model(data, steps=1) == path
    assert read_lenet(path).shape == Shape(IMAGE)
    for changes in ({"seed": 1}, {"steps": 2}):
        with pytest.raises(TypeError):
            lenet_train.trained_model(data, **({"steps": 1} | changes))


def test_the_file_has_the_whole_net(net, model, data):
    onnx.checker.check_model(str(model), full_check=True)
    again = read_lenet(model)
    assert (again.shape, again.mean, again.std) == (net.shape, data.mean, data.std)
    assert all(np.array_equal(again.parameters[name], value) for name, value in net.parameters.items())
    metadata = Model(model).metadata
    assert json.loads(metadata["vgg16gpu.labels"]) == list("0123456789")
    assert json.loads(metadata["vgg16gpu.mean"]) == [data.mean]


def test_onnxruntime_and_the_engine_agree_with_float64(net, model, data, x):
    expected = net.expected(x)
    session = open_session(model)
    theirs = session.run(None, {"input": x})[0]
    assert score_error(theirs, expected).max() < 1e-5
    with Engine(model, device="cpu", batch=8, mean=[data.mean], std=[data.std]) as engine:
        assert score_error(engine.run(x), expected).max() < 1e-5
        pixels = engine.run(data.heldout[:20])  # normalised on the device
        assert score_error(pixels, expected).max() < 1e-4


def test_the_sequential_version_is_right(net, x):
    assert score_error(scores_of_all(net, Sequential(net), x, 8), net.expected(x)).max() < 1e-5


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


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_of_the_experiment_is_right_within_the_net(device, net, x, name):
    """A last batch that is not full, and both layers in turns, included."""
    with closing(OnDevice(device, net, VARIANTS[name], 8)) as version:
        scores = scores_of_all(net, version, x, 8)
    assert score_error(scores, net.expected(x)).max() < 1e-5


def versions_of(device, net, batch):
    """Every version of the experiment, by name, open."""
    yield "sequential-cpu", Sequential(net)
    with closing(ColumnsOnDevice(device, net, batch)) as columns:
        yield "im2col-alone", columns
    for name, variant in VARIANTS.items():
        with closing(OnDevice(device, net, variant, batch)) as version:
            yield name, version


def test_every_version_adds_the_bias_to_its_convolutions(device, net, x):
    """Within the kernel, or on the host; what is measured of a kernel that adds none is compared without."""
    maps = activations(net, x[:3])
    for name, version in versions_of(device, net, 3):
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


@pytest.fixture
def experiment(monkeypatch, tmp_path):
    """A small one, with a net that has hardly learned."""

    def made(data, progress):
        path = tmp_path / "small.onnx"
        lenet_train.train(data, steps=2, progress=progress).write(path)
        return path

    monkeypatch.setattr(s3, "trained_model", made)
    monkeypatch.setattr(s3, "BATCH", 4)
    monkeypatch.setattr(lenet_lesson, "QUICK_IMAGES", 8)
    return replace(s3.EXPERIMENT, image=12, batches=(1, 3))


def run(experiment, device, variants, choice):
    rig, told = BenchRig(device, variants, EFFORT), []
    rig.ceilings = Ceilings(1e10, 1e10, 0, "as it pleases")  # measured, that takes seconds
    try:
        rows = experiment.run(rig, choice, lambda *what: told.append(what))
    finally:
        rig.close()
    assert told[-1][0] == told[-1][1]
    assert len({row.key for row in rows}) == len(rows)
    return rows


def test_every_published_row_is_there_even_without_a_variant_or_the_engine(device, experiment, monkeypatch):
    def no_engine(*_, **options):
        raise DeviceError(f"{options['device']} is on strike")

    monkeypatch.setattr(s3, "BATCH", 128)
    monkeypatch.setattr(lenet_lesson, "Engine", no_engine)
    rows = {row.key: row for row in run(experiment, device, (), Choice())}
    theirs = {key: value for key, value in published().items() if key[0] == "S3"}
    assert len(theirs) > 80
    for key, value in theirs.items():
        assert rows[key].theirs == value
        assert rows[key].status is (Status.RIGHT if key[3] in ON_HOST else Status.MISSING)
        assert (rows[key].ours is not None) is (key[3] in ON_HOST)
    names = {row.method: row for row in rows.values() if row.table == "accuracy"}
    assert list(names) == [*ON_HOST, "float64"]
    assert names["float64"].ours == names["sequential_cpu"].ours
    engine = next(row for row in rows.values() if row.method == "engine")
    assert (engine.status, engine.ours) == (Status.FAILED, None)
    assert "on strike" in engine.remark


def test_variants_get_all_tables_and_wrong_ones_no_time(device, experiment):
    right = VARIANTS["constant-weights"]  # whose layers share an array
    wrong = replace(VARIANTS["tiled-shared"], tolerance=0.0)
    rows = run(experiment, device, (right, wrong), Choice(quick=True, blocks=(4, 64)))
    tables = {name: [row for row in rows if (row.table, row.variant) == (name, right.name)] for name in TABLES}
    assert [row.parameter for row in tables["lenet"]] == [f"batch=0 {part}" for part in PARTS]
    assert [(row.size, row.parameter) for row in tables["batch"]] == [(n, part) for n in "13" for part in PARTS]
    assert all(row.ours > 0 and row.measurement.error < 1e-5 for row in tables["lenet"] + tables["batch"])
    assert [row.parameter for row in tables["tile"]] == [f"{n} block={b}" for b in (4, 64) for n in PARTS[:2]]
    assert [row.status for row in tables["tile"]] == [Status.RIGHT] * 2 + [Status.INVALID] * 2
    engine = [row for row in rows if row.method == "engine"]
    assert [row.table for row in engine] == ["accuracy", "lenet"]
    assert all(0 < row.measurement.error < 1e-5 for row in engine)
    assert engine[1].ours > 0
    parts = {row.parameter: row.ours for row in tables["parts"]}
    known = [value for value in parts.values() if value is not None]  # a difference may be lost in noise
    assert len(known) < len(parts) or sum(known) == pytest.approx(tables["lenet"][2].ours)
    assert all(value > 0 for value in known)
    others = [row for row in rows if row.variant == wrong.name and row.table in ("lenet", "batch")]
    assert len(others) == 9
    assert all(row.ours is None and row.status is Status.WRONG for row in others)


def test_columns_that_find_no_room_have_no_time(device, experiment, monkeypatch):
    def full(nbytes):
        raise DeviceError(f"no room for {nbytes} bytes")

    monkeypatch.setattr(device, "allocate", full)
    rows = run(experiment, device, (), Choice(quick=True))
    found = [row for row in rows if row.method == "parallel_im2col"]
    assert {(row.table, row.status, row.ours) for row in found} == {
        ("lenet", Status.NO_ROOM, None),
        ("batch", Status.NO_ROOM, None),
    }


def test_own_variants_stand_beside_the_others(device, experiment):
    own = replace(VARIANTS["direct-chw"], name="mine")
    rows = run(replace(experiment, batches=(1,)), device, (own,), Choice(quick=True, own=(own,)))
    assert {row.table for row in rows if row.method == "mine" and row.ours} == set(TABLES) | {"accuracy"}


def test_a_wrong_score_has_no_time():
    judged = verdict(1e-3, "scores", 1e-5, "the right ones")
    assert judged.reason == "error 0.001 against the right ones, allowed is 1e-05: no time"
    assert judged.status is Status.WRONG
    assert timed(judged, summarise([1.0])).compute is None
    assert verdict(float("nan"), "scores", 1e-5).status is Status.WRONG
    assert timed(verdict(1e-7, "scores", 1e-5), summarise([1.0])).compute.warm.median_s == 1.0


def test_the_data_may_be_files(device, experiment, tmp_path):
    with pytest.raises(InputError, match="has no train-images"):
        run(replace(experiment, data=tmp_path), device, (), Choice())


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_folder_in_fashion_mnists_form_goes_all_the_way(device, experiment, tmp_path, pack):
    """Its names, types and image size, and labels in any order; as it is downloaded, and unpacked."""
    random, end = np.random.default_rng(7), "" if pack is bytes else ".gz"
    for part, count in (("train", 60), ("t10k", 10)):
        arrays = {"images-idx3": random.integers(0, 256, (count, 28, 28), np.uint8)}
        arrays["labels-idx1"] = random.permutation(count).astype(np.uint8) % 10
        for name, array in arrays.items():
            head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
            (tmp_path / f"{part}-{name}-ubyte{end}").write_bytes(pack(head + array.tobytes()))
    data = from_idx(tmp_path)
    assert np.array_equal(data.heldout[..., 0], arrays["images-idx3"])  # 28x28 needs no frame
    assert np.array_equal(data.heldout_labels, arrays["labels-idx1"])
    folder = replace(experiment, data=tmp_path, image=28, batches=(1,))
    rows = run(folder, device, tuple(VARIANTS.values()), Choice(quick=True))
    found = {row.method: row for row in rows if row.table == "accuracy"}
    assert set(found) == {*(method.name for method in s3.METHODS), "float64", "engine"}
    assert len({row.ours for row in found.values()}) == 1
    assert all(row.measurement.error < 1e-5 for row in found.values())
    assert found["tiled_shared"].note.endswith("'correctness: not done yet', 'faster, but not correct yet'")
    assert found["constant_alone"].note.endswith("right")


def test_framing_puts_images_in_the_middle():
    whole = framed(np.full((1, 2, 3, 1), 9, np.uint8), 6)
    assert np.argwhere(whole[0, :, :, 0]).tolist() == [[2, 1], [2, 2], [2, 3], [3, 1], [3, 2], [3, 3]]


def test_flat_images_do_not_divide_by_zero():
    black = np.zeros((2, 12, 12, 1), np.uint8)
    data = Dataset("black", black, np.zeros(2, np.uint8), black, np.zeros(2, np.uint8))
    assert np.isfinite(data.normalised(black)).all()
