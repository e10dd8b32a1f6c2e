"""A small LeNet that has learned a little, and digits for it."""

import pytest

from tests.lab.lenet.small import IMAGE, STEPS
from vgg16gpu_lab.lenet import train as lenet_train
from vgg16gpu_lab.lenet.data import digits


@pytest.fixture(scope="session")
def data():
    return digits(IMAGE)


@pytest.fixture(scope="session")
def net(data):
    return lenet_train.train(data, steps=STEPS)


@pytest.fixture(scope="session")
def model(net, data, tmp_path_factory):
    path = tmp_path_factory.mktemp("lenet") / "lenet.onnx"
    net.write(path, data.classes)
    return path


@pytest.fixture(scope="session")
def x(data):
    return data.normalised(data.heldout[:20])
