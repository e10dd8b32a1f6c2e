"""library.py: what is said where a library, or a part of it, is missing."""

import sys
from unittest.mock import Mock

import pytest

from tests.lab.conftest import LITTLE
from tests.lab.fake_libraries import Engine
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


def test_no_library_or_package_behind_the_front_end(host, front_end, monkeypatch):
    module = front_end(RIGHT)
    absent = RuntimeError("Unable to find symbol cudnnGetVersion")
    monkeypatch.setattr(module, "backend_version", Mock(side_effect=absent))
    assert f"does not find cuDNN ({absent}): install nvidia-cudnn-cu13" in missing(host)
    absent = ModuleNotFoundError("No module named 'cutlass'", name="cutlass")
    monkeypatch.setattr(module, "backend_version", Mock(side_effect=absent))
    assert f"needs a package that is not here: {absent}" in missing(host)


def test_a_library_that_does_not_start(host, front_end, monkeypatch):
    module = front_end(RIGHT)
    monkeypatch.setattr(module, "create_handle", Mock(side_effect=RuntimeError("cudnnHandle Create failed")))
    assert "cuDNN 9.12.34 does not start: cudnnHandle Create failed" in missing(host)
    front_end(Engine("eng0", builds=False))
    assert "has no plan that works: CUDNN_STATUS_NOT_SUPPORTED: eng0" in missing(host)


def test_torch_without_cuda_and_a_processor(host, torch):
    torch.available = False
    assert "torch is installed without CUDA" in missing(host)
    device, _ = open_device("cpu")
    assert missing(device) == "cuDNN needs an NVIDIA GPU"
    device.close()
