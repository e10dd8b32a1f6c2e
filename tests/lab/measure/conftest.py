"""A cpu device that claims to be a card, and fakes of cuDNN's front end and of torch."""

import sys
from types import SimpleNamespace

import pytest

from tests.lab.conftest import LITTLE
from tests.lab.fake_libraries import Engine, FakeCudnn, FakeForeign, FakeTorch
from vgg16gpu.devices import open_device
from vgg16gpu_lab.measure.cudnn import frontend as library_frontend
from vgg16gpu_lab.measure.cudnn.library import measure_cudnn
from vgg16gpu_lab.problem import Problem
from vgg16gpu_lab.reference import Reference

PROBLEM = Problem(2, 3, 17, 13, 4, 3, 2, 1)
RIGHT = Engine("eng0_k1=0")


def tried(device, problem=PROBLEM, effort=LITTLE, flush=None, **options):
    return measure_cudnn(device, Reference(problem, effort.products), effort, flush, **options)


@pytest.fixture
def host():
    """A cpu device that claims to be a card."""
    device, _ = open_device("cpu")
    device.foreign = FakeForeign()
    yield device
    assert not device.foreign.live, "a CUDA graph is not given back"
    device.close()


@pytest.fixture
def front_end(host, monkeypatch):
    """Puts a fake front end with these engines in the place of the real one; torch is not installed."""
    monkeypatch.setitem(sys.modules, "torch", None)

    def put(*engines):
        module = FakeCudnn(host.foreign, engines)
        monkeypatch.setitem(sys.modules, "cudnn", module)
        monkeypatch.setattr(library_frontend, "time", SimpleNamespace(perf_counter=lambda: module.clock))
        monkeypatch.setattr(library_frontend, "_loaded", set())
        return module

    return put


@pytest.fixture
def torch(host, monkeypatch):
    module = FakeTorch(host.foreign)
    monkeypatch.setitem(sys.modules, "cudnn", None)
    monkeypatch.setitem(sys.modules, "torch", module)
    return module
