"""The data, shapes, gradients and training of LeNet, and its ONNX file in other hands."""

import json

import numpy as np
import onnx
import pytest

from tests.lab.lenet.small import IMAGE
from vgg16gpu import Engine
from vgg16gpu.checks.accuracy import score_error
from vgg16gpu.checks.onnxruntime_session import open_session
from vgg16gpu.compiler.model import Model
from vgg16gpu.errors import InputError
from vgg16gpu_lab.lenet import train as lenet_train
from vgg16gpu_lab.lenet.data import digits
from vgg16gpu_lab.lenet.net import Shape, columns_of, read_lenet
from vgg16gpu_lab.problem import Problem


@pytest.mark.parametrize(("image", "side", "features"), [(12, 8, 16), (37, 32, 784)])
def test_other_image_sizes(image, side, features):
    data = digits(image)
    assert data.image == image
    rows = np.flatnonzero(data.training.any((0, 2, 3)))
    assert rows[0] >= (image - side) // 2
    assert rows[-1] < (image - side) // 2 + side
    assert Shape(image).parameters["fc1.weight"] == (120, features)
    with pytest.raises(InputError, match="12x12 and larger, not 11"):
        Shape(11)
    with pytest.raises(InputError, match="8x8 do not fit into 7x7"):
        digits(7)


@pytest.mark.parametrize("problem", [Problem(2, 3, 7, 6, 4, 3, 2, 1), Problem(1, 1, 5, 5, 2, 5)])
def test_columns_times_weights_are_the_convolution(problem):
    x, weight = problem.random(3)
    y = weight.reshape(problem.outputs, -1) @ columns_of(x, problem)
    assert np.abs(y.reshape(problem.y_shape) - problem.expected(x, weight)).max() < 1e-5


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


def test_training_learns_and_repeats_itself(net, data):
    x = data.normalised(data.heldout)
    assert (net.expected(x).argmax(1) == data.heldout_labels).mean() > 0.4  # 0.1 is chance
    steps = []
    first = lenet_train.train(data, steps=3, progress=lambda *step: steps.append(step))
    assert steps == [(1, 3), (2, 3), (3, 3)]
    again, other = lenet_train.train(data, steps=3), lenet_train.train(data, seed=1, steps=3)
    assert all(np.array_equal(again.parameters[name], value) for name, value in first.parameters.items())
    assert not np.array_equal(other.parameters["conv1.weight"], first.parameters["conv1.weight"])


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
