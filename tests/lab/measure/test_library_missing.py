"""library.py: what is said where a library, or a part of it, is missing."""

import sys

import pytest

from tests.lab.conftest import LITTLE
from tests.lab.fake_libraries import (
    Engine,
)
from tests.lab.measure.conftest import PROBLEM, RIGHT, tried
from vgg16gpu.devices import open_device
from vgg16gpu_lab.measure.baseline import CUDNN, measure_baseline
from vgg16gpu_lab.measure.cudnn.base import MissingLibraryError
from vgg16gpu_lab.measure.measure import Status
from vgg16gpu_lab.reference import Reference


def missing(device):
    with pytest.raises(MissingLibraryError) as raised:
        tried(device)
    return str(raised.value)


def test_neither_is_installed(host, monkeypatch):
    for name in ("cudnn", "torch"):
        monkeypatch.setitem(sys.modules, name, None)
    text = missing(host)
    assert "nvidia-cudnn-frontend is not installed: pip install 'vgg16gpu[cudnn]'" in text
    assert "torch is not installed" in text
    found = measure_baseline(CUDNN, host, Reference(PROBLEM, 10**6), LITTLE, None)
    assert (found.status, found.reason) == (Status.MISSING, text)


def test_no_library_behind_the_package(host, front_end, monkeypatch):
    module = front_end(RIGHT)

    def absent():
        raise RuntimeError("Unable to find symbol cudnnGetVersion")

    monkeypatch.setattr(module, "backend_version", absent)
    text = missing(host)
    assert "does not find cuDNN (Unable to find symbol cudnnGetVersion): install nvidia-cudnn-cu13" in text


def test_a_package_that_the_front_end_needs(host, front_end, monkeypatch):
    module = front_end(RIGHT)

    def absent():
        raise ModuleNotFoundError("No module named 'cutlass'", name="cutlass")

    monkeypatch.setattr(module, "backend_version", absent)
    assert "needs a package that is not here: No module named 'cutlass'" in missing(host)


def test_a_library_that_does_not_start(host, front_end, monkeypatch):
    module = front_end(RIGHT)

    def fails():
        raise RuntimeError("cudnnHandle Create failed")

    monkeypatch.setattr(module, "create_handle", fails)
    assert "cuDNN 9.12.34 does not start: cudnnHandle Create failed" in missing(host)
    front_end(Engine("eng0", builds=False))
    assert "has no plan that works: CUDNN_STATUS_NOT_SUPPORTED: eng0" in missing(host)


def test_torch_without_cuda(host, torch):
    torch.available = False
    assert "torch is installed without CUDA" in missing(host)


def test_on_a_processor():
    device, _ = open_device("cpu")
    assert missing(device) == "cuDNN needs an NVIDIA GPU"
    device.close()
